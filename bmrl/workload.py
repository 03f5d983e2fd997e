"""Tokens of a step and of a run, by estimate, and how long they take. No torch."""

from dataclasses import dataclass

from bmrl.budgets import mean_turns
from bmrl.context import sizes
from bmrl.recipe import Recipe

EVAL_TASKS = 140  # of ALFWorld's valid_seen; the embedded split has 120
DEMONSTRATION_TURNS = 11  # of the exploring expert on the embedded games, on average
PLAN_TURNS = 6  # mean of the embedded games' shortest plans


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
    turns = mean_turns(recipe.budget.train, steps=recipe.train.steps, plan_turns=PLAN_TURNS)
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
