"""`check_env`: a good world passes, and each check is failed by a small world that breaks just that."""

import itertools
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from pool_envs import Unordered

from bmrl.cli import main
from bmrl.envs import ENVIRONMENTS, Task, check_env
from bmrl.envs.checking import CHECKS
from bmrl.errors import UsageError
from docs.examples.vault import Vault


class NoClose(Vault):
    close = None


class Twins(Vault):
    def tasks(self, split):
        return [replace(task, task_id="the one") for task in super().tasks(split)]


class NotTasks(Vault):
    def tasks(self, split):
        return ["a task"]


class NoAdmissible(Vault):
    def __getattribute__(self, name):
        if name == "admissible":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Numbers(Vault):
    def step(self, action):
        return replace(super().step(action), observation=7)


class Nan(Vault):
    def step(self, action):
        return replace(super().step(action), reward=float("nan"))


class Tuples(Vault):
    def step(self, action):
        answer = super().step(action)
        return answer.observation, answer.reward, answer.terminated, {}


class Rich(Vault):
    def step(self, action):
        answer = super().step(action)
        return replace(answer, reward=10.0 * answer.won)


class StatedRich(Rich):
    reward_range = (0.0, 10.0)


class Unsorted(Vault):
    def _look(self):
        text = super()._look()
        self.admissible = tuple(reversed(self.admissible))
        return text


class Dancing(Vault):
    def _look(self):
        text = super()._look()
        self.admissible = tuple(sorted([*self.admissible, "dance"]))
        return text

    def step(self, action):
        return super().step("" if action == "dance" else action)


class Stale(Vault):
    def step(self, action):
        before = self.admissible
        return replace(super().step(action), admissible=before)


class Unplanned(Vault):
    """Its plans leave out the last command; of the distance it says nothing."""

    def tasks(self, split):
        return [replace(task, plan=task.plan[:-1]) for task in super().tasks(split)]

    def distance(self):
        return None


class Farther(Vault):
    def distance(self):
        return super().distance() + 1


class Remembering(Vault):
    resets = 0

    def reset(self, task):
        self.resets += 1
        return f"Game {self.resets}. {super().reset(task)}"


class Chance(Vault):
    def reset(self, task):
        return f"{os.urandom(8).hex()} {super().reset(task)}"


class Shared(Vault):
    """Where the agent is, is one for all."""

    at = property(lambda self: Shared.place, lambda self, value: setattr(Shared, "place", value))


class Torch(Vault):
    def reset(self, task):

        torch.rand(1)
        return super().reset(task)


class Numpy(Vault):
    def reset(self, task):
        np.random.random()
        return super().reset(task)


class Drawing(Vault):
    def reset(self, task):
        random.random()
        return super().reset(task)


class Moving(Vault):
    def reset(self, task):
        os.chdir("/")
        return super().reset(task)


class Exporting(Vault):
    def __init__(self):
        super().__init__()
        os.environ["VAULT"] = "1"


class Arguing(Vault):
    def reset(self, task):
        sys.argv[:] = ["vault"]
        return super().reset(task)


class Sensitive(Vault):
    def step(self, action):
        return super().step(action[0] + action[1:])


class Brief(Vault):
    def step(self, action):
        if len(action) > 1000:
            raise ValueError("too long")
        return super().step(action)


class Ascii(Vault):
    def step(self, action):
        return super().step(action.encode("ascii").decode())


class Capped(Vault):
    """Lost after 30 turns."""

    turns = 0

    def reset(self, task):
        self.turns = 0
        return super().reset(task)

    def step(self, action):
        self.turns += 1
        answer = super().step(action)
        return replace(answer, terminated=answer.terminated or self.turns == 30)


class CapOfAccepted(Capped):
    """Refused commands are not counted."""

    def step(self, action):
        if action not in self.admissible:
            return Vault.step(self, action)
        return super().step(action)


