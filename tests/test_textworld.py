"""TextWorld's games as far as they need no TextWorld: what is embedded, the planner, the expert's reading."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from bmrl import target
from bmrl.check import missing
from bmrl.envs import make
from bmrl.envs.textworld import generator, splits
from bmrl.envs.textworld.expert import Expert
from bmrl.envs.textworld.memory import Memory
from bmrl.envs.textworld.plan import Missing, errands, walk
from bmrl.envs.textworld.record import Record, record_from_json
from bmrl.envs.textworld.view import HELD, Goal, View
from bmrl.errors import BmrlError, UsageError
from bmrl.files import recipes_path
from bmrl.pocket import build_tokenizer
from bmrl.recipe import load
from bmrl.run.compose import make_player

WORLDS = splits.WORLDS


@pytest.mark.parametrize("world", WORLDS)
def test_embedded_games_are_whole_and_no_two_are_the_same(world: str) -> None:
    games = {split: splits.embedded(world, split) for split in splits.SPLITS}
    assert {split: len(records) for split, records in games.items()} == splits.SPLITS
    every = [record for records in games.values() for record in records]
    assert len({record.content for record in every}) == len({record.task_id for record in every}) == 500
    assert all(record.plan and len(record.search_turns) == 4 for record in every)
    for split, records in games.items():
        assert splits.content_hash(records) == splits.embedded_hash(world, split)
        assert record_from_json(records[0].to_json()) == records[0]


def test_unseen_games_have_what_no_other_has() -> None:
    known, unseen = (
        {(food, *how) for record in records for food, *how in recipe_of(record)}
        for records in (
            (*splits.embedded("cooking", "train"), *splits.embedded("cooking", "valid_seen")),
            splits.embedded("cooking", "valid_unseen"),
        )
    )
    # Foods that need nothing, such as salt, are prepared alike everywhere.
    assert not {entry for entry in known & unseen if entry[1:] != ("raw", "uncut")}
    for world in ("coin", "treasure"):
        longest = max(dict(record.settings)["length"] for record in splits.embedded(world, "train"))
        lengths = [dict(record.settings)["length"] for record in splits.embedded(world, "valid_unseen")]
        shortest = min(dict(record.settings)["length"] for record in splits.embedded(world, "train"))
        assert min(lengths) > shortest and max(lengths) > longest


def recipe_of(record):
    names, facts = dict(record.names), set(record.facts)
    for predicate, *ids in record.facts:
        if predicate == "base":
            cooked = next((how for how in ("fried", "roasted", "grilled") if (how, ids[1]) in facts), "raw")
            yield (
                names[ids[0]],
                cooked,
                next((h for h in ("chopped", "sliced", "diced") if (h, ids[1]) in facts), "uncut"),
            )


def two_rooms(**changes) -> View:
    """A kitchen with a fridge and a stove; behind a closed door to the north a pantry with a shelf."""
    view = View(
        here="kitchen",
        exits={"kitchen": {"north": ("pantry", "door")}, "pantry": {"south": ("kitchen", "door")}},
        where={
            "fridge": "kitchen",
            "stove": "kitchen",
            "table": "kitchen",
            "shelf": "pantry",
            "egg": "fridge",
            "salt": "shelf",
            "knife": "table",
        },
        closed={"door", "fridge"},
    )
    return replace(view, **changes)


def test_a_shortest_walk_runs_all_errands() -> None:
    goal = Goal(recipe=(("egg", "fried", "uncut"), ("salt", "raw", "uncut")), kitchen="kitchen")
    # Door, north, take, south: 4. Fridge, take, fry: 3. Prepare and eat: 2.
    commands = walk(two_rooms(), errands(two_rooms(), goal))
    assert len(commands) == 9
    assert commands[-2:] == ["prepare meal", "eat meal"]
    # From the pantry there is one way less, and the door is opened all the same.
    assert len(walk(two_rooms(here="pantry"), errands(two_rooms(here="pantry"), goal))) == 8
    # Cut as well, it needs the knife, and the cut.
    cut = Goal(recipe=(("egg", "fried", "diced"),), kitchen="kitchen")
    assert sorted(walk(two_rooms(), errands(two_rooms(), cut))) == [
        "cook egg with stove",
        "dice egg with knife",
        "eat meal",
        "open fridge",
        "prepare meal",
        "take egg from fridge",
        "take knife from table",
    ]


def test_what_cannot_be_undone_or_reached_has_no_plan() -> None:
    goal = Goal(recipe=(("egg", "fried", "uncut"),), kitchen="kitchen")
    with pytest.raises(Missing):
        errands(two_rooms(states={"egg": {"roasted"}}), goal)
    with pytest.raises(Missing):
        errands(two_rooms(), Goal(take="coin"))
    shut = two_rooms(locked={"door": None})
    with pytest.raises(Missing):
        walk(shut, errands(shut, Goal(take="salt")))


def test_a_locked_door_costs_its_key() -> None:
    view = two_rooms(locked={"door": "passkey"})
    view.where["passkey"] = "table"
    # Key, unlock, open, north, take.
    assert walk(view, errands(view, Goal(take="salt"))) == [
        "take passkey from table",
        "unlock door with passkey",
        "open door",
        "go north",
        "take salt from shelf",
    ]
    view.where["passkey"] = HELD
    assert len(walk(view, errands(view, Goal(take="salt")))) == 4


OPENING = """You are in the hall.
The chest is closed.
On the table: carrot (diced, fried), cookbook.
On the floor: coin, old key.
Exits: north (locked red door), east.
Your task is to: find the pearl and take it. The wrong thing loses the game."""


def test_memory_holds_what_was_read() -> None:
    memory = Memory(OPENING)
    view = memory.view
    assert view.here == "hall"
    assert view.closed == {"chest", "red door"} and view.locked == {"red door": None}
    assert view.exits == {"hall": {"north": (None, "red door"), "east": (None, None)}}
    assert {thing: view.room(thing) for thing in view.where} == dict.fromkeys(
        ("chest", "table", "carrot", "cookbook", "coin", "old key"), "hall"
    )
    assert view.where["carrot"] == "table" and view.states["carrot"] == {"diced", "fried"}
    memory.note("take old key", "You take the old key.")
    memory.note("unlock red door with old key", "You cannot do that.")
    assert memory.held() == ["old key"] and memory.tried == {("red door", "old key")}
    memory.note("examine cookbook", "Recipe: red onion (diced, fried), salt. Then prepare meal.")
    assert memory.recipe == (("red onion", "fried", "diced"), ("salt", "raw", "uncut"))
    memory.note("go east", "You are in the attic.\nIn the chest 2: nothing.\nExits: west.")
    assert view.exits["hall"]["east"] == ("attic", None) and view.exits["attic"] == {"west": ("hall", None)}


def test_the_expert_reads_and_does_not_peek() -> None:
    """It is given texts alone: the same texts and stream give the same actions, whatever the game may be."""
    answers = {
        "open chest": "You open the chest.\nIn the chest: pearl.",
        "go east": "You are in the attic.\nOn the floor: nothing.\nExits: west.",
        "inventory": "You carry: nothing.",
        "go west": OPENING.partition("\nYour task")[0],
    }
    plays = []
    for _ in range(2):
        expert, said = Expert(OPENING, Random(3)), []
        while "take pearl from chest" not in said:
            said.append(expert.act())
            expert.observe(said[-1], answers.get(said[-1], "You cannot do that."))
        plays.append(said)
    assert plays[0] == plays[1]
    # Whether the red door's key is carried is looked up first; then the chest is a turn away, as is the attic.
    assert plays[0][0] == "inventory"
    assert "go north" not in plays[0] and "take coin" not in plays[0]
    with pytest.raises(BmrlError, match="cannot read the task"):
        Expert("You are in the hall.", Random(0))


def test_settings_that_make_no_sense_are_one_line() -> None:
    for name, args, told in (
        ("textworld_cooking", {"rooms": 6, "recipe": 2}, "counts with source: generated"),
        ("textworld_cooking", {"source": "generated", "rooms": 7}, "rooms 7; known: 1, 6, 9, 12"),
        ("textworld_coin", {"source": "generated", "length": 4, "rooms": 17}, "from 4 to 16"),
        ("textworld_treasure", {"source": "generated", "mode": "wild"}, "known: easy, medium, hard"),
        ("textworld_treasure", {"source": "nowhere"}, "known: embedded, generated"),
        ("textworld_treasure", {"source": "generated", "games": 0}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=told):
            make(name, **args)
    with pytest.raises(UsageError, match="unknown split 'test'"):
        make("textworld_coin").tasks("test")


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("coin", {"games": 2.5}),
        ("coin", {"games": "3"}),
        ("coin", {"seed": True}),
        ("coin", {"rooms": "9"}),
        ("coin", {"length": 5.0}),
        ("treasure", {"mode": None}),
        ("treasure", {"rooms": []}),
        ("cooking", {"cook": 1}),
        ("cooking", {"recipe": True}),
    ],
)
def test_settings_of_another_type_are_one_line(name: str, odd: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        make(f"textworld_{name}", source="generated", **odd)
    assert next(iter(odd)) in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Games "made" are embedded ones; who made some is listed."""
    made: list[str] = []

    def games(world: str, namespace: str, count: int, **more: object) -> Iterator[Record]:
        made.append(namespace)
        return iter(splits.embedded(world, "train")[:count])

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(generator, "games", games)
    monkeypatch.setattr(splits, "_searched", lambda record: record)
    monkeypatch.setattr(splits, "known", lambda world: frozenset())
    return made


