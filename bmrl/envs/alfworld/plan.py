"""Shortest plans with full knowledge, in closed form, from any state of a game.

A plan is an order of *stops*: at a receptacle do one thing. Every place can be reached from every
other in one turn and nothing ever needs closing, so the turns of an order are: its stops, plus the
changes of place, plus the closed receptacles it must open. What is left is to try every order that
can be best:

* the hand holds the wrong thing: put it down first, here, at the next stop, or anywhere;
* then take, change (clean, heat, cool), place; or take and switch on; for two objects, one after
  the other.

Receptacles that cannot make a difference (same class of place, both open or both closed) are tried
once, which keeps a state at some tens of orders.
"""

from collections.abc import Hashable, Iterable, Iterator

from bmrl.envs.alfworld.tables import TOOLS
from bmrl.envs.alfworld.twin import Twin

Stop = tuple[str, str, str]  # verb, object, receptacle


def distance(twin: Twin) -> int | None:
    """Fewest turns from this state to the goal; 0 if it is won, None if it is out of reach."""
    if twin.won:
        return 0
    return min((_turns(twin, order) for order in _orders(twin)), default=None)


def lost(twin: Twin) -> bool:
    """Whether the goal of a game that is not won is out of reach: its `distance` is None."""
    return next(_orders(twin), None) is None


def shortest_plan(twin: Twin) -> tuple[str, ...] | None:
    """A shortest list of commands to the goal from this state; None where it cannot be reached."""
    if twin.won:
        return ()
    # min() keeps the first of equals, and orders come in the engine's order: always the same.
    best = min(_orders(twin), key=lambda order: _turns(twin, order), default=None)
    return None if best is None else tuple(_commands(twin, best))


def _turns(twin: Twin, order: tuple[Stop, ...]) -> int:
    place, closed_class, opened = twin.game.place, twin.game.openable, twin.opened
    at, turns = twin.location, len(order)
    first: set[str] = set()
    for verb, _, receptacle in order:
        if place[receptacle] != at:
            at = place[receptacle]
            turns += 1
        if verb == "visit":
            turns -= 1
        elif (
            verb in ("take", "move")
            and receptacle in closed_class
            and receptacle not in opened
            and receptacle not in first
        ):
            first.add(receptacle)
            turns += 1
    return turns


def _commands(twin: Twin, order: tuple[Stop, ...]) -> Iterator[str]:
    at, opened = twin.location, set(twin.opened)
    for verb, thing, receptacle in order:
        if twin.game.place[receptacle] != at:
            at = twin.game.place[receptacle]
            yield f"go to {receptacle}"
        if verb in ("take", "move"):
            if receptacle in twin.game.openable and receptacle not in opened:
                opened.add(receptacle)
                yield f"open {receptacle}"
            yield f"{verb} {thing} {'from' if verb == 'take' else 'to'} {receptacle}"
        elif verb == "use":
            yield f"use {thing}"
        elif verb != "visit":
            yield f"{verb} {thing} with {receptacle}"


def _orders(twin: Twin) -> Iterator[tuple[Stop, ...]]:
    kind = twin.game.goal.kind
    if kind == "look_at_obj_in_light":
        return _light_orders(twin)
    if kind == "pick_two_obj_and_place":
        return _pair_orders(twin)
    return _single_orders(twin)


def _sources(twin: Twin) -> list[tuple[str, str | None]]:
    """Objects of the wanted class with the receptacle each is in; None: in hand."""
    game, wanted = twin.game, twin.game.wanted
    found: list[tuple[str, str | None]] = [] if twin.held not in wanted else [(twin.held, None)]
    for receptacle, content in twin.inside.items():
        if not wanted.isdisjoint(content) and receptacle in game.place:
            found += [(o, receptacle) for o in sorted(content & wanted, key=game.rank.__getitem__)]
    return found


def _distinct(twin: Twin, receptacles: Iterable[str], near: set[Hashable]) -> list[str]:
    """One of each sort of receptacle: by its place, if that is in `near`, and by being open."""
    chosen: dict[tuple[Hashable, bool], str] = {}
    for receptacle in receptacles:
        at = twin.game.place[receptacle]
        chosen.setdefault((at if at in near else None, twin.accessible(receptacle)), receptacle)
    return list(chosen.values())


