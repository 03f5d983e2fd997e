"""The engine in plain Python: the answers of alfworld 0.4.2 on textworld 1.7.0, to the letter.

Its rules are those of alfred.pddl, its sentences those of alfred.twl2, quirks included, since an
agent trained here must meet the same world there:

* only a held object can be examined (a stray comma in alfred.pddl makes the other clause never
  true);
* "go to" is refused for a receptacle at the place where the agent already is;
* clean, heat, cool and "use" work on closed receptacles;
* "look" before the first move sees nothing;
* a command must match exactly, but for blanks around it.
"""

from collections.abc import Callable, Hashable, Iterable

from bmrl.envs.alfworld.game import Game

REFUSED = "Nothing happens."
_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see {}."
KNIVES = ("knife", "butterknife")
_CHANGES = (("clean", "sinkbasin"), ("heat", "microwave"), ("cool", "fridge"))

Command = tuple[Callable[..., str], tuple[str, ...]]


def listing(things: Iterable[str]) -> str:
    """The engine's enumeration: "nothing", "x", "x, and y", "x, y, and z"."""
    items = list(things)
    if len(items) < 2:
        return items[0] if items else "nothing"
    return ", ".join(items[:-1]) + ", and " + items[-1]


class Twin:
    """One game being played. State is a handful of sets; nothing is shared with other instances.

    Attributes:
        location: where the agent is.
        held: the object in hand; None: empty.
        opened, clean, hot, cool, sliced, toggled: things that are so now.
        inside: what lies in which receptacle.
        admissible: the commands accepted now, sorted.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self._able = (game.cleanable, game.heatable, game.coolable)
        self.reset()

    def reset(self) -> str:
        """Start anew; returns the opening text."""
        game = self.game
        start = game.initially
        self.location: Hashable = game.start
        self.held: str | None = None
        self.opened = set(start.get("opened", ()))
        self.clean = set(start.get("clean", ()))
        self.hot = set(start.get("hot", ()))
        self.cool = set(start.get("cool", ()))
        self.sliced = set(start.get("sliced", ()))
        self.toggled = set(start.get("toggled", ()))
        self.inside = {receptacle: set(content) for receptacle, content in game.inside.items()}
        self._objects_at = set(game.objects_at)
        # The engine lists an object "next to" a receptacle only once it was taken out of it.
        self._taken_from: set[tuple[str, str]] = set()
        self._list_commands()
        view = self._look()
        if not game.here[game.start]:
            # Only here the engine lists the room; a later "look" from there sees nothing.
            view = _MIDDLE.format(listing("a " + receptacle for receptacle in game.place))
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {game.sentence}."

    def fork(self) -> "Twin":
        """An independent copy in the same state: to try a command without playing it."""
        other = Twin.__new__(Twin)
        other.game, other._able = self.game, self._able
        other.location, other.held = self.location, self.held
        for name in ("opened", "clean", "hot", "cool", "sliced", "toggled"):
            setattr(other, name, set(getattr(self, name)))
        other.inside = {receptacle: set(content) for receptacle, content in self.inside.items()}
        other._objects_at, other._taken_from = set(self._objects_at), set(self._taken_from)
        other._list_commands()
        return other

    def step(self, command: str) -> str:
        """Carry out a command, if it is admissible now; returns the engine's answer."""
        command = command.strip()
        found = self._local.get(command)
        if found is None:
            target = command[6:]
            place = self.game.place.get(target) if command.startswith("go to ") else None
            if place is None or place == self.location:
                return REFUSED
            text = self._go(target)
        else:
            action, things = found
            text = action(*things)
        self._list_commands()
        return text

    @property
    def won(self) -> bool:
        """Whether the goal holds in this state."""
        game, goal = self.game, self.game.goal
        kinds = game.classes
        if goal.kind == "look_at_obj_in_light":
            if self.held is None or kinds[self.held] != goal.object:
                return False
            lit = self.toggled & game.toggleable
            near = (o for r in game.here[self.location] for o in self.inside[r])
            return any(kinds[o] == goal.lamp and o in lit for o in near)
        wanted = 2 if goal.kind == "pick_two_obj_and_place" else 1
        for receptacle in game.asked:
            if sum(kinds[o] == goal.object and self.ready(o) for o in self.inside[receptacle]) >= wanted:
                return True
        return False

    def ready(self, thing: str) -> bool:
        """Whether the object is as the goal wants it placed: clean, hot, cool or anyhow."""
        kind = self.game.goal.kind
        if kind == "pick_clean_then_place_in_recep":
            return thing in self.clean and thing in self.game.cleanable
        if kind == "pick_heat_then_place_in_recep":
            return thing in self.hot and thing in self.game.heatable
        if kind == "pick_cool_then_place_in_recep":
            return thing in self.cool and thing in self.game.coolable
        return True

    def accessible(self, receptacle: str) -> bool:
        """Whether its inside can be reached: never closed, or open now."""
        return receptacle in self.opened or receptacle not in self.game.openable

    def _list_commands(self) -> None:
        game, held = self.game, self.held
        local: dict[str, Command] = {"look": (self._look, ()), "inventory": (self._inventory, ())}
        if game.help:
            local["help"] = (self._help, ())
        for receptacle in game.here[self.location]:
            local["examine " + receptacle] = (self._describe, (receptacle,))
            accessible = self.accessible(receptacle)
            if receptacle in game.openable:
                verb, action = ("close ", self._close) if accessible else ("open ", self._open)
                local[verb + receptacle] = (action, (receptacle,))
            for thing in self.inside[receptacle]:
                if accessible and held is None and thing in game.portable:
                    local[f"take {thing} from {receptacle}"] = (self._take, (thing, receptacle))
                if thing in game.toggleable:
                    local["use " + thing] = (self._use, (thing,))
            if held is not None:
                self._list_uses_of(held, receptacle, accessible, local)
        if held is not None:
            local["examine " + held] = (self._examine, (held,))
            if game.classes.get(held) in KNIVES:
                for thing in game.sliceable:
                    if (thing, self.location) in self._objects_at:
                        local[f"slice {thing} with {held}"] = (self._slice, (thing, held))
        self._local = local
        # Two sorted runs: sorting them together costs next to nothing.
        here = self.location
        self.admissible = tuple(sorted([*sorted(local), *[go for go, there in game.travel if there != here]]))

    def _list_uses_of(self, held: str, receptacle: str, accessible: bool, local: dict[str, Command]) -> None:
        game = self.game
        kind = game.classes.get(receptacle, "")
        if accessible and (kind, game.classes.get(held, "")) in game.holds:
            local[f"move {held} to {receptacle}"] = (self._move, (held, receptacle))
        for (verb, tool), able in zip(_CHANGES, self._able, strict=True):
            if kind == tool and held in able:
                local[f"{verb} {held} with {receptacle}"] = (self._change, (verb, held, receptacle))

    def _ordered(self, things: Iterable[str]) -> list[str]:
        return sorted(things, key=self.game.rank.__getitem__)

    def _go(self, receptacle: str) -> str:
        self.location = self.game.place[receptacle]
        return f"You arrive at {receptacle}. " + self._describe(receptacle)

    def _open(self, receptacle: str) -> str:
        self.opened.add(receptacle)
        return f"You open the {receptacle}. " + self._describe(receptacle)

    def _close(self, receptacle: str) -> str:
        self.opened.discard(receptacle)
        return f"You close the {receptacle}."

    def _take(self, thing: str, receptacle: str) -> str:
        self.inside[receptacle].discard(thing)
        self._objects_at.discard((thing, self.location))
        self._taken_from.add((thing, receptacle))
        self.held = thing
        return f"You pick up the {thing} from the {receptacle}."

    def _move(self, thing: str, receptacle: str) -> str:
        self.inside[receptacle].add(thing)
        self._objects_at.add((thing, self.location))
        self._taken_from.discard((thing, receptacle))
        self.held = None
        return f"You move the {thing} to the {receptacle}."

    def _change(self, verb: str, thing: str, receptacle: str) -> str:
        if verb == "clean":
            self.clean.add(thing)
        else:
            gained, lost = (self.hot, self.cool) if verb == "heat" else (self.cool, self.hot)
            gained.add(thing)
            lost.discard(thing)
        return f"You {verb} the {thing} using the {receptacle}."

    def _use(self, thing: str) -> str:
        self.toggled.add(thing)
        return f"You turn on the {thing}."

    def _slice(self, thing: str, knife: str) -> str:
        self.sliced.add(thing)
        return f"You sliced the {thing} with the {knife}."

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.held}."

    def _help(self) -> str:
        return self.game.help

    def _look(self) -> str:
        here = self.game.here[self.location]
        if not here:
            return _MIDDLE.format("nothing")
        near = {
            thing
            for thing, location in self._objects_at
            if location == self.location and any((thing, r) in self._taken_from for r in here)
        }
        beside = listing("a " + thing for thing in self._ordered(near))
        return f"You are facing the {listing(here)}. Next to it, you see {beside}."

    def _describe(self, receptacle: str) -> str:
        openable = receptacle in self.game.openable
        if openable and receptacle not in self.opened:
            return f"The {receptacle} is closed."
        content = listing("a " + thing for thing in self._ordered(self.inside[receptacle]))
        if openable:
            return f"The {receptacle} is open. In it, you see {content}."
        return f"On the {receptacle}, you see {content}."

    def _examine(self, thing: str) -> str:
        if thing in self.game.movable:
            content = listing("a " + inner for inner in self.game.nested.get(thing, ()))
            return f"This is a normal {thing}. In it, you see {content}."
        state = self._state(thing)
        if state:
            return f"This is a {state} {thing}."
        if thing in self.toggled and thing in self.game.toggleable:
            return f"This {thing} is on."
        if thing in self.sliced and thing in self.game.sliceable:
            return f"This is a sliced {thing}."
        return f"There's nothing special about {thing}."

    def _state(self, thing: str) -> str:
        """What alfred.twl2 says of an object cleaned, heated or cooled; "" if it is neither."""
        clean, hot, cool = thing in self.clean, thing in self.hot, thing in self.cool
        warmth = "hot" if hot else "cool" if cool else ""
        if thing in self.sliced:
            if clean:
                return f"{warmth} and clean sliced" if warmth else "clean sliced"
            return f"{warmth} sliced" if warmth else ""
        if clean:
            return f"{warmth} and clean" if warmth else "clean"
        return "cold" if warmth == "cool" else warmth