class Quiz(Vault):
    """A wrong turn loses, however late: what is lost so has no limit of turns."""

    def step(self, action):
        before = self.distance()
        answer = super().step(action)
        wrong = answer.observation != "Nothing happens." and self.distance() >= before
        return replace(answer, terminated=answer.terminated or wrong)


class StatedCap(Capped):
    max_turns = 30


class CapMisstated(Capped):
    max_turns = 40


class Lives(Vault):
    """Three refused commands lose: a rule of the game, no limit of turns."""

    def reset(self, task):
        self.lives = 3
        return super().reset(task)

    def step(self, action):
        answer = super().step(action)
        self.lives -= answer.observation == "Nothing happens."
        return replace(answer, terminated=answer.terminated or self.lives == 0)


class Once(Vault):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class Unstable(Vault):
    asked = itertools.count()

    def split_hash(self, split):
        return f"{split} {next(self.asked)}"


class OneHash(Vault):
    def split_hash(self, split):
        return "the same"


def here(world):
    """The same world in a form that workers cannot import: starting them takes longer than all else."""
    return lambda **args: world(**args)


def failed(lines: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in lines}


@pytest.mark.parametrize("world", [StatedRich, StatedCap, Lives, Quiz])
def test_a_good_world_passes(world):
    assert check_env(here(world)) == []


def test_the_example_of_the_documentation_passes_also_in_workers():
    assert check_env(Vault) == []


def test_a_world_that_can_be_lost_passes():

    assert check_env(here(tiny.Corridor)) == []


def test_a_world_in_which_only_right_commands_are_listed_late():
    assert check_env(here(Vault), {"rooms": 30}, splits=["valid_seen"]) == []


