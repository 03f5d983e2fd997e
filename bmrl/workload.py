"""Tokens of an episode, whether it fits into the context; tokens of a step and of a run, and how long they take.

Estimates, from sizes counted once. No torch.
"""

from dataclasses import dataclass

from bmrl.budgets import largest, mean_turns
from bmrl.models import writes_plain
from bmrl.recipe import Recipe

EVAL_TASKS = 140  # of ALFWorld's valid_seen; the embedded split has 120
DEMONSTRATION_TURNS = 11  # of the exploring expert on the embedded games, on average


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated tokens of an episode's parts, chat template included."""

    opening: int
    observation: int  # what a later turn adds before its action
    action: int

    def episode(self, turns: int) -> int:
        """Tokens of an episode of so many turns; the first observation is the opening."""
        return self.opening + (turns - 1) * self.observation + turns * self.action

    def turns(self, context_tokens: int) -> int:
        """Most turns that fit."""
        room = context_tokens - self.opening + self.observation
        return max(0, room // (self.observation + self.action))


@dataclass(frozen=True, slots=True)
class Fit:
    """Largest budget against the context.

    Attributes:
        largest_budget: of training and evaluation, turns.
        typical_tokens: estimate for an episode of that many turns of ordinary length.
        typical_turns: largest budget that fits when turns are of ordinary length.
        long_turns: largest budget that fits when every turn is as long as it can be.
    """

    context_tokens: int
    largest_budget: int
    typical_tokens: int
    typical_turns: int
    long_turns: int


# Counted on embedded games of all six tasks, as typical (mean) and long (largest seen). In the words of the pocket
# tokenizer, 48 games: opening 128 and 227, observation 18 and 58, all admissible commands 144 and 285, command 4 and 6.
# In SmolLM2's tokens, with its template and the instructions, 60 games: opening 247 and 474, observation 37 and 179,
# all admissible commands 152 and 371, command 14 and 18. Other chat models are taken to need as many.
_PLAIN = Sizes(opening=132, observation=22, action=6), Sizes(opening=232, observation=62, action=0)
_CHAT = Sizes(opening=250, observation=38, action=14), Sizes(opening=480, observation=180, action=0)
_ADMISSIBLE_PLAIN = (145, 285)
_ADMISSIBLE_CHAT = (155, 370)


def sizes(recipe: Recipe) -> tuple[Sizes, Sizes]:
    """Tokens of an episode's parts, typical and at their longest; estimates, see above."""
    plain = recipe.model.new is not None or writes_plain(recipe.model.name)
    typical, long = _PLAIN if plain else _CHAT
    listed = recipe.env.args.get("admissible") is True
    more_typical, more_long = (_ADMISSIBLE_PLAIN if plain else _ADMISSIBLE_CHAT) if listed else (0, 0)
    turn_tokens = recipe.rollout.turn_tokens
    # How long thoughts will be is unknown: they count as long as they may be.
    action = turn_tokens if recipe.chat.think else min(typical.action, turn_tokens)
    return (
        Sizes(typical.opening + more_typical, typical.observation + more_typical, action),
        Sizes(long.opening + more_long, long.observation + more_long, turn_tokens),
    )


def fit(recipe: Recipe) -> Fit:
    """How the recipe's largest budget compares with its context."""
    typical, long = sizes(recipe)
    turns = max(largest(recipe.budget.train), *recipe.budget.eval)
    context = recipe.model.context_tokens
    return Fit(
        context_tokens=context,
        largest_budget=turns,
        typical_tokens=typical.episode(turns),
        typical_turns=typical.turns(context),
        long_turns=long.turns(context),
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a model reads in a rollout, writes in it, and goes through in the update."""

    read: float = 0.0
    written: float = 0.0
    trained: float = 0.0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.read + other.read, self.written + other.written, self.trained + other.trained)

    def __mul__(self, times: float) -> "Tokens":
        return Tokens(self.read * times, self.written * times, self.trained * times)

    def hours(self, rates: "Tokens") -> float:
        """How long they take at ``rates``, tokens a second."""
        pairs = ((self.read, rates.read), (self.written, rates.written), (self.trained, rates.trained))
        return sum(tokens / rate for tokens, rate in pairs if tokens) / 3600


def of_step(recipe: Recipe) -> Tokens:
    """A step of reinforcement learning, at most: all budgets are used up, and every group has a signal.

    The opening of a group is read once.
    """
    assert recipe.train is not None
    typical, _ = sizes(recipe)
    turns = mean_turns(recipe.budget.train)
    groups, size = recipe.rollout.tasks_per_step, recipe.rollout.group_size
    observations, written = (turns - 1) * typical.observation, turns * typical.action
    return Tokens(
        read=groups * (typical.opening + size * observations),
        written=groups * size * written,
        trained=groups * size * (typical.opening + observations + written) * recipe.train.epochs_per_step,
    )


def of_evaluation(recipe: Recipe) -> Tokens:
    """An evaluation on ``train.eval_tasks``; a policy that is told its budget plays each budget anew."""
    typical, _ = sizes(recipe)
    tasks = (recipe.train.eval_tasks if recipe.train is not None else None) or EVAL_TASKS
    budgets = [max(recipe.budget.eval)] if recipe.budget.announce == "none" else recipe.budget.eval
    read = sum(typical.opening + (turns - 1) * typical.observation for turns in budgets)
    return Tokens(read=tasks * read, written=tasks * sum(turns * typical.action for turns in budgets))


def of_run(recipe: Recipe) -> Tokens:
    """All steps and evaluations of a run."""
    if recipe.sft is not None:
        typical, _ = sizes(recipe)
        turns = min(recipe.sft.max_turns, DEMONSTRATION_TURNS)
        return Tokens(trained=recipe.sft.episodes * recipe.sft.epochs * typical.episode(turns))
    assert recipe.train is not None
    every, steps = recipe.train.eval_every, recipe.train.steps
    evaluations = 0 if not every else len({*range(0, steps + 1, every), steps})
    return of_step(recipe) * steps + of_evaluation(recipe) * evaluations
