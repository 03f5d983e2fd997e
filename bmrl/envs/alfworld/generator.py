"""Makes games in ALFWorld's format from its tables and the layouts of iTHOR's rooms.

Receptacles and poses are the room's own; what lies where is drawn. Rooms 10, 219, 308 and 424,
which ALFRED keeps for its unseen split, are used for nothing else here either.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.plan import shortest_plan
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.tables import KINDS, TOOLS, Pose, class_of, tables
from bmrl.envs.alfworld.twin import Twin
from bmrl.errors import UsageError

VERSION = 1  # part of every seed: raise it when the same seed would give another game

UNSEEN_ROOMS = (10, 219, 308, 424)
ROOMS = tuple(base + i for base in (0, 200, 300, 400) for i in range(1, 31))
TRAIN_ROOMS = tuple(room for room in ROOMS if room not in UNSEEN_ROOMS)

# How many there are of a receptacle that the layouts leave out (it is no target for driving there).
_EXTRA = {
    "StoveBurner": (4, 4),
    "TowelHolder": (1, 2),
    "HandTowelHolder": (1, 2),
    "SideTable": (1, 2),
    "Shelf": (1, 3),
    "ArmChair": (1, 2),
    "CounterTop": (1, 2),
}
# Common things, so that a room with a short list of classes is not bare. The names are THOR's.
_COMMON = {
    "Kitchen": "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Knife Ladle Lettuce Mug Pan"
    " PepperShaker Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato",
    "LivingRoom": "Book Box CreditCard KeyChain Laptop Newspaper Pillow RemoteControl Statue Watch Vase",
    "Bedroom": "AlarmClock Book CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil Pillow",
    "Bathroom": "Candle Cloth HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Towel",
}
_LAMP_SPOTS = ("CoffeeTable", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable")
_NEEDED = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What makes a game easier or harder; None leaves it as the room and its draws give it.

    Attributes:
        receptacles: how many there are to look into.
        closed: share of them that are closed at the start, 0 to 1.
        copies: how many there are of the object wanted.
        distractors: how many objects there are besides, a lamp that is needed not counted.
        plan: fewest and most turns of a shortest plan.
    """

    receptacles: int | None = None
    closed: float | None = None
    copies: int | None = None
    distractors: int | None = None
    plan: tuple[int, int] | None = None


PLAIN = Difficulty()


