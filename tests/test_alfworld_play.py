"""Playing: plans, distances, the environment, the exploring expert."""

import itertools
import json
from pathlib import Path
from random import Random

import pytest
from test_alfworld_transcripts import FILES, load
from test_alfworld_transcripts import games as fixture_games

from bmrl import envs
from bmrl.envs.alfworld import splits
from bmrl.envs.alfworld.demonstration import demonstration
from bmrl.envs.alfworld.env import AlfworldEnv, task_of
from bmrl.envs.alfworld.expert import Expert, read_goal
from bmrl.envs.alfworld.export import problem_pddl
from bmrl.envs.alfworld.game import Game, game_from_record
from bmrl.envs.alfworld.generator import Difficulty, games
from bmrl.envs.alfworld.memory import Memory
from bmrl.envs.alfworld.plan import distance
from bmrl.envs.alfworld.twin import REFUSED, Twin
from bmrl.errors import BmrlError, UsageError
from bmrl.evaluate import ceiling, search_reference


def test_plans_win_and_every_step_is_one_nearer() -> None:
    for split in splits.SPLITS:
        for record in splits.read_split(split):
            twin = Twin(game_from_record(record))
            for left in range(len(record.plan), 0, -1):
                assert not twin.won
                assert distance(twin) == left
                command = record.plan[-left]
                assert command in twin.admissible
                twin.step(command)
            assert twin.won
            assert distance(twin) == 0


def assert_exact(game: Game, rng: Random, states: int) -> None:
    """The distance is one more than the least after any command, in states reached at random.

    Together with 0 where it is won, and only there, that is what makes a distance the distance.
    """
    twin = Twin(game)
    for _ in range(states):
        for _ in range(4):
            # Verbs evenly, or nearly all would be "go to".
            verb = rng.choice(sorted({command.split()[0] for command in twin.admissible}))
            after = twin.fork()
            after.step(rng.choice([c for c in twin.admissible if c.startswith(verb)]))
            twin = twin if after.won else after
        found = []
        for command in twin.admissible:
            after = twin.fork()
            after.step(command)
            found.append(distance(after))
        reachable = [d for d in found if d is not None]
        assert distance(twin) == min(reachable) + 1, (game.task_id, twin.held)


# Where nearly all is closed, it matters what is opened on the way, and where a wrong thing is put down.
@pytest.mark.parametrize("difficulty", [Difficulty(), Difficulty(closed=0.9)])
def test_distance_is_exact(difficulty: Difficulty) -> None:
    for record in games("exact", 42, difficulty=difficulty):
        assert_exact(game_from_record(record), Random(record.task_id), 10)


def test_distance_is_exact_where_lamps_can_be_carried() -> None:
    for path in FILES:
        if path.name.startswith("altered"):
            assert_exact(fixture_games(load(path))[0], Random(path.name), 200)


def test_two_games_at_once_do_not_disturb_each_other() -> None:
    env = envs.make("alfworld", source="embedded", admissible=True)
    tasks = env.tasks("valid_seen")[:2]

    def moves(commands: tuple[str, ...], rng: Random) -> str:
        return rng.choice(commands)

    apart = []
    for task in tasks:
        rng, texts = Random(task.task_id), [env.reset(task)]
        for _ in range(30):
            texts.append(env.step(moves(env.admissible or (), rng)).observation)
        apart.append(texts)
    one, two = (
        envs.make("alfworld", source="embedded", admissible=True),
        AlfworldEnv("embedded", admissible=True),
    )
    rngs = [Random(task.task_id) for task in tasks]
    together = [[one.reset(tasks[0])], [two.reset(tasks[1])]]
    for _ in range(30):
        for texts, player, rng in zip(together, (one, two), rngs, strict=True):
            texts.append(player.step(moves(player.admissible or (), rng)).observation)
    assert together == apart


def test_a_fork_goes_its_own_way() -> None:
    """Every command of a plan tried in a fork leaves the game as it was, and in the same state answers as the game."""
    for task in envs.make("alfworld", source="embedded").tasks("valid_seen")[:12]:
        twin = Twin(game_from_record(task.data))
        for command in task.plan:
            state = str({name: vars(twin)[name] for name in STATE})
            fork = twin.fork()
            tried = [fork.step(command), fork.step("look")]
            assert str({name: vars(twin)[name] for name in STATE}) == state
            assert [twin.step(command), twin.step("look")] == tried
            assert twin.admissible == fork.admissible


