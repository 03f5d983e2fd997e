"""The pool: whatever an environment does, the rest goes on and nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pool_envs import FIELD, GARBAGE, make

from bmrl.envs.base import Step, Task
from bmrl.envs.pool import Failed, Pool, Reply
from bmrl.envs.worker import describe
from bmrl.errors import BmrlError
from bmrl.types import EndReason

TASK = Task("t", "echo")


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    assert psutil.Process().children(recursive=True) == []


def pool(*, workers: int, slots: int = 3, timeout_s: float = 20.0, label: str = "echo") -> Pool:
    return Pool("echo", {"label": label}, workers=workers, timeout_s=timeout_s, slots=slots, make=make)


def ask(pool: Pool, requests: dict[int, Task | str]) -> list[Reply | Failed]:
    for slot, request in requests.items():
        pool.step(slot, request) if isinstance(request, str) else pool.reset(slot, request)
    return pool.collect(list(requests))


def observations(answers: list[Reply | Failed]) -> list[str]:
    return [a.step.observation if isinstance(a, Reply) else a.end_reason for a in answers]


def workers() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_replies_in_order_of_slots(count: int) -> None:
    with pool(workers=count) as p:
        assert [t.task_id for t in p.tasks("train")] == ["train-0", "train-1", "train-2"]
        resets = ask(p, {2: TASK, 0: Task("u", "echo"), 1: TASK})
        # After a reset the reward is 0; the fake's admissible commands are "look" and its last word.
        assert resets[0] == Reply(0, Step("echo u", 0.0, False, False, ("look", "")))
        assert [a.slot for a in resets] == [0, 1, 2]
        # The fake's reward is the length of the word.
        assert ask(p, {1: "go", 0: "win"}) == [
            Reply(0, Step("echo u win", 3.0, True, True, ("look", "win"))),
            Reply(1, Step("echo t go", 2.0, False, False, ("look", "go"))),
        ]
        assert observations(ask(p, {0: TASK, 1: "on", 2: ""})) == [
            "echo t",
            "echo t go on",
            "echo t",
        ]


def test_same_results_for_any_number_of_workers() -> None:
    words = ["go", "win", "raise", "garbage nan", "leave", "", "look"]

    def play(count: int) -> list[list[Reply | Failed]]:
        draw, rounds, live = random.Random(0), [], set()
        with pool(workers=count, slots=5) as p:
            for turn in range(40):
                slots = draw.sample(range(5), 3)
                asked = {s: draw.choice(words) if s in live else Task(f"{turn}", "e") for s in slots}
                rounds.append(ask(p, asked))
                live |= set(slots)
                live -= {a.slot for a in rounds[-1] if isinstance(a, Failed)}
        return rounds

    here = play(0)
    assert any(isinstance(a, Failed) for answers in here for a in answers)
    assert play(1) == here
    assert play(2) == here


@pytest.mark.parametrize(
    ("deed", "reason", "error"),
    [
        ("hang", EndReason.TIMEOUT, "no answer within 0.5 s"),
        ("spin", EndReason.TIMEOUT, "no answer within 0.5 s"),
        ("exit", EndReason.ENV_ERROR, "the worker process ended with exit code 3"),
        ("leave", EndReason.ENV_ERROR, "SystemExit: the game is over"),
        (
            "raise",
            EndReason.ENV_ERROR,
            "FileNotFoundError: [Errno 2] No such file or directory: 'game.json'",
        ),
    ],
)
@pytest.mark.parametrize("when", ["reset", "step"])
def test_one_misbehaves_and_the_others_go_on(
    deed: str, reason: EndReason, error: str, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    with pool(workers=2, slots=6, timeout_s=0.5) as p:
        ask(p, dict.fromkeys(range(6), TASK))
        ask(p, dict.fromkeys(range(6), "go"))
        bad = deed if when == "step" else Task("t", "echo", data=deed)
        # Slots 0, 2, 4 share a worker: one is asked before the culprit and one after it.
        answers = ask(p, {0: "on", 2: bad, 4: "on", 1: "on"})
        assert answers[2] == Failed(2, reason, error)
        assert observations(answers[:2] + answers[3:]) == ["echo t go on"] * 3
        # The slot itself starts anew, the others never lost a word.
        answers = ask(p, {2: TASK} | dict.fromkeys((0, 1, 3, 4, 5), "up"))
        kept, quiet = "echo t go on up", "echo t go up"
        assert observations(answers) == [kept, kept, "echo t", quiet, kept, quiet]
    assert time.monotonic() - begun < 15
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("count", [0, 1])
def test_garbage_names_its_field(count: int) -> None:
    with pool(workers=count, slots=len(GARBAGE)) as p:
        ask(p, dict.fromkeys(range(len(GARBAGE)), TASK))
        answers = ask(p, {slot: f"garbage {kind}" for slot, kind in enumerate(GARBAGE)})
        for kind, answer in zip(GARBAGE, answers, strict=True):
            assert isinstance(answer, Failed)
            assert answer.end_reason is EndReason.ENV_ERROR
            name = "the answer" if kind == "not a step" else FIELD.get(kind, kind)
            assert answer.error.startswith((f"TypeError: {name} ", f"ValueError: {name} "))


def test_a_hanging_worker_does_not_hold_up_another_nor_the_caller() -> None:
    with pool(workers=2, slots=2, timeout_s=1.0) as p:
        ask(p, {0: TASK, 1: TASK})
        begun = time.monotonic()
        p.step(0, "hang")
        p.step(1, "go")
        assert observations(p.collect([1])) == ["echo t go"]
        assert time.monotonic() - begun < 0.9  # less than slot 0 may take
        assert observations(p.collect([0])) == ["timeout"]


def test_a_worker_lost_between_requests_costs_no_episode() -> None:
    with pool(workers=1) as p:
        ask(p, {0: TASK, 1: TASK})
        ask(p, {0: "go"})
        (worker,) = workers()
        worker.kill()
        worker.wait(5)
        assert observations(ask(p, {0: "on", 1: "up"})) == ["echo t go on", "echo t up"]


def test_a_replay_that_differs_is_an_error() -> None:
    with pool(workers=1) as p:
        ask(p, {0: TASK, 1: TASK})
        ask(p, {0: "pid", 1: "go"})
        answers = ask(p, {2: Task("t", "echo", data="exit"), 0: "on", 1: "on"})
        # Turn 0 of the history is the reset, turn 1 answered with the number of the process.
        error = "after its worker was lost, the replay answered differently at turn 1"
        assert answers[0] == Failed(0, EndReason.ENV_ERROR, error)
        assert observations(answers[1:]) == ["echo t go on", "env_error"]


def test_signals_do_not_end_workers_and_they_load_nothing_heavy() -> None:
    with pool(workers=1, slots=1) as p:
        (pid,) = observations(ask(p, {0: Task("t", "echo", data="pid")}))
        assert os.getsid(int(pid)) != os.getsid(0)  # Ctrl-C reaches the terminal's session
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(int(pid), number)
        # The same process answers; had it loaded anything heavy, it would have named it.
        assert observations(ask(p, {0: "heavy"})) == ["echo t pid heavy"]
        assert observations(ask(p, {0: "pid"})) == [pid]


def test_an_environment_that_writes_and_reads_disturbs_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pool(workers=1) as p:
        ask(p, {0: TASK})
        assert observations(ask(p, {0: "chatter"})) == ["echo t chatter"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_environments_are_closed(count: int, tmp_path: Path) -> None:
    with pool(workers=count, label=f"close {tmp_path}/closed") as p:
        ask(p, {slot: Task(f"{slot}", "echo") for slot in range(3)})
        # Nothing is known of the state of one that raised: it is closed at once, not used again.
        ask(p, {1: "raise"})
        assert (tmp_path / "closed").read_text() == "1\n"
        assert observations(ask(p, {1: Task("1", "echo")})) == [f"close {tmp_path}/closed 1"]
    assert sorted((tmp_path / "closed").read_text().split()) == ["0", "1", "1", "2"]


@pytest.mark.parametrize("count", [0, 1])
def test_an_environment_that_cannot_be_closed_disturbs_nothing(count: int) -> None:
    with pool(workers=count, label="close raises") as p:
        assert len(p.tasks("train")) == 3
        (answer,) = ask(p, {0: Task("t", "echo", data="leave")})
        assert isinstance(answer, Failed) and answer.error == "SystemExit: the game is over"


@pytest.mark.parametrize("deed", ["hang", "spin"])
def test_closing_does_not_wait_for_those_that_hang(deed: str) -> None:
    begun = time.monotonic()
    with pool(workers=2, timeout_s=60) as p:
        ask(p, {0: TASK, 1: TASK, 2: TASK})
        for slot in range(3):
            p.step(slot, deed)
    assert time.monotonic() - begun < 15


PARENT = """
import pool_envs, sys, time
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
pool = Pool("echo", {}, workers=4, timeout_s=600, slots=4, make=pool_envs.make)
for slot in range(4):
    pool.reset(slot, Task("t", "echo"))
