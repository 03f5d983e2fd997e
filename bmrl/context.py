"""How long episodes become, by estimate, and which budgets fit into the context."""

import json
from dataclasses import dataclass
from pathlib import Path

from bmrl import budgets
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


# Counted in the words of the pocket tokenizer on 48 generated games of all six tasks, as typical
# (mean) and long (largest seen): opening 128 and 227, observation 18 and 58, all admissible
# commands 144 and 285, command 4 and 6. A chat model spells the same text in about 1.6 times as
# many tokens (assumed, not measured), and its template and instructions come on top.
_PLAIN = Sizes(opening=132, observation=22, action=6), Sizes(opening=232, observation=62, action=0)
_CHAT = Sizes(opening=320, observation=45, action=14), Sizes(opening=460, observation=110, action=0)
_ADMISSIBLE_PLAIN = (145, 285)
_ADMISSIBLE_CHAT = (230, 460)


def fit(recipe: Recipe) -> Fit:
    """How the recipe's largest budget compares with its context; an estimate, see the sizes
    above."""
    plain = recipe.model.new is not None or writes_plain(recipe.model.name)
    typical, long = _PLAIN if plain else _CHAT
    listed = recipe.env.args.get("admissible") is True
    more_typical, more_long = (_ADMISSIBLE_PLAIN if plain else _ADMISSIBLE_CHAT) if listed else (0, 0)
    turn_tokens = recipe.rollout.turn_tokens
    # How long thoughts will be is unknown: they count as long as they may be.
    action = turn_tokens if recipe.chat.think else min(typical.action, turn_tokens)
    typical = Sizes(typical.opening + more_typical, typical.observation + more_typical, action)
    long = Sizes(long.opening + more_long, long.observation + more_long, turn_tokens)
    largest = max(budgets.largest(recipe.budget.train), *recipe.budget.eval)
    context = recipe.model.context_tokens
    return Fit(
        context_tokens=context,
        largest_budget=largest,
        typical_tokens=typical.episode(largest),
        typical_turns=typical.turns(context),
        long_turns=long.turns(context),
    )


def writes_plain(name: str) -> bool:
    """Whether a model is one that bmrl made: no tags around its commands."""
    if name == "pocket":
        return True
    try:
        config = json.loads((Path(name).expanduser() / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError, RuntimeError):
        return False
    return isinstance(config, dict) and config.get("action_format") == "plain"
