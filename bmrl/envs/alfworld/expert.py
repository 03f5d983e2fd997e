"""An expert that explores: it knows the world in general and of this game only what it has read.

It is the teacher of demonstrations and, played with seeds, the `search_reference`: what an agent
can be expected to solve that must find things first.
"""

import re
from collections import Counter
from functools import lru_cache
from random import Random
from typing import NamedTuple

from bmrl.envs.alfworld.memory import Memory, thing_class
from bmrl.envs.alfworld.tables import KINDS, TOOLS, tables
from bmrl.errors import BmrlError

# Lamps stand on furniture; ALFWorld's tables do not list them.
_LAMP_SPOTS = frozenset({"coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable"})
# How much likelier an object is in a class of receptacle that may hold it than in any other, and
# how much less likely where it is to be brought to.
_UNLIKELY = 0.02
_JITTER = 0.25  # spread of the search order from play to play, as a share of the score


class _Goal(NamedTuple):
    kind: str
    object: str
    receptacle: str
    lamp: str


@lru_cache(maxsize=1)
def _sentences() -> list[tuple[str, re.Pattern[str]]]:
    words = {"obj": "object", "recep": "receptacle", "toggle": "lamp"}
    fields = {word: rf"(?P<{name}>\w+)" for word, name in words.items()}
    return [(kind, re.compile(template.format(**fields))) for kind in KINDS for template in tables().templates[kind]]


def read_goal(opening: str) -> _Goal:
    """The goal in an opening text.

    Raises:
        BmrlError: the sentence is none of ALFWorld's templates, such as one written by a person.
    """
    sentence = opening.partition("Your task is to: ")[2].split("\n")[0].removesuffix(".")
    for kind, pattern in _sentences():
        if found := pattern.fullmatch(sentence):
            parts = found.groupdict()
            return _Goal(kind, parts["object"], parts.get("receptacle", ""), parts.get("lamp", ""))
    raise BmrlError(f"the exploring expert cannot read the goal {sentence!r}")