@pytest.mark.parametrize(
    ("world", "check", "seen"),
    [
        (NoClose, "api", "it has no method close"),
        (Twins, "api", "tasks('train'): two are called the one"),
        (NotTasks, "api", "tasks('train'): a str among them, not a Task"),
        (NoAdmissible, "api", "reset"),
        (Numbers, "types", "observation is int, not str"),
        (Nan, "types", "reward is nan, not finite"),
        (Tuples, "types", "the answer is tuple, not Step"),
        (Rich, "rewards", "10 after 'open chest', outside reward_range (0, 1)"),
        (Unsorted, "admissible", "not sorted"),
        (Dancing, "admissible", "it lists 'dance', but answers it as it does nonsense: 'Nothing happens.'"),
        (Stale, "admissible", "the attribute admissible is not that of the answer"),
        (Unplanned, "plan", "its plan does not win"),
        (Farther, "distance", "along its plan of"),
        (Remembering, "determinism", "in an environment used before 'Game 2. There are"),
        (Chance, "determinism", "at the start it answered"),
        (Shared, "isolation", "in turns with one that plays"),
        (Drawing, "isolation", "it changes the global state of random"),
        (Numpy, "isolation", "it changes the global state of numpy.random"),
        (Torch, "isolation", "it changes the global state of torch's generator"),
        (Moving, "isolation", "it changes the working directory"),
        (Exporting, "isolation", "it changes os.environ"),
        (Arguing, "isolation", "it changes sys.argv"),
        (Sensitive, "actions", "'' raised IndexError: string index out of range"),
        (Brief, "actions", "(100,000 characters) raised ValueError: too long"),
        (Ascii, "actions", "raised UnicodeEncodeError"),
        (Capped, "limits", "it ends after 30 turns without a win, whatever is played; state it as max_turns = 30"),
        (CapOfAccepted, "limits", "it ends after 30 turns without a win, whatever is played; state it as max_turns = 30"),
        (CapMisstated, "limits", "it ends after 30 turns without a win, whatever is played; not after its max_turns of 40"),
        (Once, "close", "closed twice before a reset it raised RuntimeError: closed already"),
        (Unstable, "split_hash", "and asked again"),
        (OneHash, "split_hash", "have the same, but not the same tasks"),
        (Unordered, "workers", "and in a worker process 'thing"),
    ],
)  # fmt: skip
def test_each_check_is_failed_by_a_world_that_breaks_just_that(world, check, seen, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.delenv("VAULT", raising=False)
    shared = Path.cwd(), dict(os.environ), list(sys.argv), random.getstate()
    if world in (Torch, Numpy):
        __import__(world.__name__.lower())  # loaded before, as in a run
    lines = check_env(world if check == "workers" else here(world))
    assert failed(lines) == {check}, lines
    assert any(seen in line for line in lines), lines
    assert all("\n" not in line for line in lines)
    # Whatever the world did to the process has been put back.
    assert (Path.cwd(), dict(os.environ), list(sys.argv), random.getstate()) == shared


def test_every_check_is_among_those_tried():
    (cases,) = (
        m for m in test_each_check_is_failed_by_a_world_that_breaks_just_that.pytestmark if m.name == "parametrize"
    )
    assert {case[1] for case in cases.args[1]} == {"api", *CHECKS}


class Hopeless(Rich):
    """Breaks several at once."""

    def distance(self):
        return super().distance() + 1

    def close(self):
        raise RuntimeError("never")


def test_several_are_told_at_once():
    assert failed(check_env(here(Hopeless))) == {"rewards", "distance", "close"}


def test_a_smaller_largest_budget_does_not_meet_the_cap():
    assert check_env(here(Capped), turns=20) == []


def test_an_environment_is_no_class():
    with pytest.raises(UsageError, match="takes a name or a class, not Vault"):
        check_env(Vault())


def run(capsys, *line):
    with pytest.raises(SystemExit) as done:
        main(["games", "check", *line])
    return (int(done.value.code), *capsys.readouterr())


def test_on_the_command_line(capsys, monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "vault", "docs.examples.vault:Vault")
    code, out, err = run(capsys, "vault", "--arg", "rooms=1")
    monkeypatch.setitem(ENVIRONMENTS, "rich", "test_check_env:Rich")
    code, out, err = run(capsys, "rich", "--arg", "rooms=3", "--split", "train")
    assert code == 1
    # The worker does not know of the name, which only this test has entered.
    assert out.startswith("rich: 11 of 13 checks passed: api, types, admissible")
    assert "bmrl: rewards: train-0: 10 after 'open chest', outside reward_range (0, 1)\n" in err
    code, out, err = run(capsys, "rich", "--json")
    found = json.loads(out)
    assert (code, found["name"], len(found["passed"]), len(found["problems"])) == (1, "rich", 11, 2)


def test_alfworld_passes(capsys):
    code, out, err = run(
        capsys, "alfworld", "--arg", "source=embedded", "--arg", "admissible=true", "--split", "valid_seen"
    )
    assert (code, err) == (0, "")
    assert out == f"alfworld: 13 of 13 checks passed: api, {', '.join(CHECKS)}\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["alfwrld"], "bmrl: unknown environment 'alfwrld'; did you mean 'alfworld'?"),
        (["alfworld", "--arg", "sauce=x"], "bmrl: --arg sauce: alfworld has no such argument; did you mean source?"),
        (["alfworld", "--arg", "source"], "'source' is not of the form NAME=VALUE"),
        (["alfworld", "--split", "trian"], "bmrl: api: tasks('trian') raised UsageError: unknown split 'trian'"),
    ],
)  # fmt: skip
def test_mistakes_of_the_line_are_told(line, told, capsys):
    code, _, err = run(capsys, *line)
    assert told in err
    assert code == (1 if "--split" in line else 2)
    assert len(err.splitlines()) == 1


def test_tasks_need_not_have_plans():
    class Planless(Vault):
        def tasks(self, split: str) -> list[Task]:
            return [replace(task, plan=()) for task in super().tasks(split)]

    assert check_env(Planless) == []