pool.collect(range(4))
pool.step(0, "spawn")
pool.collect([0])
pool.step(1, "hang")
pool.step(2, "spin")
pool.reset(3, Task("t", "echo", data="spin"))
print("ready", flush=True)
time.sleep(600)
"""


def test_kill_9_of_the_program_leaves_no_worker_and_nothing_that_an_environment_started() -> None:
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        orphans = psutil.Process(parent.pid).children(recursive=True)
        assert len(orphans) == 5
        parent.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(running(orphan) for orphan in orphans):
        time.sleep(0.02)
    left = [orphan for orphan in orphans if running(orphan)]
    for orphan in left:  # this test must not leave them either
        orphan.kill()
    assert left == []


def running(process: psutil.Process) -> bool:
    """A zombie has ended; whoever adopted it may be slow to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("end", ["hang", "exit", "go"])
def test_what_an_environment_started_ends_with_its_worker(end: str) -> None:
    with pool(workers=1, timeout_s=0.5) as p:
        ask(p, {0: TASK})
        ask(p, {0: "spawn"})
        (worker,) = workers()
        (sleeper,) = worker.children()
        ask(p, {0: end})
    psutil.wait_procs([sleeper], timeout=5)
    assert not running(sleeper)


def test_a_worker_leaves_nothing_of_its_session() -> None:
    with pool(workers=1) as p:
        ask(p, {0: TASK})
        session = workers()[0].pid
        assert [process.pid for process in psutil.process_iter() if of(process, session)] != [session]
    left = [process for process in psutil.process_iter() if of(process, session)]
    psutil.wait_procs(left, timeout=5)
    assert not any(running(process) for process in left)