def kept() -> tuple[Record, ...]:
    splits.generated.cache_clear()
    return splits.generated("coin", "train", splits.Asked(3, 0, ()))


def test_a_damaged_cache_is_made_anew(cached: list[str]) -> None:
    expected = splits.embedded("coin", "train")[:3]
    assert kept() == kept() == expected
    assert len(cached) == 1
    (path,) = splits.cache_folder().iterdir()
    good = path.read_bytes()
    head, *lines = gzip.decompress(good).splitlines(keepends=True)
    damaged = [
        b"",
        b"garbage",
        good[:-20],
        *map(gzip.compress, (b"", b"[" * 100_000, b"\xff", head, head + lines[0], b"".join([head, *lines[::-1]]))),
    ]
    for number, data in enumerate(damaged, start=2):
        path.write_bytes(data)
        assert kept() == expected, data[:40]
        assert len(cached) == number
        assert path.read_bytes() == good


def test_a_cache_that_cannot_be_is_one_line(cached: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(BmrlError, match=r"generated games cannot be kept.*XDG_CACHE_HOME") as caught:
        kept()
    assert "\n" not in str(caught.value)


def test_another_world_for_a_target_that_has_its_own() -> None:
    for name in ("expert", "pocket"):
        env = target.find(name, "last", "valid_unseen", world="textworld_coin").recipe.env
        assert (env.name, env.args) == ("textworld_coin", {"source": "embedded"})
    assert target.find("expert", "last", world="alfworld").recipe.env == target.find("expert", "last").recipe.env
    with pytest.raises(UsageError, match="--env: unknown environment 'coin'; known: alfworld, textworld_coin"):
        target.find("expert", "last", world="coin")
    with pytest.raises(UsageError, match="--split: the embedded games have no split test"):
        target.find("oracle", "last", "test", world="textworld_coin")


@pytest.mark.parametrize(("model", "world", "told"), [
    ("pocket", "", "pocket was trained for alfworld, not for textworld_coin"),
    ("x/y", "textworld_cooking", "x/y was trained for textworld_cooking, not for textworld_coin"),
    ("pocket", "textworld_coin", None),
    ("x/y", "", None),  # nobody knows
])  # fmt: skip
def test_a_model_of_another_world_is_told_in_one_line(
    model: str, world: str, told: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = build_tokenizer(["go north"], words=9, context_tokens=64, world=world)
    words.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # it stays with the files of the model
    recipe = load(recipes_path("quickstart.yaml"), [f"model.name={model}", "env.name=textworld_coin", "env.args={}"])
    make_player(recipe, SimpleNamespace(tokenizer=tokenizer), None, rows=1)  # type: ignore[arg-type]
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]


@pytest.mark.skipif(find_spec("textworld") is not None, reason="textworld is installed")
def test_without_the_package_one_line_says_what_to_install() -> None:
    with pytest.raises(BmrlError, match=r"pip install 'bmrl\[textworld\]'"):
        make("textworld_coin").tasks("train")
    recipe = load(recipes_path("textworld_sft.yaml"))
    assert missing(recipe) == ["the package textworld is not installed: pip install 'bmrl[textworld]'"]
