"""The twin against transcripts of the real engine, made by tests/fixtures/record_alfworld.py."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bmrl.envs.alfworld import official
from bmrl.envs.alfworld.export import problem_pddl
from bmrl.envs.alfworld.game import Game, game_from_record
from bmrl.envs.alfworld.record import record_from_json
from bmrl.envs.alfworld.tables import KINDS, tables
from bmrl.envs.alfworld.twin import Twin

FILES = sorted((Path(__file__).parent / "fixtures" / "alfworld").glob("*.json.gz"))
VERBS = {
    *("go", "open", "close", "take", "move", "use", "clean", "heat", "cool", "slice", "examine"),
    *("look", "inventory", "help"),
}
# One pattern for each sentence that the engine's grammar can say; {} stands for a thing.
SENTENCES = (
    "You arrive at {}. On the {}, you see nothing.",
    "You arrive at {}. On the {}, you see a {}.",
    "You arrive at {}. On the {}, you see a {}, and a {}.",
    "You arrive at {}. The {} is closed.",
    "You arrive at {}. The {} is open. In it, you see nothing.",
    "You open the {}. The {} is open. In it, you see a {}.",
    "You close the {}.",
    "You pick up the {} from the {}.",
    "You move the {} to the {}.",
    "You clean the {} using the {}.",
    "You heat the {} using the {}.",
    "You cool the {} using the {}.",
    "You turn on the {}.",
    "You sliced the {} with the {}.",
    "You are carrying: a {}.",
    "You are not carrying anything.",
    "The {} is closed.",
    "You are facing the {}. Next to it, you see nothing.",
    "You are facing the {}, and {}. Next to it, you see nothing.",
    "You are in the middle of a room. Looking quickly around you, you see nothing.",
    "This is a normal {}. In it, you see nothing.",
    "This is a normal {}. In it, you see a {}, and a {}.",
    "This is a hot and clean sliced {}.",
    "This is a cool and clean sliced {}.",
    "This is a clean sliced {}.",
    "This is a hot sliced {}.",
    "This is a cool sliced {}.",
    "This is a hot and clean {}.",
    "This is a cool and clean {}.",
    "This is a hot {}.",
    "This is a clean {}.",
    "This is a cold {}.",
    "This {} is on.",
    "This is a sliced {}.",
    "There's nothing special about {}.",
    "Nothing happens.",
)


def load(path: Path) -> dict[str, Any]:
    fixture: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return fixture


def as_official(problem: str, sentence: str) -> Game:
    """The game from a file in ALFWorld's format; of its grammar only what differs matters."""
    text = json.dumps("\n" + tables().help)
    grammar = f'"rhs": "Your task is to: {sentence}."\n"rhs": {text}\n'
    return official.parse({"pddl_problem": problem, "grammar": grammar}, "fixture")


def games(fixture: dict[str, Any]) -> list[Game]:
    if "game" in fixture:
        return [as_official(fixture["game"]["pddl_problem"], fixture["game"]["sentence"])]
    record = record_from_json(fixture["record"])
    return [game_from_record(record), as_official(problem_pddl(record), record.sentence)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.split(".")[0])
def test_twin_answers_like_the_engine(path: Path) -> None:
    fixture = load(path)
    for game in games(fixture):
        twin = Twin(game)
        for _ in range(2):  # a second play must not remember the first
            assert twin.reset() == fixture["opening"]
            commands = set(fixture["admissible"])
            assert list(twin.admissible) == sorted(commands)
            for number, (command, answer, came, went, won) in enumerate(fixture["steps"]):
                assert twin.step(command) == answer, (number, command)
                commands = commands - set(went) | set(came)
                assert list(twin.admissible) == sorted(commands), (number, command)
                assert twin.won == won, (number, command)


def test_transcripts_cover_the_engine() -> None:
    fixtures = [load(path) for path in FILES]
    steps = [step for fixture in fixtures for step in fixture["steps"]]
    done = {command.split()[0] for command, answer, *_ in steps if answer != "Nothing happens."}
    assert done == VERBS
    won = {
        record_from_json(fixture["record"]).kind
        for fixture in fixtures
        if "record" in fixture and any(step[4] for step in fixture["steps"])
    }
    assert won == set(KINDS)
    answers = {answer for _, answer, *_ in steps}
    for sentence in SENTENCES:
        pattern = re.escape(sentence).replace(r"\{\}", r"[a-z]+ \d+")
        assert any(re.fullmatch(pattern, answer) for answer in answers), sentence
    refused = {command for command, answer, *_ in steps if answer == "Nothing happens."}
    assert {"", "Look", "look.", "x" * 10_000} <= refused
    assert any(not command.isascii() for command in refused)
    # Admissible a turn ago, not any more.
    assert any(re.fullmatch(r"take [a-z]+ \d+ from [a-z]+ \d+", command) for command in refused)
