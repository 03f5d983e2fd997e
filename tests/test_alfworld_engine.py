"""ALFWorld's own engine behind the environment, and the plain-Python one against it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from alfworld_real import Player, Unmodified, alfworld_imports, fewest
from test_alfworld_transcripts import FILES, load

from bmrl.cli import main
from bmrl.envs import make
from bmrl.envs.alfworld import env as alfworld_env
from bmrl.envs.alfworld import export, generator, official
from bmrl.envs.alfworld.env import AlfworldEnv, engine_installed
from bmrl.envs.alfworld.game import game_from_record
from bmrl.envs.alfworld.generator import PLAIN, Difficulty, make_game
from bmrl.envs.alfworld.plan import distance
from bmrl.envs.alfworld.record import Record
from bmrl.envs.alfworld.tables import KINDS
from bmrl.envs.alfworld.twin import Twin
from bmrl.errors import BmrlError

real = pytest.mark.skipif(not engine_installed(), reason="needs bmrl[alfworld], which `make test-slow` installs")
KNOBS = (
    PLAIN,
    Difficulty(receptacles=6, closed=0.5),
    Difficulty(receptacles=5, closed=0.0, copies=3),
    Difficulty(copies=2, distractors=0),
    Difficulty(receptacles=12, distractors=30),
)


def fresh(count: int, name: str) -> list[Record]:
    """Games of all kinds, from plain and from turned knobs, in all rooms."""
    made: list[Record] = []
    for index in range(count):
        kind, knobs = KINDS[index % len(KINDS)], KNOBS[index // len(KINDS) % len(KNOBS)]
        knobs = replace(knobs, closed=None) if kind in KINDS[3:5] else knobs  # all-open rooms have no fridge
        rooms = generator.UNSEEN_ROOMS if index % 7 == 0 else generator.TRAIN_ROOMS
        made.append(make_game(kind, f"{name}/{index}", rooms, knobs))
    return made


def test_what_is_not_installed_is_told_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(alfworld_env, "NEEDED", ("no_such_package_at_all",))
    with pytest.raises(BmrlError, match=r"pip install 'bmrl\[alfworld\]'") as caught:
        make("alfworld", engine="textworld")
    assert "\n" not in str(caught.value)
    for line, code in (
        (["check", "quickstart", "--set", "env.args.engine=textworld"], 0),
        (["train", "quickstart", "--set", "env.args.engine=textworld", "--run", str(tmp_path / "run")], 1),
        (["eval", "oracle", "--split", "valid_seen", "--tasks", "1"], 0),
        (["games", "verify", "--engine", "textworld"], 1),
    ):
        with pytest.raises(SystemExit) as done:
            main(line)
        out, err = capsys.readouterr()
        assert done.value.code == code, (line, out, err)
        assert "Traceback" not in err
        assert ("pip install 'bmrl[alfworld]'" in out + err) == ("textworld" in " ".join(line))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@real
def test_both_engines_are_one_environment(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    argv, path = sys.argv, list(sys.path)
    slow = AlfworldEnv("embedded", engine="textworld", admissible=True)
    fast = AlfworldEnv("embedded", admissible=True)
    assert slow.split_hash("valid_seen") == fast.split_hash("valid_seen")
    tasks = slow.tasks("valid_seen")[:6]
    assert tasks == fast.tasks("valid_seen")[:6]
    for task in tasks:
        for _ in range(2):  # the second game of a task comes from what is kept
            assert slow.reset(task) == fast.reset(task)
            for command in ("look", "put x in/on y", *task.plan):
                assert slow.distance() == fast.distance()
                assert slow.step(command) == fast.step(command)
            assert slow.distance() == 0
    slow.close()
    assert slow.admissible is None
    assert sys.argv is argv
    assert sys.path == path
    assert "ALFWORLD_DATA" not in os.environ
    assert "alfworld" not in sys.modules  # its import sets the variable and makes a folder


@pytest.mark.slow
@real
def test_many_engines_in_one_process_do_not_disturb_each_other():
    """Two games on each of eight engines, turn by turn, and each engine again after it was closed."""
    tasks = make("alfworld", source="embedded").tasks("valid_seen")[:8]
    for _ in range(2):
        envs = [AlfworldEnv("embedded", engine="textworld") for _ in tasks]
        twins = [Twin(game_from_record(task.data)) for task in tasks]
        rngs = [Random(task.task_id) for task in tasks]
        for env, twin, task in zip(envs, twins, tasks, strict=True):
            assert env.reset(task) == twin.reset()
        for _ in range(12):
            for env, twin, rng in zip(envs, twins, rngs, strict=True):
                command = rng.choice(twin.admissible)
                assert env.step(command).observation == twin.step(command)
                assert env.admissible == twin.admissible
        for env in envs:
            env.close()


@pytest.mark.slow
@real
def test_the_twin_answers_like_the_engine_on_fresh_games():
    """At least 20,000 steps, no difference in text, admissible commands, score and done."""
    from bmrl.envs.alfworld.engine import Engine

    engine, steps = Engine(), 0
    for record in fresh(84, "differential"):
        twin = Twin(game_from_record(record))
        rng = Random(record.task_id)
        # A third begins with the shortest plan, and plays on after it has won.
        player = Player(twin, record.plan if rng.random() < 0.34 else (), rng)
        assert engine.start(export.game_data(record)) == twin.reset()
        assert (engine.admissible, engine.won) == (twin.admissible, twin.won)
        for _ in range(240):
            command = player.next()
            # Score is 1 and the game done exactly where the goal holds.
            answers = (engine.step(command), engine.admissible, engine.won)
            assert answers == (twin.step(command), twin.admissible, twin.won), (record.task_id, command)
            steps += 1
    engine.close()
    assert steps >= 20_000


@pytest.mark.slow
@real
def test_games_with_more_than_is_generated():
    """Lamps that can be carried, things in bowls, an open receptacle at the start."""
    from bmrl.envs.alfworld.engine import Engine

    engine = Engine()
    for path in FILES:
        if not path.name.startswith("altered"):
            continue
        game = load(path)["game"]
        domain, grammar = export.engine_texts()
        raw = {
            "pddl_domain": domain,
            "grammar": grammar.replace(official.UNKNOWN, game["sentence"]),
            "pddl_problem": game["pddl_problem"],
        }
        twin = Twin(official.parse(raw, path.name))
        player = Player(twin, (), Random(path.name))
        assert engine.start(raw) == twin.reset()
        for _ in range(300):
            command = player.next()
            answers = (engine.step(command), engine.admissible, engine.won)
            assert answers == (twin.step(command), twin.admissible, twin.won), (path.name, command)
    engine.close()


@pytest.mark.slow
@real
def test_the_twin_answers_like_the_unmodified_engine(tmp_path):
    for record in fresh(6, "unmodified"):
        path = export.write_alfworld_format(record, tmp_path)
        twin = Twin(game_from_record(record))
        engine = Unmodified(path, tmp_path)
        rng = Random(record.task_id)
        player = Player(twin, record.plan, rng)
        assert engine.opening == twin.reset()
        assert engine.admissible == twin.admissible
        for _ in range(len(record.plan) + 25):
            command = player.next()
            answers = (engine.step(command), engine.admissible, engine.score, engine.done)
            assert answers == (twin.step(command), twin.admissible, int(twin.won), twin.won), (record.task_id, command)


def older(raw: dict[str, str]) -> dict[str, str]:
    """A game as ALFWorld wrote it before 0.4: no help, "put", and the place's name on arrival."""
    domain, grammar = raw["pddl_domain"], raw["grammar"]
    head, _, _ = domain.partition("(:action help")
    grammar = grammar.partition("action help {")[0]
    for now, before in (
        ("move {o} to {r}", "put {o} in/on {r}"),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ):
        assert now in grammar
        grammar = grammar.replace(now, before)
    return {**raw, "pddl_domain": head.rstrip() + "\n)\n", "grammar": grammar}


