"""Plays many environments for a rollout, in this process or in workers, and is the only place that
catches what environments do wrong.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bmrl.envs import make as registered
from bmrl.envs.base import Env, Step, Task
from bmrl.envs.worker import CLOSE_GRACE_S, Table, describe, receive, send
from bmrl.errors import BmrlError, UsageError
from bmrl.types import EndReason

START_S = 600.0  # a new interpreter and imports of bmrl's own, on a very busy machine; environments come later
Answer = TypeVar("Answer")
WORKER = "import sys; sys.path[:] = sys.argv[1:]; from bmrl.envs.worker import main; main()"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment of ``slot`` answered; after a reset, reward 0 and nothing ended."""

    slot: int
    step: Step


@dataclass(frozen=True, slots=True)
class Failed:
    """The episode in ``slot`` is over because of its environment.

    Attributes:
        end_reason: TIMEOUT or ENV_ERROR.
        error: one line, type and message.
    """

    slot: int
    end_reason: EndReason
    error: str


class Pool:
    """``slots`` environments alive at once, each reused from episode to episode.

    A request is answered once, by the next ``collect`` that names its slot. After ``Failed`` the
    slot waits for a reset, which gets a new environment.

    With ``workers=0`` the environments are played here, during ``reset`` and ``step``: nothing can
    interrupt one that hangs, and ``timeout_s`` has no effect. Otherwise slot ``i`` lives in worker
    process ``i % workers`` and runs while the caller does something else. A worker that hangs or
    dies takes one episode with it, the one it was answering: the others are replayed, action by
    action, in the worker that replaces it.

    Args:
        name: environment, as in ``env.name`` of a recipe.
        args: its arguments, as in ``env.args``.
        workers: processes; 0 plays in this one.
        timeout_s: longest wait for one reset or step, in seconds, from when the worker turns to it;
            the first reset in a slot includes creating the environment.
        slots: number of environments.
        distances: answers carry the distance to the goal, which takes time to find.
        make: creates an environment from ``name`` and ``args``; workers import it by its name.
    """

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        workers: int,
        timeout_s: float,
        slots: int,
        distances: bool = False,
        make: Callable[..., Env] | None = None,
    ) -> None:
        self._build = partial(make or registered, name, **args)
        self.workers = min(workers, slots)
        self._slots = slots
        self._live: set[int] = set()  # slots with an episode
        self._asked: dict[int, Future[Reply | Failed]] = {}
        self._players: list[_Here | _Worker] = (
            [_Worker(self._build, timeout_s, distances) for _ in range(self.workers)]
            if workers
            else [_Here(self._build, distances)]
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, from an environment in this process; errors pass through."""
        return self._about(lambda env: tuple(env.tasks(split)))

    def split_hash(self, split: str) -> str:
        """The identity of a split's games; errors pass through."""
        return self._about(lambda env: env.split_hash(split))

    def notes(self, split: str) -> list[str]:
        """What whoever plays the split should know of its games, one line each; errors pass through."""
        return self._about(lambda env: list(getattr(env, "notes", lambda _: [])(split)))

    def reset(self, slot: int, task: Task) -> None:
        """Starts an episode in ``slot``, whatever was there before."""
        self._ask(slot, task)

    def step(self, slot: int, action: str) -> None:
        """Sends an action to the episode in ``slot``."""
        if slot not in self._live:
            raise ValueError(f"slot {slot} has no episode")
        self._ask(slot, action)

    def collect(self, slots: Collection[int]) -> list[Reply | Failed]:
        """Waits for the answers of all ``slots`` and returns them in the order of the slots.

        Raises:
            BmrlError: worker processes cannot be started.
        """
        answers = [self._asked[slot].result() for slot in sorted(slots)]
        for answer in answers:
            del self._asked[answer.slot]
            if isinstance(answer, Reply):
                self._live.add(answer.slot)
            else:
                self._live.discard(answer.slot)
        return answers

    def close(self) -> None:
        """Closes the environments and ends the workers, those that hang by force."""
        for player in self._players:
            player.leave()
        for player in self._players:
            player.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _about(self, question: Callable[[Env], Answer]) -> Answer:
        env = self._build()
        try:
            return question(env)
        finally:
            with contextlib.suppress(Exception, SystemExit):
                env.close()

    def _ask(self, slot: int, request: Task | str) -> None:
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} is not one of the {self._slots} slots")
        if slot in self._asked:
            raise ValueError(f"slot {slot} was asked before its last answer was collected")
        self._asked[slot] = self._players[slot % len(self._players)].play(slot, request)