class Expert:
    """A player: alternate `act` and `observe`.

    Actions that someone else chose may come in between, as long as `observe` is told of them: the
    next `act` goes on from wherever they led.

    Args:
        opening: the text that starts the game; a list of commands at its end is not looked at.
        rng: its own random stream; it settles the search order.
        tidy: search equally likely places in the order of the opening text instead.
    """

    def __init__(self, opening: str, rng: Random, *, tidy: bool = False) -> None:
        self.goal = read_goal(opening)
        self.searching = False
        self._memory = Memory(without_commands(opening))
        receptacles = self._memory.receptacles
        self._numbers = Counter(thing_class(r) for r in receptacles)
        jitter = 0.0 if tidy else _JITTER
        self._jitter = {r: rng.uniform(1 - jitter, 1 + jitter) for r in receptacles}
        order = receptacles if tidy else rng.sample(receptacles, len(receptacles))
        self._order = {r: i for i, r in enumerate(order)}
        self._holds = {name.lower(): {kind.lower() for kind in kinds} for name, kinds in tables().holds.items()}

    @property
    def receptacles(self) -> list[str]:
        """Those the opening names, in its order."""
        return list(self._memory.receptacles)

    @property
    def here(self) -> list[str]:
        """Those the agent stands at, in the order of the opening."""
        return [receptacle for receptacle in self._memory.receptacles if receptacle in self._memory.at]

    def observe(self, action: str, observation: str) -> None:
        """Take note of the answer to an action, its own or a forced one."""
        self._memory.note(action.strip(), without_commands(observation))

    def act(self) -> str:
        """The next command; `searching` then says whether it only looks for something."""
        self.searching = False
        memory, goal = self._memory, self.goal
        held = memory.held
        if held is None:
            return self._fetch()
        if thing_class(held) != goal.object:
            return self._put_away(held)
        tool_class, verb = TOOLS.get(goal.kind, ("", ""))
        if verb and (verb, held) not in memory.done:
            tool = self._nearest([r for r in memory.receptacles if thing_class(r) == tool_class])
            if tool is not None:
                return self._go(tool) or f"{verb} {held} with {tool}"
        if goal.kind == "look_at_obj_in_light":
            return self._light()
        target = self._target()
        if target is None:
            return "look"
        return self._reach(target) or f"move {held} to {target}"

    def _fetch(self) -> str:
        """Hand empty: take a known object of the wanted class, or look for one."""
        memory, goal = self._memory, self.goal
        target = self._target() if goal.kind == "pick_two_obj_and_place" else None
        known = {
            receptacle: thing
            for receptacle, inside in memory.contents.items()
            for thing in sorted(inside)
            if thing_class(thing) == goal.object
            and receptacle != target
            and f"take {thing} from {receptacle}" not in memory.refused
        }
        source = self._nearest(list(known))
        if source is None:
            return self._search()
        return self._reach(source) or f"take {known[source]} from {source}"

    def _light(self) -> str:
        memory = self._memory
        seen = {
            receptacle: thing
            for receptacle, inside in memory.contents.items()
            for thing in inside
            if thing_class(thing) == self.goal.lamp and f"use {thing}" not in memory.refused
        }
        spot = self._nearest(list(seen))
        if spot is None:
            return self._search()
        return self._go(spot) or f"use {seen[spot]}"

    def _put_away(self, held: str) -> str:
        """Hand holds the wrong thing: lay it down where that costs least."""
        kind, memory = thing_class(held), self._memory
        holders = [
            r
            for r in memory.receptacles
            if kind in self._holds.get(thing_class(r), ()) and f"move {held} to {r}" not in memory.refused
        ]
        spot = self._nearest(holders)
        if spot is None:
            # Nothing known will take it: be told what is here, and start to doubt.
            memory.refused.clear()
            return "look"
        return self._reach(spot) or f"move {held} to {spot}"

    def _search(self) -> str:
        """Go on to the receptacle most likely, per turn, to show what is still missing."""
        self.searching = True
        memory = self._memory
        unseen = [r for r in memory.receptacles if r not in memory.contents]
        if not unseen:
            # Everything was seen and it is not there: something was missed, begin again.
            memory.contents.clear()
            memory.refused.clear()
            return "look"
        best = max(unseen, key=lambda r: self._chance(r) / self._cost(r))
        step = self._reach(best)
        # Seen from a place it shares with another: only "examine" shows what lies on it.
        return step or f"examine {best}"

    def _chance(self, receptacle: str) -> float:
        """How likely it is to hold what is missing, up to a factor."""
        goal, kind = self.goal, thing_class(receptacle)
        chance = 0.0
        if self._memory.held is None:
            holders = [k for k in self._numbers if goal.object in self._holds.get(k, ())]
            chance = self._share(kind, holders)
            if kind == goal.receptacle:
                chance *= _UNLIKELY
        if goal.lamp and not any(
            thing_class(o) == goal.lamp for inside in self._memory.contents.values() for o in inside
        ):
            chance += self._share(kind, [k for k in self._numbers if k in _LAMP_SPOTS])
        return chance * self._jitter[receptacle]

    def _share(self, kind: str, likely: list[str]) -> float:
        """A receptacle's share: things are spread over receptacles more than over classes."""
        if kind not in likely:
            return _UNLIKELY / len(self._memory.receptacles)
        number = self._numbers[kind]
        return 0.25 / (len(likely) * number) + 0.75 / sum(self._numbers[k] for k in likely)

    def _cost(self, receptacle: str) -> int:
        """Turns until its inside has been seen."""
        memory = self._memory
        away = receptacle not in memory.at
        return max(1, away + memory.closed(receptacle))

    def _target(self) -> str | None:
        """Where to place: for two objects where one already is, else the nearest."""
        memory, goal = self._memory, self.goal
        held = memory.held
        fitting = [
            r
            for r in memory.receptacles
            if thing_class(r) == goal.receptacle and f"move {held} to {r}" not in memory.refused
        ]
        if goal.kind == "pick_two_obj_and_place":
            started = [r for r in fitting if any(thing_class(o) == goal.object for o in memory.contents.get(r, ()))]
            return self._nearest(started or fitting)
        return self._nearest(fitting)

    def _nearest(self, receptacles: list[str]) -> str | None:
        """Fewest turns to have it open before one; ties as this play's order has them."""
        memory = self._memory
        return min(
            receptacles,
            key=lambda r: ((r not in memory.at) + memory.closed(r), self._order.get(r, 0)),
            default=None,
        )

    def _go(self, receptacle: str) -> str | None:
        return None if receptacle in self._memory.at else f"go to {receptacle}"

    def _reach(self, receptacle: str) -> str | None:
        """The next command on the way to have the receptacle open before one; None: it is so."""
        if step := self._go(receptacle):
            return step
        return f"open {receptacle}" if self._memory.closed(receptacle) else None


def without_commands(text: str) -> str:
    """What the engine said, without the list of commands that may follow it."""
    return text.partition("\nCommands: ")[0]
