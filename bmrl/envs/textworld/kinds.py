"""What an action was, judged by what the transcript has revealed."""

from copy import deepcopy
from random import Random

from bmrl.envs.base import INEFFECTIVE, INVALID, PROGRESS, REDUNDANT, REGRESS, SEARCH
from bmrl.envs.textworld.expert import Expert, without_commands
from bmrl.envs.textworld.game import COOKED, CUT
from bmrl.envs.textworld.memory import Memory
from bmrl.envs.textworld.plan import Errands, Missing, walk
from bmrl.envs.textworld.text import LOST, REFUSED, WON
from bmrl.envs.textworld.view import HELD

_LOOKS = {"go", "look", "examine", "inventory"}
_FAR = 1_000  # turns; farther than anything is


class Judge:
    """Follows one transcript with the memory of the exploring expert.

    Once all that is needed has been seen, the fewest turns to the goal by what is known decide. Until then a command
    that could show something unseen is search, and so is one that leads towards a place not yet looked into.

    Args:
        opening: the text that starts the game.

    Raises:
        BmrlError: it names no task that the expert knows.
    """

    def __init__(self, opening: str) -> None:
        self._expert = Expert(opening, Random(0), tidy=True)

    def fork(self) -> "Judge":
        """An independent copy: to judge several actions from one state."""
        return deepcopy(self)

    def judge(self, action: str, observation: str) -> str:
        """The kind of an action, one of `bmrl.envs.base.KINDS`, by what was known before it; its answer is noted."""
        action, text = action.strip(), without_commands(observation)
        before, after = self._expert, deepcopy(self._expert)
        after.observe(action, text)
        self._expert = after
        lines, verb = text.split("\n"), action.partition(" ")[0]
        if WON in lines or LOST in lines:
            return PROGRESS if WON in lines else REGRESS
        if lines[0] == REFUSED:
            # That a key does not fit is told in no other way.
            return SEARCH if after.memory.tried != before.memory.tried else INVALID
        could_show = _could_show(before.memory, action)
        was, now = before.distance(), after.distance()
        if was is not None and now != was:
            return PROGRESS if now is not None and now < was else REGRESS
        if could_show:
            return SEARCH
        if was is None:
            gained = _gathered(after) - _gathered(before)
            if gained:
                return PROGRESS if gained > 0 else REGRESS
            if _nearest(after) < _nearest(before):
                return SEARCH
            if _fetching(after) < _fetching(before):
                return PROGRESS
        return REDUNDANT if verb in _LOOKS else INEFFECTIVE


def _could_show(memory: Memory, action: str) -> bool:
    """Whether a command may show what has not been seen."""
    verb, _, rest = action.partition(" ")
    view = memory.view
    if verb == "go":
        return view.exits[view.here].get(rest, ("", None))[0] is None
    if verb == "open":
        return rest in view.closed
    if verb == "inventory":
        return not memory.carried
    return action == "examine cookbook" and memory.recipe is None


def _gathered(expert: Expert) -> int:
    """Of what is needed and known: how much is carried, and cooked and cut as it should be."""
    view = expert.memory.view
    total = int(view.where.get(expert.goal.take) == HELD)
    for food, cooking, cutting in expert.goal.recipe:
        states = view.states.get(food, set())
        total += (view.where.get(food) == HELD) + len(states & {cooking, cutting})
        total -= 10 * len(states & {*COOKED, *CUT} - {cooking, cutting})  # nothing undoes it
    return total


def _nearest(expert: Expert) -> int:
    """Turns to the nearest place not yet looked into, or to the cookbook while it is unread."""
    turns = [len(way) for _, _, way in expert.ways()]
    view = expert.memory.view
    if expert.wanted is None and expert.memory.recipe is None and view.room("cookbook") is not None:
        turns.append(_turns(expert, "examine cookbook", str(view.room("cookbook"))))
    return min(turns, default=_FAR)


def _fetching(expert: Expert) -> int:
    """Turns to the nearest thing that is needed, known and not carried yet."""
    view = expert.memory.view
    found = []
    for food, _, _ in expert.goal.recipe:
        todo = Errands(view)
        try:
            if todo.fetch(food):
                found.append(len(walk(view, todo)))
        except Missing:
            continue
    return min(found, default=_FAR)


def _turns(expert: Expert, command: str, room: str) -> int:
    todo = Errands(expert.memory.view)
    todo.add(command, room, 0)
    try:
        return len(walk(expert.memory.view, todo))
    except Missing:
        return _FAR