class _Here:
    """Plays in this process."""

    def __init__(self, build: Callable[[], Env], distances: bool) -> None:
        self._table = Table(build, distances=distances)

    def play(self, slot: int, request: Task | str) -> Future[Reply | Failed]:
        future: Future[Reply | Failed] = Future()
        future.set_result(_outcome(slot, self._table.answer(slot, request)))
        return future

    def leave(self) -> None:
        self._table.close()

    def end(self) -> None:
        pass


class _Worker:
    """Plays in a process of its own.

    One thread here talks to the process, one request at a time: what comes back belongs to the one
    request under way. That thread starts the process, and another when a request finds it gone.
    """

    def __init__(self, build: Callable[[], Env], timeout_s: float, distances: bool) -> None:
        if sys.platform == "win32":
            raise UsageError("env.workers: worker processes need Linux or macOS; set it to 0")
        self._setup = pickle.dumps((build, distances))
        self._timeout_s = timeout_s
        self._path = [str(Path(entry).absolute()) for entry in sys.path]
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._present: set[int] = set()  # slots whose episode is in the present process
        self._episodes: dict[int, list[tuple[Task | str, Reply]]] = {}  # to replay them
        self._leaving = threading.Event()
        self._thread = ThreadPoolExecutor(1, "bmrl-env")
        self._thread.submit(self._start)  # meanwhile the caller loads its model

    def play(self, slot: int, request: Task | str) -> Future[Reply | Failed]:
        return self._thread.submit(self._play, slot, request)

    def leave(self) -> None:
        self._leaving.set()
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the process is gone already
                self._channel.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        if (process := self._process) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_GRACE_S)
        self._kill()
        self._thread.shutdown(cancel_futures=True)
        if self._channel is not None:
            self._channel.close()

    # From here on: in the thread.

    def _play(self, slot: int, request: Task | str) -> Reply | Failed:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._start()
        if not isinstance(request, str):
            self._episodes[slot] = []
        elif slot not in self._present and (lost := self._replay(slot)) is not None:
            return lost
        answer = self._ask(slot, request)
        if isinstance(answer, Failed):
            del self._episodes[slot]
        else:
            self._present.add(slot)
            self._episodes[slot].append((request, answer))
        return answer

    def _replay(self, slot: int) -> Failed | None:
        """Brings the episode of ``slot`` to where it was; environments answer alike each time."""
        for turn, (request, answer) in enumerate(self._episodes[slot]):
            again = self._ask(slot, request)
            if again != answer:
                del self._episodes[slot]
                if isinstance(again, Failed):
                    return again
                error = f"after its worker was lost, the replay answered differently at turn {turn}"
                return Failed(slot, EndReason.ENV_ERROR, error)
        return None

    def _ask(self, slot: int, request: Task | str) -> Reply | Failed:
        try:
            message = pickle.dumps((slot, request))
        except Exception as error:  # the task's data cannot travel
            return Failed(slot, EndReason.ENV_ERROR, describe(error))
        assert self._channel is not None
        try:
            deadline = time.monotonic() + self._timeout_s
            self._channel.settimeout(self._timeout_s)
            send(self._channel, message)
            answer = pickle.loads(receive(self._channel, deadline))  # noqa: S301 (from our child)
            return _outcome(slot, answer)
        except TimeoutError:
            self._kill()
            return Failed(slot, EndReason.TIMEOUT, f"no answer within {self._timeout_s:g} s")
        except (OSError, EOFError):
            code = self._kill()
            how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
            return Failed(slot, EndReason.ENV_ERROR, f"the worker process ended with {how}")

    def _start(self) -> None:
        if self._leaving.is_set():
            return
        self._present.clear()
        if self._channel is not None:
            self._channel.close()
        self._channel, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", WORKER, *self._path],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C on the terminal is for the program alone
                )
            if self._leaving.is_set():
                self._kill()
            self._channel.settimeout(START_S)
            send(self._channel, self._setup)
            problem = receive(self._channel, time.monotonic() + START_S).decode()
        except (OSError, EOFError) as error:
            problem = describe(error)
        if problem:
            self._kill()
            hint = "env.workers: 0 plays without worker processes"
            raise BmrlError(f"env.workers: a worker process did not start: {problem}; {hint}")

    def _kill(self) -> int | None:
        """Ends the process and all that its environments started; its exit code, None where it cannot be ended now."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left of its session
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_GRACE_S)
        return process.returncode


def _outcome(slot: int, answer: Step | str) -> Reply | Failed:
    if isinstance(answer, str):
        return Failed(slot, EndReason.ENV_ERROR, answer)
    return Reply(slot, answer)