def patched(raw: dict[str, str]) -> dict[str, str]:
    """The same brought to 0.4 as ALFWorld's own download was: help's answer stands where a rule would."""
    before, help_text = older(raw), official.parse(raw, "x").help
    grammar = before["grammar"]
    for then, now in official._REPLACED:
        grammar = grammar.replace(then, now)
    grammar += f'\naction help {{\n    template :: "help";\n    feedback :: "\n{help_text}";\n}}\n'
    return {**before, "pddl_domain": raw["pddl_domain"], "grammar": grammar}


@pytest.mark.slow
@real
def test_all_versions_of_the_grammar_are_played_alike(tmp_path):
    from bmrl.envs.alfworld.engine import Engine

    record = make_game(KINDS[0], "versions")
    raw = export.game_data(record)
    commands = ["help", "look", record.plan[0], "put x 1 in/on y 1", *record.plan[1:], "help"]
    expected = Twin(game_from_record(record))
    answers = [expected.step(command) for command in commands]
    assert expected.won
    for name, version in (("older", older(raw)), ("patched", patched(raw)), ("now", raw)):
        path = tmp_path / name / "train" / record.task_id / official.COMPILED
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(version))
        for engine in ("fast", "textworld"):
            env = AlfworldEnv(str(tmp_path / name), engine=engine)
            task = env.tasks("train")[0]
            assert env.reset(task) == Twin(game_from_record(record)).reset()
            assert [env.step(command).observation for command in commands] == answers, (name, engine)
            assert env.distance() == 0
            assert bool(env.notes("train")) == (name == "older")
            env.close()
    # The patched file is what users have: the unmodified engine must say so, too.
    engine = Unmodified(tmp_path / "patched" / "train" / record.task_id / official.COMPILED, tmp_path)
    assert [engine.step(command) for command in commands] == answers
    # And the older one untouched is as this test believes it to be.
    engine = Unmodified(tmp_path / "older" / "train" / record.task_id / official.COMPILED, tmp_path)
    assert engine.step("help") == "Nothing happens."
    assert engine.step(record.plan[0]).startswith("You arrive at loc ")
    with pytest.raises(BmrlError, match="textworld cannot read the game"):
        Engine().start({**raw, "pddl_domain": "(define"})


