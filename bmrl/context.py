"""How long episodes become, by estimate, and which budgets fit into the context."""

from dataclasses import dataclass

from bmrl.budgets import largest
from bmrl.models import writes_plain
from bmrl.recipe import Recipe


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
