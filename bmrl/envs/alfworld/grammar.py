"""Texts of ALFWorld's own engine: what a game's grammar says in a state.

The rules are the game's, read by textworld's parsers; conditions are asked of textworld's state. Only the
way from a rule to its text is bmrl's own, since textworld's copies all that is known for each symbol, and
evaluates whatever Python a game file holds.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any

from textworld.envs.pddl import logic as pddl
from textworld.envs.pddl import textgen
from textworld.logic import Placeholder, Rule, State, Variable

from bmrl.errors import BmrlError


@dataclass(frozen=True, slots=True)
class Thing:
    """What a grammar can say of a thing."""

    id: str
    name: str
    definite: str = "the"
    indefinite: str = "a"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Context:
    """What a text is derived from: the state, and which thing each placeholder stands for."""

    state: State
    things: Mapping[str, Thing]
    mapping: Mapping[Placeholder, Variable]

    @cached_property
    def words(self) -> dict[str, Thing]:
        return {placeholder.name: self.things[thing.name] for placeholder, thing in self.mapping.items()}

    def where(self, condition: str) -> "list[Context]":
        """One context for each way in which the condition holds, in the engine's order."""
        found = self.state.all_assignments(_rule(condition), self.mapping)
        return [replace(self, mapping={**self.mapping, **more}) for more in found]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A game's grammar without its goal sentence.

    Attributes:
        rules: how each symbol may be replaced; the first rule whose condition holds counts.
        kinds: template of the command and rule of the answer of each kind of action.
    """

    rules: Mapping[str, Any]
    kinds: Mapping[str, Any]

    def text(self, symbols: str, context: Context) -> str:
        return "".join(self._expand(symbol, context) for symbol in _symbols(symbols))

    def _expand(self, symbol: Any, context: Context) -> str:
        if isinstance(symbol, textgen.EvalSymbol):
            return str(eval(_code(symbol.expression), {"__builtins__": {}}, context.words))  # noqa: S307 (see _code)
        if isinstance(symbol, textgen.ConditionalSymbol):
            return "".join(self._each(symbol, context))
        if isinstance(symbol, textgen.ListSymbol):
            return self._listing(self._each(symbol.symbol, context), context)
        if isinstance(symbol, textgen.NonterminalSymbol):
            return "".join(self._expand(part, context) for part in self._parts(str(symbol), context))
        return str(symbol)

    def _each(self, symbol: Any, context: Context) -> list[str]:
        contexts = context.where(symbol.given) if symbol.given else [context]
        return [self._expand(symbol.expression, one) for one in contexts]

    def _listing(self, items: list[str], context: Context) -> str:
        if not items:
            return self.text("#list_empty#", context)
        if len(items) == 1:
            return items[0]
        head = self.text("#list_separator#", context).join(items[:-1])
        return head + self.text("#list_last_separator#", context) + items[-1]

    def _parts(self, symbol: str, context: Context) -> Any:
        for rule in self.rules[symbol]:
            if not rule.condition or context.where(rule.condition):
                return rule.rhs
        raise BmrlError(f"no rule of the game's grammar applies to #{symbol}#")


@lru_cache(maxsize=8)
def grammar(text: str) -> Grammar:
    """Parse a grammar without its goal sentence; some 0.2 s, once."""
    parsed = pddl.GameLogic(domain="", grammar=text)
    return Grammar(dict(parsed.grammar._rules), dict(parsed.actions))


@lru_cache(maxsize=1024)
def _symbols(text: str) -> tuple[Any, ...]:
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@lru_cache(maxsize=1024)
def _rule(condition: str) -> Rule:
    return Rule.parse_conjunctive_query(condition)


@lru_cache(maxsize=1024)
def predicates(template: str) -> frozenset[str]:
    """Predicates whose facts the text of a template depends on."""
    lists = [symbol.symbol for symbol in _symbols(template) if isinstance(symbol, textgen.ListSymbol)]
    asked = [*lists, *_symbols(template)]
    rules = [_rule(s.given) for s in asked if isinstance(s, textgen.ConditionalSymbol) and s.given]
    return frozenset(predicate.name.removeprefix("not_") for rule in rules for predicate in rule.preconditions)


@lru_cache(maxsize=1024)
def mentioned(template: str) -> frozenset[str]:
    """Words of a template, names of placeholders among them."""
    return frozenset(re.findall(r"\w+", template))


_HARMLESS = (ast.Expression, ast.BoolOp, ast.Or, ast.BinOp, ast.Add, ast.Attribute, ast.Name, ast.Constant, ast.Load)


@lru_cache(maxsize=1024)
def _code(expression: str) -> CodeType:
    """A grammar's expression, such as ``o.indefinite + ' ' + o.name``.

    Textworld evaluates whatever Python a game file holds; here it is names and attributes, or refused.
    """
    tree = ast.parse(expression.strip(), mode="eval")
    if not all(isinstance(node, _HARMLESS) for node in ast.walk(tree)):
        raise BmrlError(f"the game's grammar holds code: {expression}")
    return compile(tree, "grammar", "eval")
