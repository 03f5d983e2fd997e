"""TextWorld's games played by TextWorld's own rules; needs the package textworld."""

import random
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from test_textworld import WORLDS

from bmrl.baselines import evaluate
from bmrl.cli.games import replay
from bmrl.envs import demonstrations, make
from bmrl.envs.textworld import generator, reference, splits, text
from bmrl.envs.textworld.demonstration import demonstration
from bmrl.envs.textworld.env import task_of
from bmrl.envs.textworld.game import Game
from bmrl.envs.textworld.plan import plan
from bmrl.errors import UsageError

# Looked for, not imported: that would take seconds of every quick run that only collects this file.
ABSENT = pytest.mark.skipif(find_spec("textworld") is None, reason="needs textworld: pip install 'bmrl[textworld]'")
pytestmark = [pytest.mark.slow, ABSENT]

# Harder than the embedded ones: several ingredients, some of them carried; doors; keys.
HARD = {
    "cooking": {"recipe": 3, "take": 2, "rooms": 9, "open": True, "cook": True, "cut": True},
    "coin": {"length": 6, "rooms": 20, "mode": "random"},
    "treasure": {"length": 5, "rooms": 8, "mode": "hard"},
}


def sample(world, count=6):
    return [
        *generator.games(world, "test", count),
        *generator.games(world, "test", count // 2, settings=HARD[world], larger=True),
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_every_stored_plan_wins_and_each_of_its_commands_is_one_nearer(world):
    env = make(f"textworld_{world}")
    for split in splits.SPLITS:
        for task in env.tasks(split):
            assert replay(env, task) is None, task.task_id
    for task in [*env.tasks("train")[:60], *env.tasks("valid_unseen")[:20]]:
        env.reset(task)
        for left in range(len(task.plan), 0, -1):
            assert env.distance() == left
            step = env.step(task.plan[-left])
            assert step.won == step.terminated == (left == 1) and step.reward == (left == 1)
        assert env.distance() == 0


@pytest.mark.parametrize("world", WORLDS)
def test_distance_is_exact(world):
    """One more than the least after any command, in states reached at random; None only where the game is lost."""
    for record in sample(world):
        game, rng = Game(record), Random(record.seed)
        for _ in range(8):
            after = {}
            for command in game.commands:
                after[command] = game.fork()
                after[command].apply(command)
            plans = {command: plan(other) for command, other in after.items()}
            assert all((plans[command] is None) == other.lost for command, other in after.items())
            assert len(plan(game)) == 1 + min(len(commands) for commands in plans.values() if commands is not None)
            # Verbs evenly, or nearly all would look at something.
            verb = rng.choice(sorted({command.split()[0] for command in game.commands}))
            chosen = rng.choice([command for command in game.commands if command.split()[0] == verb])
            game = game if after[chosen].won or after[chosen].lost else after[chosen]


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_game_whatever_the_hashes(world):
    stored = splits.embedded(world, "valid_seen")[:3]
    program = (
        "from dataclasses import replace\nfrom bmrl.envs.textworld import generator, reference\n"
        f"for record in generator.games({world!r}, 'embedded/valid_seen', 3):\n"
        "    print(replace(record, search_turns=reference.search_turns(record)).to_json())"
    )
    for seed in ("1", "2"):
        root = str(Path(__file__).parent.parent)
        env = {"PYTHONPATH": root, "PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
        assert done.stdout.splitlines() == [record.to_json() for record in stored], done.stderr


def test_nothing_global_is_read_or_left_behind():
    random.seed(5)
    np.random.seed(5)
    state, legacy, arguments = random.getstate(), np.random.get_state()[1].tolist(), list(sys.argv)
    records = [record for world in WORLDS for record in generator.games(world, "global", 2)]
    env = make("textworld_cooking")
    for record in records:
        env.reset(task_of(record))
        env.step(record.plan[0])
    assert random.getstate() == state and np.random.get_state()[1].tolist() == legacy and sys.argv == arguments
    from textworld.generator.data import KnowledgeBase
    from textworld.generator.maker import GameMaker

    assert "lambda" not in KnowledgeBase.load.__qualname__ + GameMaker.set_walkthrough.__qualname__
    random.seed(6)
    again = [record for world in WORLDS for record in generator.games(world, "global", 2)]
    assert again == records


def test_two_games_at_once_do_not_disturb_each_other():
    tasks = [task_of(record) for record in generator.games("cooking", "apart", 2)]

    def moves(env, task, count=25):
        rng, texts = Random(task.task_id), [env.reset(task)]
        yield texts
        for _ in range(count):
            if env.admissible:
                texts.append(env.step(rng.choice(env.admissible)).observation)
            yield texts

    apart = [list(moves(make("textworld_cooking"), task))[-1] for task in tasks]
    one, two = (moves(make("textworld_cooking", admissible=True), task) for task in tasks)
    together = list(zip(one, two, strict=True))[-1]
    assert [[line.partition("\nCommands: ")[0] for line in texts] for texts in together] == apart


@pytest.mark.parametrize("world", WORLDS)
def test_the_expert_wins_most_games_and_never_loses_one(world):
    plays = [turns for record in sample(world, 12) for turns in reference.search_turns(record)]
    assert sum(turns is not None for turns in plays) >= 0.95 * len(plays)
    point = evaluate(
        "expert", f"textworld_{world}", {}, budgets=[30], split="valid_seen", seeds=[0, 1, 2, 3], announce="none",
        tasks=20, out=None,
    )["budgets"][0]  # fmt: skip
    assert point["success"] == pytest.approx(point["search_reference"])
    assert point["success"] > 0.8


def burned():
    """A game whose ingredient is to be cooked, and the commands up to where it is."""
    for record in generator.games("cooking", "lost", 50, settings={**HARD["cooking"], "recipe": 1, "take": 1}):
        cooked = next((i for i, command in enumerate(record.plan) if command.startswith("cook ")), None)
        if cooked is not None:
            return record, record.plan[: cooked + 1]
    raise AssertionError("no such game")


def test_what_is_burned_is_lost():
    record, commands = burned()
    env = make("textworld_cooking")
    env.reset(task_of(record))
    for command in commands:
        step = env.step(command)
    assert not step.terminated and env.distance() == len(record.plan) - len(commands)
    step = env.step(commands[-1])
    assert step.observation.startswith("You burn the ") and step.observation.endswith(text.LOST)
    assert (step.terminated, step.won, step.reward) == (True, False, 0.0)
    assert env.distance() is None


def test_the_wrong_thing_loses_a_treasure_hunt():
    env, lost = make("textworld_treasure"), 0
    for task in env.tasks("valid_seen")[:30]:
        game = Game(task.data)
        _, ((wrong,),) = task.data.quests[0]
        for command in [c for c in game.commands if c.startswith(f"take {game.names[wrong[1]]}")]:
            env.reset(task)
            step = env.step(command)
            lost += step.terminated and not step.won and env.distance() is None
    assert lost > 0


def test_a_meal_needs_all_its_ingredients():
    """TextWorld's rules alone would prepare one from the first of them; its compiled games do not."""
    record = next(
        generator.games("cooking", "meal", 1, settings={**HARD["cooking"], "recipe": 2, "take": 2, "rooms": 1})
    )
    game = Game(record)
    for command in record.plan[:-2]:
        assert "prepare meal" not in game.commands
        game.apply(command)
    assert "prepare meal" in game.commands


def test_any_text_is_answered():
    env = make("textworld_cooking", admissible=True)
    task = env.tasks("train")[0]
    opening = env.reset(task)
    listed = opening.rpartition("\nCommands: ")[2].split(", ")
    assert tuple(listed) == env.admissible == tuple(sorted(env.admissible))
    for odd in ("", " ", "LOOK", "go", "take", "x" * 10_000, "look\nlook", "\u2603"):
        step = env.step(odd)
        assert step.observation.startswith(text.REFUSED) and step.admissible == tuple(listed)
    assert not env.step(" look ").observation.startswith(text.REFUSED)


def test_generated_games_are_made_once_and_are_none_of_the_embedded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = {"source": "generated", "games": 3, "length": 4, "rooms": 6}
    env = make("textworld_coin", **args)
    tasks = {split: env.tasks(split) for split in env.splits()}
    assert len({task.task_id for found in tasks.values() for task in found}) == 9
    assert not {task.data.content for found in tasks.values() for task in found} & splits.known("coin")
    assert all(dict(task.data.settings)["length"] == 4 for task in tasks["train"])
    assert all(dict(task.data.settings)["length"] == 7 for task in tasks["valid_unseen"])
    files = {path.name: path.stat().st_mtime_ns for path in splits.cache_folder().iterdir()}
    assert len(files) == 3
    splits.generated.cache_clear()
    assert [task.data for task in make("textworld_coin", **args).tasks("train")] == [t.data for t in tasks["train"]]
    assert {path.name: path.stat().st_mtime_ns for path in splits.cache_folder().iterdir()} == files
    other = make("textworld_coin", **{**args, "seed": 1})
    assert other.split_hash("train") != env.split_hash("train")


def test_a_generator_that_finds_no_other_game_is_told_and_not_waited_for(monkeypatch):
    only = next(generator.games("coin", "only", 1))
    monkeypatch.setattr(generator, "make", lambda world, settings, seed: only)
    found = generator.games("coin", "only", 2)
    assert next(found) == only
    with pytest.raises(UsageError, match="finds no further game"):
        next(found)


def test_demonstrations_are_won_show_refusals_and_depend_on_the_seed():
    made = [
        list(demonstrations("textworld_cooking", count=9, seed=seed, noise=0.3, max_turns=30, args={}))
        for seed in (0, 0, 1)
    ]
    assert made[0] == made[1] != made[2]
    assert len(made[0]) == 9 and all(len(turns) <= 30 for turns in made[0])
    turns = [turn for shown in made[0] for turn in shown]
    assert {turn.weight for turn in turns} == {0.0, 0.3, 1.0}
    answers = [(a.weight, b.observation) for shown in made[0] for a, b in pairwise(shown)]
    assert any(answer == text.REFUSED for _, answer in answers)
    assert all(weight == 0 for weight, answer in answers if answer == text.REFUSED)


def test_without_noise_a_demonstration_is_the_expert_alone():
    env = make("textworld_coin")
    task = env.tasks("train")[0]
    turns, won = demonstration(env, task, Random(0), 0.0, 50)
    assert won and all(turn.weight > 0 for turn in turns) and turns[-1].action == "take coin"