def _drops(twin: Twin, source: str | None, useful: Iterable[str]) -> list[tuple[Stop, ...]]:
    """Ways to have the hand free for the object in `source`; nothing to do if it is the one held.

    `useful` are receptacles that are opened later anyway, so that opening one now is no loss.
    """
    held, game = twin.held, twin.game
    if source is None or held is None:
        return [()]
    holders = game.holders(held) if held in game.classes else ()
    near = {twin.location, game.place[source]}
    places = dict.fromkeys(_distinct(twin, holders, near))
    places.update(dict.fromkeys(r for r in (source, *useful) if r in holders))
    return [(("move", held, receptacle),) for receptacle in places]


def _take(thing: str, source: str | None) -> tuple[Stop, ...]:
    return () if source is None else (("take", thing, source),)


def _single_orders(twin: Twin) -> Iterator[tuple[Stop, ...]]:
    game = twin.game
    verb = TOOLS.get(game.goal.kind, ("", ""))[1]
    able = {"clean": game.cleanable, "heat": game.heatable, "cool": game.coolable}.get(verb)
    tools, targets = game.tools, game.targets
    for thing, source in _sources(twin):
        if able is not None and thing not in able:
            continue
        changes: list[tuple[Stop, ...]] = [((verb, thing, tool),) for tool in tools]
        if twin.ready(thing):
            changes = [()]
        near = {twin.location, *(game.place[tool] for tool in tools)}
        near |= {game.place[source]} if source else set()
        # The source itself may be a target (place it back): it is open by then, so it is its own
        # sort.
        ends = dict.fromkeys(_distinct(twin, targets, near))
        ends.update(dict.fromkeys([source] if source in targets and source else []))
        for end in ends:
            for change in changes:
                rest = (*_take(thing, source), *change, ("move", thing, end))
                for drop in _drops(twin, source, (end,)):
                    yield (*drop, *rest)


def _pair_orders(twin: Twin) -> Iterator[tuple[Stop, ...]]:
    game, sources = twin.game, _sources(twin)
    near = {twin.location, *(game.place[source] for _, source in sources if source)}
    targets = game.targets
    homes = {source for _, source in sources}
    ends = dict.fromkeys([t for t in targets if t in homes])
    ends.update(dict.fromkeys(_distinct(twin, [t for t in targets if t not in homes], near)))
    for end in ends:
        placed = sum(source == end for _, source in sources)
        outside = [(thing, source) for thing, source in sources if source != end]
        for first, home in outside:
            one = (*_take(first, home), ("move", first, end))
            if placed:
                yield from ((*drop, *one) for drop in _drops(twin, home, (end,)))
                continue
            # An object of the wanted class in hand is always best placed first.
            if outside[0][1] is None and home is not None:
                break
            for second, other in outside:
                if other is None or second == first:
                    continue
                both = (*one, *_take(second, other), ("move", second, end))
                yield from ((*drop, *both) for drop in _drops(twin, home, (end, other)))


def _light_orders(twin: Twin) -> Iterator[tuple[Stop, ...]]:
    game = twin.game
    lamps = [
        (thing, receptacle)
        for receptacle, content in twin.inside.items()
        if not game.lamps.isdisjoint(content) and receptacle in game.place
        for thing in sorted(content & game.lamps, key=game.rank.__getitem__)
    ]
    held = twin.held
    for thing, source in _sources(twin):
        ready = _take(thing, source)
        for lamp, home in lamps:
            if lamp != thing:
                last = ("visit" if lamp in twin.toggled else "use", lamp, home)
                yield from ((*drop, *ready, last) for drop in _drops(twin, source, ()))
        # The lamp itself is in hand: where it is put down is where it is switched on.
        if held in game.lamps and source is not None:
            verb = "visit" if held in twin.toggled else "use"
            for drop in _drops(twin, source, ()):
                yield (*drop, *ready, (verb, held, drop[0][2]))