class _Scene:
    """A room being filled: receptacles with poses, objects with the receptacle each lies in."""

    def __init__(self, room: int, rng: Random) -> None:
        layout, table = tables().rooms[room], tables()
        self.poses: dict[str, Pose] = dict(layout.receptacles)
        self.objects: dict[str, str] = {}
        self._rng = rng
        kinds = set(layout.classes)
        have = {class_of(thing) for thing in self.poses}
        missing = (kinds & table.receptacles) - have
        if layout.type == "Kitchen":
            missing |= {"SinkBasin"} - have
        for kind in sorted(missing):
            for _ in range(rng.randint(*_EXTRA.get(kind, (1, 1)))):
                self._add_receptacle(kind)
        self.by_class: dict[str, list[str]] = {}
        for thing in sorted(self.poses):
            self.by_class.setdefault(class_of(thing), []).append(thing)
        common = _COMMON[layout.type].split()
        self.kinds = sorted((kinds | set(common)) & table.portable)
        self.start = self._free_pose((0, 0, rng.randrange(4), 30))

    def thin(self, receptacles: int | None, closed: float | None, needed: str) -> bool:
        """Keep only so many receptacles, one of the class ``needed`` among them; False where there are too few."""
        order = self._rng.sample(sorted(self.poses), len(self.poses))
        tools = [thing for thing in order if class_of(thing) == needed][:1]
        order = [*tools, *(thing for thing in order if thing not in tools)]
        openable = [thing for thing in order if class_of(thing) in tables().openable]
        rest = [thing for thing in order if thing not in openable]
        if closed is None:
            number, kept = receptacles or len(order), order[: receptacles or len(order)]
        else:
            # As many as the share allows, unless a number is asked for.
            sizes = [receptacles] if receptacles else range(len(order), 0, -1)
            fitting = (n for n in sizes if round(closed * n) <= len(openable) and n - round(closed * n) <= len(rest))
            number = next(fitting, 0)
            shut = round(closed * number)
            kept = [*openable[:shut], *rest[: number - shut]]
        if not number or len(kept) < number or not set(tools) <= set(kept):
            return False
        self.poses = {thing: pose for thing, pose in self.poses.items() if thing in kept}
        self.by_class = {
            kind: [thing for thing in things if thing in kept]
            for kind, things in self.by_class.items()
            if any(thing in kept for thing in things)
        }
        return True

    def _free_pose(self, near: Pose) -> Pose:
        x, z, turn, horizon = near
        taken, reach = set(self.poses.values()), 2
        while True:
            dx, dz = self._rng.randint(-reach, reach), self._rng.randint(-reach, reach)
            pose = (x + dx, z + dz, turn, horizon)
            if pose not in taken:
                return pose
            reach += 1

    def _add_receptacle(self, kind: str) -> None:
        near = self._rng.choice(sorted(self.poses.values()))
        pose = self._free_pose(near)
        # THOR calls a basin by the fixture that it belongs to: Sink|...|SinkBasin.
        stem, tail = (kind[:-5], "|" + kind) if kind.endswith("Basin") else (kind, "")
        self.poses[_thing_id(stem, pose, self._rng) + tail] = pose

    def put(self, kind: str, receptacle: str) -> None:
        while True:
            thing = _thing_id(kind, self.poses[receptacle], self._rng)
            if thing not in self.objects:
                self.objects[thing] = receptacle
                return

    def scatter(self, kind: str, classes: list[str]) -> None:
        """Lay one object down: mostly anywhere, at times in any *class* of receptacle.

        Anywhere alone would put nearly all things into a kitchen's thirty cabinets; classes alone
        would leave the cabinets bare and make every search short.
        """
        if self._rng.random() < 0.25:
            classes = [self._rng.choice(classes)]
        self.put(kind, self._rng.choice([r for name in classes for r in self.by_class[name]]))

    def holders(self, kind: str) -> list[str]:
        """Classes of receptacles present that may hold the class of object."""
        holds = tables().holds
        return [name for name in sorted(self.by_class) if kind in holds[name]]


def _thing_id(stem: str, pose: Pose, rng: Random) -> str:
    x = pose[0] / 4 + rng.uniform(-0.8, 0.8)
    y = rng.uniform(0.2, 1.8)
    z = pose[1] / 4 + rng.uniform(-0.8, 0.8)
    return f"{stem}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}"