STATE = (
    *("location", "held", "opened", "clean", "hot", "cool", "sliced", "toggled", "inside"),
    *("_objects_at", "_taken_from"),
)


def test_step_fields() -> None:
    env = AlfworldEnv("embedded")
    task = env.tasks("train")[0]
    opening = env.reset(task)
    assert opening.startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert env.admissible is not None
    assert list(env.admissible) == sorted(env.admissible)
    assert "help" in env.admissible
    assert env.step("").observation == "Nothing happens."
    for command in task.plan[:-1]:
        step = env.step(command)
        assert (step.reward, step.terminated, step.won) == (0.0, False, False)
        assert step.admissible == env.admissible
    assert env.distance() == 1
    last = env.step(task.plan[-1])
    assert (last.reward, last.terminated, last.won) == (1.0, True, True)
    env.close()


def test_admissible_commands_are_a_line_of_their_own() -> None:
    plain, shown = AlfworldEnv("embedded"), AlfworldEnv("embedded", admissible=True)
    task = plain.tasks("train")[1]
    pairs = [(plain.reset(task), shown.reset(task))]
    pairs += [(plain.step(c).observation, shown.step(c).observation) for c in ("look", "xyzzy")]
    for bare, text in pairs:
        head, _, line = text.rpartition("\n")
        assert head == bare
        commands = line.removeprefix("Commands: ").split(", ")
        assert commands == [c for c in plain.admissible or () if c != "help"]


def test_making_by_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'alfworld'"):
        envs.make("alfword")
    with pytest.raises(UsageError, match=r"env\.args\.admisible: .*did you mean 'admissible'"):
        envs.make("alfworld", admisible=True)
    with pytest.raises(UsageError, match="unknown engine"):
        envs.make("alfworld", engine="warp")
    with pytest.raises(UsageError, match="no such folder"):
        envs.make("alfworld", source="/nowhere/at/all")


def write_official(folder: Path, number: int = 2) -> list[str]:
    """Games as ALFWorld stores them, without the parts of the grammar that are always the same."""
    names = []
    for record in splits.read_split("valid_seen")[:number]:
        target = folder / "valid_seen" / record.task_id
        target.mkdir(parents=True)
        game = {
            "pddl_problem": problem_pddl(record),
            "grammar": f'"rhs": "Your task is to: {record.sentence}."',
            "solvable": True,
        }
        (target / "game.tw-pddl").write_text(json.dumps(game))
        names.append(record.task_id)
    return sorted(names)


def test_games_in_alfworlds_own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write_official(tmp_path / "json_2.1.1")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    env = AlfworldEnv()
    tasks = env.tasks("valid_seen")
    assert [task.task_id for task in tasks] == names
    records = {record.task_id: record for record in splits.read_split("valid_seen")}
    for task in tasks:
        assert task.kind == records[task.task_id].kind
        assert task.plan == records[task.task_id].plan
        assert task.search_turns == records[task.task_id].search_turns
        env.reset(task)
        assert [env.step(command).won for command in task.plan][-1]
    with pytest.raises(UsageError, match="no such split; the folder has: valid_seen"):
        env.tasks("valid_unseen")
    monkeypatch.setenv("ALFWORLD_DATA", "/nowhere")
    with pytest.raises(UsageError, match="ALFWORLD_DATA=/nowhere: no such folder"):
        AlfworldEnv()
    with pytest.raises(UsageError, match="source '': no such folder"):
        AlfworldEnv(source="")
    monkeypatch.delenv("ALFWORLD_DATA")
    assert len(AlfworldEnv().tasks("train")) == 600


def test_unreadable_games_are_named_in_one_line(tmp_path: Path) -> None:
    names = write_official(tmp_path, 3)
    for name, text in zip(names[:2], ("{", '{"grammar": ""}'), strict=True):
        (tmp_path / "valid_seen" / name / "game.tw-pddl").write_text(text)
    with pytest.raises(BmrlError) as caught:
        AlfworldEnv(str(tmp_path)).tasks("valid_seen")
    assert "2 unreadable games" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in names[:2])