def of(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except ProcessLookupError:
        return False


def test_an_environment_that_forks_or_waits_for_children_is_answered_once() -> None:
    with pool(workers=1) as p:
        ask(p, {0: TASK})
        # The copy of the worker would answer, too, and its answer be taken for that to "on".
        assert observations(ask(p, {0: "fork"})) == ["echo t fork"]
        assert observations(ask(p, {0: "on"})) == ["echo t fork on"]
        assert observations(ask(p, {0: "wait"})) == ["echo t fork on wait"]  # for the copy
        assert observations(ask(p, {1: TASK})) == ["echo t"]
        # Nobody is left to wait for: the worker has no children of its own.
        (answer,) = ask(p, {1: "wait"})
        assert isinstance(answer, Failed) and answer.error.startswith("ChildProcessError")
        (answer,) = ask(p, {0: "fork and exit"})
        assert answer == Failed(0, EndReason.ENV_ERROR, "the worker process ended with exit code 3")


@pytest.mark.slow
def test_memory_of_the_fast_engine_stays_flat_over_2000_episodes() -> None:
    with Pool("alfworld", {"source": "embedded"}, workers=1, timeout_s=60, slots=4) as p:
        tasks = p.tasks("train")

        def play(numbers: range) -> list[int]:
            for number in numbers:
                played = {slot: tasks[(4 * number + slot) % len(tasks)] for slot in range(4)}
                ask(p, dict(played))
                for turn in range(30):
                    left = {slot: task.plan[turn] for slot, task in played.items() if turn < len(task.plan)}
                    answers = ask(p, left) if left else []
                    for answer in answers:
                        assert isinstance(answer, Reply)
            return [process.memory_info().rss for process in (psutil.Process(), *workers())]

        early, late = play(range(50)), play(range(50, 500))
    # 200 and 2,000 episodes. A leak of one game each, about 50 kB, would be 90 MB.
    assert all(b - a < 4e6 for a, b in zip(early, late, strict=True)), (early, late)


def test_memory_stays_flat_over_2000_episodes() -> None:
    with pool(workers=1, slots=4) as p:

        def play(episodes: int) -> list[int]:
            for number in range(episodes // 4):
                ask(p, {slot: Task(f"{number}", "echo", data="x" * 10_000) for slot in range(4)})
                ask(p, dict.fromkeys(range(4), "win"))
            return [process.memory_info().rss for process in (psutil.Process(), *workers())]

        before = play(400)
        after = play(2000)
    # Keeping every observation would be 2,000 x 10 kB x 2 = 40 MB.
    assert all(a - b < 8e6 for a, b in zip(after, before, strict=True))


def test_misuse_is_refused() -> None:
    with pool(workers=0, slots=1) as p:
        with pytest.raises(ValueError, match="slot 1 is not one of the 1 slots"):
            p.reset(1, TASK)
        with pytest.raises(ValueError, match="slot 0 has no episode"):
            p.step(0, "go")
        p.reset(0, Task("t", "echo", data="raise"))
        with pytest.raises(ValueError, match="asked before"):
            p.reset(0, TASK)
        p.collect([0])
        with pytest.raises(ValueError, match="slot 0 has no episode"):  # it failed
            p.step(0, "go")


def test_workers_that_cannot_start_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [e for e in sys.path if Path(e) != Path(__file__).parent])
    with pool(workers=1) as p, pytest.raises(BmrlError) as caught:
        ask(p, {0: TASK})
    assert str(caught.value) == (
        "env.workers: a worker process did not start: ModuleNotFoundError: No module named "
        "'pool_envs'; env.workers: 0 plays without worker processes"
    )


def test_an_error_is_one_line_without_folders() -> None:
    error = ValueError("in /home/me/games/a.json:\n 'C:\\my files\\b.json' </action> 1/2")
    assert describe(error) == "ValueError: in a.json: 'b.json' </action> 1/2"
    assert describe(KeyError()) == "KeyError"
    assert len(describe(ValueError("long " * 1000))) <= 300
    assert describe(ValueError("\ud83d")) == "ValueError: \\ud83d"