def make_game(kind: str, seed: str, rooms: Collection[int] = TRAIN_ROOMS, difficulty: Difficulty = PLAIN) -> Record:
    """Make one game: equal arguments give the equal game, on every machine.

    Args:
        kind: one of `KINDS`.
        seed: any text.
        rooms: rooms to choose from; those that the kind of task cannot use are left out.
        difficulty: what the game must be like.

    Raises:
        UsageError: unknown kind, or none of the rooms can have such a task.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of task {kind!r}; known: {', '.join(KINDS)}")
    table = tables()
    fitting = [r for r in sorted(rooms) if table.rooms[r].type in table.room_types[kind]]
    if not fitting:
        raise UsageError(f"none of the rooms {sorted(rooms)} can have a task {kind}")
    shortest, longest = difficulty.plan or (1, 10**9)
    more = "" if difficulty == PLAIN else f"/{difficulty}"
    rng = Random(f"bmrl-alfworld-{VERSION}/{kind}/{seed}/{fitting}{more}")
    # A rare wish may take thousands of draws; one that cannot be had must be refused in seconds.
    for _ in range(10_000 if difficulty == PLAIN else 1_000):
        record = _attempt(kind, seed, rng.choice(fitting), rng, difficulty)
        if record is not None:
            plan = shortest_plan(Twin(game_from_record(record)))
            if plan and shortest <= len(plan) <= longest:
                return replace(record, plan=plan)
    asked = ", ".join(f"{name} {value}" for name, value in asdict(difficulty).items() if value is not None)
    raise UsageError(f"none of {len(fitting)} rooms can have a task {kind}" + (f" with {asked}" if asked else ""))


def _attempt(kind: str, seed: str, room: int, rng: Random, difficulty: Difficulty) -> Record | None:
    """One random setting; None where the draw cannot be made a task."""
    scene, table = _Scene(room, rng), tables()
    tool, verb = TOOLS.get(kind, ("", ""))
    if difficulty.receptacles is not None or difficulty.closed is not None:
        needed = next((name for name in scene.by_class if name.lower() == tool), "")
        if not scene.thin(difficulty.receptacles, difficulty.closed, needed):
            return None
    if tool and tool not in {name.lower() for name in scene.by_class}:
        return None
    able = table.actions[_NEEDED[verb]] if verb else table.portable
    choices = [k for k in scene.kinds if k in able and k != "DeskLamp" and scene.holders(k)]
    if not choices:
        return None
    wanted = rng.choice(choices)
    receptacle = lamp = ""
    if kind == "look_at_obj_in_light":
        lamp = "DeskLamp"
        spots = [name for name in _LAMP_SPOTS if name in scene.by_class]
        if not spots:
            return None
        scene.scatter(lamp, spots)
    else:
        targets = scene.holders(wanted)
        if len(targets) < 2:
            return None
        receptacle = rng.choice(targets)
    holders = {name: [s for s in scene.holders(name) if name != wanted or s != receptacle] for name in scene.kinds}
    for name in scene.kinds:
        number = rng.choice((1, 1, 2, 2, 3))
        if name == wanted:
            # No spare copies unless asked for, so that it has to be searched for.
            number = difficulty.copies or (2 if kind == "pick_two_obj_and_place" else 1)
        elif difficulty.distractors is not None:
            number = 0
        for _ in range(number if holders[name] else 0):
            scene.scatter(name, holders[name])
    others = [name for name in scene.kinds if name != wanted and holders[name]]
    for _ in range(difficulty.distractors or 0):
        if not others:
            return None
        name = rng.choice(others)
        scene.scatter(name, holders[name])
    words = {"obj": wanted.lower(), "recep": receptacle.lower(), "toggle": lamp.lower()}
    ids = sorted(scene.poses)
    index = {thing: i for i, thing in enumerate(ids)}
    date, time, micro = (
        rng.randrange(20190906, 20190920),
        rng.randrange(10**6),
        rng.randrange(10**6),
    )
    folder = f"{kind}-{wanted}-None-{receptacle or lamp}-{room}"
    return Record(
        task_id=f"{folder}/trial_T{date:08d}_{time:06d}_{micro:06d}",
        kind=kind,
        room=room,
        seed=seed,
        object=wanted,
        receptacle=receptacle,
        lamp=lamp,
        sentence=rng.choice(table.templates[kind]).format(**words),
        start=scene.start,
        receptacles=tuple((thing, scene.poses[thing]) for thing in ids),
        objects=tuple((thing, index[r]) for thing, r in sorted(scene.objects.items())),
    )


def games(
    seed: int | str,
    count: int,
    rooms: Collection[int] = TRAIN_ROOMS,
    *,
    namespace: str = "sft",
    avoid: Collection[tuple[object, ...]] = (),
    kinds: Sequence[str] = KINDS,
    difficulty: Difficulty = PLAIN,
) -> Iterator[Record]:
    """Games of all kinds in turn, for demonstrations or for more training games.

    Args:
        seed: with `namespace` the key of every draw. The embedded splits use a namespace of their
            own.
        count: how many.
        rooms: rooms to choose from.
        avoid: `Record.content` of games that must not be made again, such as
            `splits.embedded_contents()`.
        kinds: kinds of tasks.
        difficulty: what the games must be like.

    Raises:
        UsageError: there are no such games, or not so many that differ.
    """
    seen = set(avoid)
    ids: set[str] = set()
    made = index = 0
    while made < count:
        kind = kinds[made % len(kinds)]
        record = make_game(kind, f"{namespace}/{seed}/{index}", rooms, difficulty)
        index += 1
        if index > 100 * (made + 10):
            raise UsageError(f"only {made} games of {kind} differ; ask for fewer, or for less in particular")
        if record.content not in seen and record.task_id not in ids:
            seen.add(record.content)
            ids.add(record.task_id)
            made += 1
            yield record