def test_the_expert_solves_nearly_all_within_fifty_turns() -> None:
    won = helped = 0
    records = splits.read_split("valid_seen")
    for record in records:
        turns, solved = demonstration(record, Random(record.task_id), max_turns=50)
        won += solved
        helped += any(shown.action in ("help", "inventory") for shown in turns)
        assert all(shown.weight for shown in turns if not shown.action.startswith("go to"))
    assert won / len(records) >= 0.95
    assert helped == 0


def test_the_expert_recovers_from_forced_actions() -> None:
    records, won, forced = splits.read_split("valid_seen")[:60], 0, 0
    refused, after = [], []
    for record in records:
        turns, solved = demonstration(record, Random(record.task_id), noise=0.3, max_turns=100)
        won += solved
        forced += sum(not shown.weight for shown in turns)
        # The text shown is that before the action; the commands are what the engine then gives.
        env = AlfworldEnv("embedded")
        text = env.reset(task_of(record))
        for shown in turns:
            assert shown.observation == text
            text = env.step(shown.action).observation
            if shown.observation == "Nothing happens.":
                after.append(shown)
            if text == "Nothing happens.":
                refused.append(shown)
    assert won / len(records) >= 0.95
    assert forced > 100
    assert not any(shown.weight for shown in refused)
    # What the expert does after a refusal counts in full, if it counts at all.
    assert {shown.weight for shown in after} == {0.0, 1.0}
    assert {shown.action.split()[0] for shown in refused} >= {"go", "open", "examine", "take", "move", "use", "heat"}
    # Some are sent again at once: the policy is shown a way out of that.
    assert sum(a.action == b.action for a, b in itertools.pairwise(refused)) > 20


def test_demonstrations_are_reproducible() -> None:
    record = splits.read_split("train")[3]
    one, two, three = (demonstration(record, Random(seed), 0.2, admissible=True) for seed in (5, 5, 6))
    assert one == two != three
    assert all("\nCommands: " in shown.observation for shown in one[0])


def test_the_expert_reads_only_text() -> None:
    opening = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly"
        " around you, you see a cabinet 1, a fridge 1, and a countertop 1.\n\n"
        "Your task is to: put some egg on countertop."
    )
    expert = Expert(opening, Random(0))
    expert.observe("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
    assert expert.act() == "open fridge 1"
    expert.observe("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a egg 1.")
    assert expert.act() == "take egg 1 from fridge 1"
    # Forced: it is closed again, and the agent sent elsewhere.
    expert.observe("close fridge 1", "You close the fridge 1.")
    expert.observe("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed.")
    assert expert.act() == "go to fridge 1"
    # They share a place: being refused, it knows that it is there.
    expert.observe("go to fridge 1", "Nothing happens.")
    assert expert.act() == "open fridge 1"
    with pytest.raises(BmrlError, match="cannot read the goal"):
        read_goal("Your task is to: tidy up a bit.")


@pytest.mark.parametrize("command", ["go to sinkbasin 8", "go to ", "desk 1", "open go to desk 1", "take x from y"])
def test_memory_is_nowhere_that_is_not_there(command):
    memory = Memory(
        "Looking quickly around you, you see a desk 1, and a shelf 1.\n\nYour task is to: put some pen on shelf."
    )
    memory.note("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing.")
    memory.note(command, REFUSED)
    # None of these is a place of the opening text gone to, so it still stands at the shelf alone.
    assert memory.at == {"shelf 1"}
    memory.note("go to desk 1", REFUSED)
    assert memory.at == {"shelf 1", "desk 1"}


def test_references() -> None:
    tasks = AlfworldEnv("embedded").tasks("valid_seen")
    lengths = [len(task.plan) for task in tasks]
    assert ceiling(tasks, min(lengths) - 1) == 0
    assert ceiling(tasks, max(lengths)) == 1
    shares = [search_reference(tasks, budget) for budget in (4, 8, 16, 50)]
    assert shares == sorted(shares)
    assert shares[-1] >= 0.95
    for budget in (4, 8, 16, 50):
        assert search_reference(tasks, budget) <= ceiling(tasks, budget)
