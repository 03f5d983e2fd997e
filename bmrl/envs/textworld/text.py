"""What the player reads. TextWorld's games have texts of their own only when compiled; these are bmrl's."""

import re
from collections.abc import Sequence

from bmrl.envs.textworld.game import Game
from bmrl.envs.textworld.plan import TOOLS, VERBS
from bmrl.envs.textworld.view import DIRECTIONS, HELD, Goal, View

REFUSED = "You cannot do that."
WON, LOST = "You have won.", "You have lost."
RECIPE = "Recipe: "
_SUPPORTERS = {"s", "stove"}
_PLACED = re.compile(r" (from|into|on|with) ")
_COOKS = {tool: how for how, tool in TOOLS.items()}


def opening(game: Game, view: View, goal: Goal) -> str:
    """The start of a game."""
    if goal.take:
        beware = " The wrong thing loses the game." if game.world == "treasure" else ""
        task = f"find the {goal.take} and take it.{beware}"
    else:
        task = "cook the meal of the recipe in the cookbook, in the kitchen, and eat it."
    return f"{room(game, view)}\nYour task is to: {task}"


def room(game: Game, view: View) -> str:
    """All that is seen in a room, sorted by name."""
    kinds = {name: thing.rpartition("_")[0] for thing, name in game.names.items()}
    here = sorted(thing for thing, holder in view.where.items() if holder == view.here)
    fixed = [thing for thing in here if kinds[thing] in ("c", "oven", "toaster") or kinds[thing] in _SUPPORTERS]
    lines = [f"You are in the {view.here}.", *(_thing(view, thing, kinds[thing]) for thing in fixed)]
    if loose := [thing for thing in here if thing not in fixed]:
        lines.append(f"On the floor: {_list(view, loose)}.")
    return "\n".join([*lines, f"Exits: {_exits(view)}."])


def _thing(view: View, thing: str, kind: str) -> str:
    if thing in view.closed:
        return f"The {thing} is {'locked' if thing in view.locked else 'closed'}."
    if kind == "toaster":
        return f"There is a {thing}."
    return f"{'On' if kind in _SUPPORTERS else 'In'} the {thing}: {inside(view, thing)}."


def inside(view: View, holder: str) -> str:
    """What is in or on something, or in the player's hands."""
    return _list(view, sorted(thing for thing, where in view.where.items() if where == holder))


def _list(view: View, things: Sequence[str]) -> str:
    return ", ".join(f"{thing}{_states(view, thing)}" for thing in things) or "nothing"


def _states(view: View, thing: str) -> str:
    states = sorted(view.states.get(thing, ()))
    return f" ({', '.join(states)})" if states else ""


def _exits(view: View) -> str:
    exits = view.exits[view.here]
    return ", ".join(d + _door(view, exits[d][1]) for d in DIRECTIONS if d in exits) or "none"


def _door(view: View, door: str | None) -> str:
    if door is None:
        return ""
    return f" ({_door_state(view, door)} {door})"


def _door_state(view: View, door: str) -> str:
    return "locked" if door in view.locked else "closed" if door in view.closed else "open"


def answer(game: Game, command: str, before: View, after: View, goal: Goal) -> str:
    """What came of an accepted command."""
    verb, _, rest = command.partition(" ")
    if verb in ("go", "look"):
        return room(game, after)
    if verb == "inventory":
        return f"You carry: {inside(after, HELD)}."
    if verb == "examine":
        return _examine(game, after, rest, goal)
    if verb == "open" and rest in after.where:
        return f"You open the {rest}.\nIn the {rest}: {inside(after, rest)}."
    if verb == "cook":
        food, _, tool = rest.partition(" with ")
        burned = food in before.states and before.states[food] & set(TOOLS)
        return f"You burn the {food}." if burned else f"The {food} is {_COOKS[tool]} now."
    if verb in VERBS.values():
        food = rest.partition(" with ")[0]
        return f"The {food} is {next(cut for cut, v in VERBS.items() if v == verb)} now."
    if verb == "prepare":
        return "You prepare the meal and hold it."
    return f"You {verb} the {_PLACED.sub(lambda found: f' {found[1]} the ', rest)}."


def _examine(game: Game, view: View, thing: str, goal: Goal) -> str:
    kind = next((i.rpartition("_")[0] for i, name in game.names.items() if name == thing), "")
    if thing == "cookbook":
        return RECIPE + recipe(goal)
    if kind in ("c", "oven", "toaster") or kind in _SUPPORTERS:
        return _thing(view, thing, kind)
    if kind == "d":
        return f"The {thing} is {_door_state(view, thing)}."
    return f"You look at the {thing}{_states(view, thing)}."


def recipe(goal: Goal) -> str:
    """The recipe as the cookbook has it."""
    steps = []
    for food, cooking, cutting in goal.recipe:
        how = [word for word in (cutting, cooking) if word not in ("raw", "uncut")]
        steps.append(f"{food} ({', '.join(how)})" if how else food)
    return ", ".join(steps) + ". Then prepare meal."