@pytest.mark.slow
@real
def test_a_grammar_may_not_run_code():
    from bmrl.envs.alfworld.engine import Engine

    raw = export.game_data(make_game(KINDS[0], "code"))
    harm = raw["grammar"].replace("You close the {r.name}.", "You close the {__import__('os').getcwd()}.")
    assert harm != raw["grammar"]
    twin, engine = Twin(official.parse(raw, "code")), Engine()
    engine.start({**raw, "grammar": harm})
    receptacle = next(r for r in twin.game.place if r in twin.game.openable)
    engine.step(f"go to {receptacle}")
    engine.step(f"open {receptacle}")
    with pytest.raises(BmrlError, match="the game's grammar holds code"):
        engine.step(f"close {receptacle}")


@pytest.mark.slow
@real
def test_the_distance_is_fast_downwards_optimum():
    """At least 200 random states over all kinds, in rooms small enough for blind search."""
    from bmrl.envs.alfworld.engine import Engine

    engine = Engine()
    found: dict[str, list[int | None]] = {kind: [] for kind in KINDS}
    for index in range(72):
        kind = KINDS[index % len(KINDS)]
        knobs = Difficulty(receptacles=4 + index // 6 % 4, copies=2 + index % 2, distractors=3)
        record = make_game(kind, f"optimum/{index}", generator.TRAIN_ROOMS, knobs)
        raw, rng = export.game_data(record), Random(record.task_id)
        engine.start(raw)
        twin = Twin(game_from_record(record))
        player = Player(twin, record.plan[: rng.randrange(len(record.plan))], rng)
        for _ in range(3):
            for _ in range(rng.randrange(1, 12)):
                command = player.next(wrong=0)
                engine.step(command)
                twin.step(command)
            assert engine.admissible == twin.admissible
            least = 0 if engine.won else fewest(engine, raw)
            # Planning loads another problem into the native library: back to the state.
            assert distance(twin) == least, (record.task_id, twin.held)
            found[kind].append(least)
            engine.start(raw)
            twin = Twin(game_from_record(record))
            player = Player(twin, record.plan[: rng.randrange(len(record.plan))], rng)
    engine.close()
    assert sum(map(len, found.values())) >= 200
    for kind in KINDS:
        assert len({d for d in found[kind] if d}) >= 3, kind  # not always the same


@pytest.mark.slow
@real
def test_alfworlds_own_environment_wins_games_made_by_bmrl(tmp_path, capfd):
    with pytest.raises(SystemExit) as done:
        main(["games", "make", str(tmp_path / "games"), "--split", "train", "--count", "12", "--format", "both"])
    assert done.value.code == 0
    folder = str(tmp_path / "games" / "train")
    config = {
        "dataset": {"data_path": folder, "eval_id_data_path": folder, "eval_ood_data_path": folder}
        | {"num_train_games": -1, "num_eval_games": -1},
        "env": {"task_types": [1, 2, 3, 4, 5, 6], "goal_desc_human_anns_prob": 0.0}
        | {"domain_randomization": False, "expert_type": "handcoded"},
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
    }
    won = set()
    with alfworld_imports(tmp_path):
        from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

        alfred = AlfredTWEnv(config, train_eval="train")
        assert alfred.num_games == 12
        env = alfred.init_env(batch_size=1)
        for _ in range(12):
            texts, infos = env.reset()
            path = Path(infos["extra.gamefile"][0])
            assert "Your task is to: " in texts[0]
            for command in json.loads(path.read_text())["walkthrough"]:
                assert not infos["won"][0]
                assert command in infos["admissible_commands"][0]
                _, _, _, infos = env.step([command])
            if infos["won"][0]:
                won.add(path)
        env.close()
    assert len(won) == 12
    # The compact files beside hold the same games, in any order.
    tasks = make("alfworld", source=str(tmp_path / "games")).tasks("train")
    assert {task.task_id for task in tasks} == {path.parent.relative_to(folder).as_posix() for path in won}
