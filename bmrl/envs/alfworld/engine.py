"""ALFWorld's own engine: Fast Downward's state, textworld's logic and the game's grammar.

It plays a ``game.tw-pddl`` as textworld's ``PddlEnv`` does under ALFWorld, but does once what repeats:

* a game is translated from PDDL to SAS once, not four times for each load and reset;
* a grammar is parsed once, not for each game, and its templates and conditions once, not for each step;
* the command of a grounded action is derived once per game, not after each step;
* texts are derived without copying all that is known for each symbol.

Not thread-safe, as textworld is not: translator and parsers are global, and the translator swaps
``sys.stdout`` while it works. All engines of a process belong to one thread. Each has a copy of the native
library, which holds one state: make few engines and start game after game on them.

Importing this module imports textworld, some 0.7 s.
"""

import os
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import fast_downward
from fast_downward import interface
from textworld.envs.pddl import logic as pddl
from textworld.logic import GameLogic, Placeholder, Proposition, State, Type, Variable

from bmrl.envs.alfworld.game import player_names
from bmrl.envs.alfworld.grammar import Context, Thing, grammar, mentioned, predicates
from bmrl.envs.alfworld.official import UNKNOWN, sentence_of, without_sentence
from bmrl.envs.alfworld.twin import REFUSED
from bmrl.envs.worker import describe
from bmrl.errors import BmrlError

GAMES = 32  # translated games that a process keeps, some 2 MB each
# Libraries of closed engines, for the next ones. None is ever unloaded: it has registered handlers for the
# end of the process, which would then be called where nothing is.
_IDLE: list[Any] = []


@dataclass(frozen=True, slots=True)
class _Action:
    """A grounded action; what it does to the state is the native library's affair.

    Attributes:
        kind: which of the grammar's actions.
        mapping: its arguments.
    """

    kind: str
    mapping: Mapping[Placeholder, Variable]


@dataclass(frozen=True, slots=True)
class _Translated:
    """A game's PDDL, read and translated.

    Attributes:
        sas: the same in Fast Downward's format.
        types: of each object.
        logic: the hierarchy of types.
        facts: what the problem says of the beginning.
        parameters: of each kind of action.
        fluent: predicates that actions change.
        actions, commands: grounded actions met so far and their commands, by the operator's number.
        texts: commands by what their templates mention.
        known: facts met so far, by Fast Downward's spelling.
    """

    sas: bytes
    types: Mapping[str, str]
    logic: GameLogic
    facts: tuple[Proposition, ...]
    parameters: Mapping[str, tuple[Placeholder, ...]]
    fluent: frozenset[str]
    actions: dict[int, _Action] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)
    texts: dict[tuple[str, ...], str] = field(default_factory=dict)
    known: dict[bytes, Proposition] = field(default_factory=dict)

    def fact(self, atom: Any) -> Proposition:
        """What a native atom says."""
        spelled = atom._name
        fact = self.known.get(spelled)
        if fact is None:
            fact = self.known[spelled] = atom.get_fact(self.types)
        return fact

    def action(self, operator: Any) -> _Action:
        """The grounded action of a native operator."""
        known = self.actions.get(operator.id)
        if known is None:
            kind, *things = operator.name.split()
            # The translator adds parameters of its own ("exists") behind those that are named.
            pairs = zip(self.parameters[kind], things, strict=False)
            mapping = {placeholder: Variable(thing, placeholder.type) for placeholder, thing in pairs}
            known = self.actions[operator.id] = _Action(kind, mapping)
        return known


