"""The boundary around environments, and the worker process that plays them for the pool.

Imported by every worker: keep it light. What crosses the socket are pickles between a program and
its own children, each preceded by its length; nothing here reads a pickle from a file.
"""

import contextlib
import ctypes
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import cast

from bmrl.envs.base import Env, Step, Task

WATCH_S = 0.2  # how often it is looked whether a worker is there
CLOSE_GRACE_S = 0.5  # what environments get to close themselves once the pool is gone
MAX_ERROR = 300  # characters of an error line
CHUNK = 65_536  # bytes read at once
HEADER = 8  # bytes, big endian: length of the message that follows

# A quoted absolute path up to its last separator, or a bare one; the file's own name stays.
FOLDERS = re.compile(
    r"""(?<=['"])(?:[A-Za-z]:)?[\\/][^'"]*[\\/]"""
    r"""|(?<![\w.<])(?:[A-Za-z]:)?[\\/](?:[^\\/\s'":<>]+[\\/])+"""
)


class Table:
    """The environments of some slots, created when first needed and reused from episode to episode.

    Args:
        build: creates one environment.
        distances: ask for the distance to the goal after each answer.
    """

    def __init__(self, build: Callable[[], Env], *, distances: bool = False) -> None:
        self._build = build
        self._distances = distances
        self._envs: dict[int, Env] = {}

    def answer(self, slot: int, request: Task | str) -> Step | str:
        """Resets ``slot`` to a task, or steps it with an action.

        Returns:
            The environment's answer, checked, or one line that says what went wrong. After an
            error the environment is dropped, for nothing is known of its state.
        """
        try:
            if isinstance(request, str):
                return self._measured(slot, checked(self._envs[slot].step(request)))
            if slot not in self._envs:
                self._envs[slot] = self._build()
            observation = self._envs[slot].reset(request)
            return self._measured(slot, checked(Step(observation, 0.0, False, False, self._envs[slot].admissible)))
        except (Exception, SystemExit) as error:
            self._close(slot)
            return describe(error)

    def _measured(self, slot: int, step: Step) -> Step:
        if not self._distances or step.terminated:
            return step
        distance: object = self._envs[slot].distance()
        if distance is not None and (isinstance(distance, bool) or not isinstance(distance, int)):
            raise TypeError(f"distance is {type(distance).__name__}, not a whole number or None")
        return replace(step, distance=distance)

    def close(self) -> None:
        """Closes all environments."""
        for slot in list(self._envs):
            self._close(slot)

    def _close(self, slot: int) -> None:
        env = self._envs.pop(slot, None)
        if env is not None:
            with contextlib.suppress(Exception, SystemExit):
                env.close()


def checked(step: object) -> Step:
    """The same step in plain types, safe to pickle, to print and to write as JSON.

    Raises:
        TypeError, ValueError: it breaks the protocol; the message names the field.
    """
    if not isinstance(step, Step):
        raise TypeError(f"the answer is {type(step).__name__}, not Step")
    reward: object = step.reward
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise TypeError(f"reward is {type(reward).__name__}, not a number")
    if not math.isfinite(reward):
        raise ValueError(f"reward is {reward}, not finite")
    for name, flag in (("terminated", step.terminated), ("won", step.won)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {type(flag).__name__}, not bool")
    if step.won and not step.terminated:
        raise ValueError("won is True but terminated is False")
    admissible: object = step.admissible
    if admissible is not None:
        if not isinstance(admissible, tuple):
            raise TypeError(f"admissible is {type(admissible).__name__}, not a tuple or None")
        admissible = _texts("admissible", admissible)
    observation = _text("observation", step.observation)
    return Step(observation, float(reward), step.terminated, step.won, admissible)


def _texts(name: str, values: tuple[object, ...]) -> tuple[str, ...]:
    # Some fifty in each step: a look at all of them together is ten times faster than one at each.
    if set(map(type, values)) <= {str}:
        texts = cast(tuple[str, ...], values)
        with contextlib.suppress(UnicodeEncodeError):
            "".join(texts).encode()
            return texts
    return tuple(_text(name, value) for value in values)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which is not text") from None
    return str(value)


def describe(error: BaseException) -> str:
    """One line, type and message, without the folders of this machine."""
    try:
        message = str(error)
    except Exception:
        message = "its message cannot be shown"
    message = FOLDERS.sub("", message.encode("utf-8", "backslashreplace").decode())
    return " ".join(f"{type(error).__name__}: {message}".split())[:MAX_ERROR].removesuffix(":")


def send(channel: socket.socket, message: bytes) -> None:
    """Sends one message, within the timeout of the channel."""
    channel.sendall(len(message).to_bytes(HEADER, "big") + message)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes:
    """The next message.

    Args:
        deadline: ``time.monotonic()`` at which to give up, also in the middle of a message.

    Raises:
        TimeoutError: past the deadline.
        EOFError: the other side is gone.
    """
    size = int.from_bytes(_exactly(channel, HEADER, deadline), "big")
    return bytes(_exactly(channel, size, deadline))


def _exactly(channel: socket.socket, count: int, deadline: float | None) -> bytearray:
    data = bytearray()
    while len(data) < count:
        if deadline is not None:
            # 0 would mean non-blocking, and an answer that lies ready is taken even when late.
            channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        piece = channel.recv(min(count - len(data), CHUNK))
        if not piece:
            raise EOFError("the other side is gone")
        data += piece
    return data


def _listen(channel: socket.socket, requests: "SimpleQueue[bytes | None]") -> None:
    """Passes requests on; once the pool is gone, ends this process, whatever else it is doing."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            requests.put(receive(channel))
    requests.put(None)
    time.sleep(CLOSE_GRACE_S)
    os._exit(0)


def _end_with_worker() -> None:
    """Starts a process that ends all of this session, whatever environments start in it, once the worker has ended.

    It is no child of the worker's, since an environment may wait for all children that there are.
    """
    worker = os.getpid()
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # else the pool would not see that the worker is gone
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(worker, 0)
            time.sleep(WATCH_S)
    # The number cannot be another's by now: it is the group's as long as this process is in it.
    os.killpg(worker, signal.SIGKILL)


def _die_with_parent() -> None:
    """Where there is a way: helps when an environment holds the lock that ``_listen`` needs."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _serve(channel: socket.socket, requests: "SimpleQueue[bytes | None]") -> None:
    setup = requests.get()
    if setup is None:
        return
    try:
        build, distances = pickle.loads(setup)  # noqa: S301 (from the pool)
        table = Table(build, distances=distances)
    except Exception as error:
        send(channel, describe(error).encode())
        return
    send(channel, b"")
    while (message := requests.get()) is not None:
        try:
            slot, request = pickle.loads(message)  # noqa: S301 (from the pool)
        except Exception as error:  # a task that cannot be rebuilt here
            answer: Step | str = describe(error)
        else:
            answer = table.answer(slot, request)
        send(channel, pickle.dumps(answer))
    table.close()


def main() -> None:
    """The worker process: its standard input is the socket to the pool."""
    # Interrupting is the program's affair: it saves first, and its end is seen on the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _end_with_worker()
    _die_with_parent()
    channel = socket.socket(fileno=os.dup(0))
    # A copy that an environment forks would answer, too, and hide from the pool that this process has ended.
    os.register_at_fork(after_in_child=channel.close)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment that reads its input finds none
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, requests), daemon=True).start()
    try:
        _serve(channel, requests)
    finally:
        os._exit(0)  # not waiting for threads that an environment started
