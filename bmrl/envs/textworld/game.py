"""A game in play: TextWorld's own rules on a record's facts."""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from bmrl.envs.textworld.package import knowledge
from bmrl.envs.textworld.record import Events, Fact, Record

COOKED = ("fried", "roasted", "grilled")
CUT = ("chopped", "sliced", "diced")


class Game:
    """The state of one game, from its start on.

    Attributes:
        record: what is played.
        names: id -> name.
        commands: what would be accepted now -> TextWorld's action for it, sorted by command.
        won, lost: whether it is over, and how.
    """

    def __init__(self, record: Record) -> None:
        from textworld.logic import State

        self.record = record
        self.world = record.task_id.partition("-")[0]
        self.names = dict(record.names)
        self._rules = knowledge(self.world)
        self._state = State(self._rules.logic, [_proposition(fact) for fact in record.facts])
        self._open = [(_conditions(wins), _conditions(fails)) for wins, fails in record.quests]
        # The rules would also prepare a meal of only some of the ingredients; TextWorld's compiled games do not.
        self._ingredients = sum(fact[0] == "base" for fact in record.facts)
        self.won = self.lost = False
        self._settle()

    def apply(self, command: str) -> bool:
        """Plays a command; False: it would not be accepted, and nothing happens."""
        action = self.commands.get(command)
        if action is None:
            return False
        if action.added or action.removed:  # to look around changes nothing
            self._state.apply(action)
            self._settle()
        return True

    def facts(self) -> list[Fact]:
        """All that is true now, sorted."""
        return sorted((fact.name, *(variable.name for variable in fact.arguments)) for fact in self._state.facts)

    def fork(self) -> "Game":
        """A copy that goes its own way from here."""
        other = object.__new__(Game)
        other.__dict__.update(self.__dict__)
        other._state, other._open = self._state.copy(), list(self._open)
        return other

    def _settle(self) -> None:
        """What follows from the state: quests that are done stay done, as in TextWorld."""
        applies = self._state.is_applicable
        self.lost = self.lost or any(applies(event) for _, fails in self._open for event in fails)
        # A quest is over once won; one that cannot be won only looks out for its failure.
        self._open = [(wins, fails) for wins, fails in self._open if not any(applies(event) for event in wins)]
        self.won = not self.lost and not any(wins for wins, _ in self._open)
        rules = self._rules.rules.values()
        found = self._state.all_applicable_actions(rules, self._rules.types.constants_mapping)
        self.commands: dict[str, Any] = {}
        if self.won or self.lost:
            return
        for command, action in sorted(((a.format_command(self.names), a) for a in found), key=_by_command):
            if command not in self.commands and (command != "prepare meal" or self._complete(action)):
                self.commands[command] = action

    def _complete(self, action: Any) -> bool:
        """Whether a meal would be made of all ingredients, each as the recipe has it."""
        if action.name != f"make/recipe/{self._ingredients}":
            return False
        facts = set(self.facts())
        for name, *things in facts:
            if name == "base" and treatment(facts, things[0]) != treatment(facts, things[1]):
                return False
        return True


def treatment(facts: Collection[Fact], thing: str) -> tuple[str, str]:
    """How something is cooked and cut, or, of an ingredient of the recipe, should be."""
    cooked = next((how for how in COOKED if (how, thing) in facts), "raw")
    return cooked, next((how for how in CUT if (how, thing) in facts), "uncut")


def _by_command(found: tuple[str, Any]) -> tuple[str, str]:
    return found[0], found[1].name


@lru_cache(maxsize=4096)
def _proposition(fact: Fact) -> Any:
    from textworld.logic import Proposition, Variable

    name, *things = fact
    return Proposition(name, [Variable(thing, thing.rpartition("_")[0] or thing) for thing in things])


def _conditions(events: Events) -> list[Any]:
    """Actions of TextWorld that are applicable where an event has happened."""
    from textworld.logic import Action

    found = []
    for event in events:
        conditions = [_proposition(fact) for fact in event]
        found.append(Action("trigger", conditions, conditions))
    return found