class Engine:
    """Plays games, one at a time.

    Attributes:
        admissible: the commands accepted now, sorted.
        won: whether the goal holds.
    """

    def __init__(self) -> None:
        self.admissible: tuple[str, ...] = ()
        self.won = False
        self._lib: Any = _IDLE.pop() if _IDLE else _library()

    def start(self, raw: Mapping[str, Any]) -> str:
        """Starts a game; returns the opening text.

        Args:
            raw: a ``game.tw-pddl``, with the texts ``pddl_domain``, ``pddl_problem`` and ``grammar``.

        Raises:
            BmrlError: textworld cannot read it.
        """
        try:
            text = without_sentence(raw["grammar"])
            self._grammar, sentence = grammar(text), sentence_of(raw["grammar"])
            self._game = _translated(raw["pddl_domain"], raw["pddl_problem"], text)
        except (Exception, SystemExit) as error:  # parsers of three formats; one exits
            raise BmrlError(f"textworld cannot read the game: {describe(error)}") from error
        self._lib.load_sas(self._game.sas)
        self._state = State(self._game.logic, self._game.facts)
        atoms = (pddl.Atom * self._lib.get_state_size())()
        self._lib.get_state(atoms)
        found = map(self._game.fact, atoms)
        self._state.add_facts(fact for fact in found if not fact.is_negation)
        names = player_names(thing.name for thing in self._state.variables)
        self._things = {thing: Thing(thing, name) for thing, name in names.items()}
        opening = self._grammar.text("#intro#", self._context({}))
        self._look_around()
        return opening.replace(UNKNOWN, sentence)

    def step(self, command: str) -> str:
        """Carries out a command, if it is admissible now; returns the answer."""
        command = command.strip()
        found = self._commands.get(command)
        if found is None:
            return REFUSED
        operator, action = found
        effects = (pddl.Atom * operator.nb_effect_atoms)()
        self._lib.apply_operator(operator.id, effects)
        for effect in effects:
            fact = self._game.fact(effect)
            self._state.remove_fact(fact.negate())
            self._state.add_fact(fact)
        answer = self._grammar.text(self._grammar.kinds[action.kind].feedback_rule, self._context(action.mapping))
        self._look_around()
        return answer

    def close(self) -> None:
        """Gives the native library back; the engine cannot be used any more."""
        self._lib.cleanup()
        _IDLE.append(self._lib)
        self._lib = None

    def _context(self, mapping: Mapping[Placeholder, Variable]) -> Context:
        return Context(self._state, self._things, mapping)

    def _look_around(self) -> None:
        self.won = self._lib.check_goal()
        operators = (fast_downward.Operator * self._lib.get_applicable_operators_count())()
        self._lib.get_applicable_operators(operators)
        # A condition with "or" makes several operators of one action, of one name: the first counts,
        # and so does the first action of those that have the same command.
        self._commands: dict[str, tuple[Any, _Action]] = {}
        for operator in operators:
            action = self._game.action(operator)
            self._commands.setdefault(self._command(operator.id, action), (operator, action))
        self.admissible = tuple(sorted(self._commands))

    def _command(self, number: int, action: _Action) -> str:
        known = self._game.commands.get(number)
        if known is not None:
            return known
        template = self._grammar.kinds[action.kind].template
        if predicates(template) & self._game.fluent:
            return self._grammar.text(template, self._context(action.mapping))
        # "go to" does not depend on where one is: few commands have many actions.
        words = mentioned(template)
        key = (action.kind, *(thing.name for placeholder, thing in action.mapping.items() if placeholder.name in words))
        text = self._game.texts.get(key) or self._grammar.text(template, self._context(action.mapping))
        self._game.texts[key] = self._game.commands[number] = text
        return text


@lru_cache(maxsize=GAMES)
def _translated(domain: str, problem: str, text: str) -> _Translated:
    """`text` is the grammar, on which the commands depend that are kept."""
    with _arguments_kept():
        task, sas = fast_downward.pddl2sas(domain, problem)
    logic = GameLogic()
    for kind in task.types:
        with suppress(ValueError):  # the root of all types is there already, and is named twice
            logic.types.add(Type(kind.name, kind.supertype_names))
    types = {thing.name: thing.type_name for thing in task.objects}
    atoms = [a for a in task.init if isinstance(a, fast_downward.translate.pddl.conditions.Atom) and a.predicate != "="]
    effects = [effect.literal.predicate for action in task.actions for effect in action.effects]
    if unknown := {action.name for action in task.actions} - set(grammar(text).kinds):
        raise ValueError(f"its grammar does not know {', '.join(sorted(unknown))}")
    return _Translated(
        sas=sas.encode("utf-8"),
        types=types,
        logic=logic,
        facts=tuple(Proposition(a.predicate, [Variable(arg, types[arg]) for arg in a.args]) for a in atoms),
        parameters={
            action.name: tuple(Placeholder(p.name.strip("?"), p.type_name) for p in action.parameters)
            for action in task.actions
        },
        fluent=frozenset(effects),
    )


@contextmanager
def _arguments_kept() -> Iterator[None]:
    """The translator puts arguments of its own into ``sys.argv``."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


def _library() -> Any:
    """A copy of Fast Downward of one's own; the file is gone from the disk when this returns."""
    whole = interface.DOWNWARD_LIB_PATH
    with tempfile.TemporaryDirectory() as folder:
        slim = Path(folder) / "downward.so"
        slim.write_bytes(_mapped(Path(whole)))
        # load_lib copies from this path.
        interface.DOWNWARD_LIB_PATH = os.fspath(slim)
        try:
            return fast_downward.load_lib()
        finally:
            interface.DOWNWARD_LIB_PATH = whole


def _mapped(path: Path) -> bytes:
    """What the dynamic loader needs of a library: 1 of 34 MB, the rest is debugging information.

    Each copy takes its size on the disk for as long as it is open, hence this. Source: the program headers
    of the ELF format, 64 bit, little endian; anything else is returned whole.
    """
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            return head + file.read()
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(start)
        table = file.read(size * count)
        parts = [struct.unpack_from("<8xQ16xQ", table, size * i) for i in range(count)]  # offset, bytes in the file
        file.seek(0)
        return file.read(max(offset + length for offset, length in parts))
