"""Environments that misbehave on request; importable by workers, so nothing heavy here."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bmrl.envs.base import Step, Task
from docs.examples.vault import Vault

# What an environment may get wrong in a Step, by field.
GARBAGE: dict[str, Any] = {
    "not a step": None,
    "observation": 7,
    "surrogate": "half a pair \ud83d",
    "reward": "1.0",
    "nan": float("nan"),
    "infinite": float("inf"),
    "terminated": 1,
    "won": None,
    "won early": True,
    "admissible": ["look"],
    "command": ("look", 7),
}
FIELD = {
    "surrogate": "observation",
    "nan": "reward",
    "infinite": "reward",
    "won early": "won",
    "command": "admissible",
}


class Echo:
    """Answers with everything it was told since the reset; some words make it misbehave."""

    def __init__(self, label: str) -> None:
        self.admissible: tuple[str, ...] | None = None
        self._label = label
        self._said: list[str] = []
        self._deeds: dict[str, Callable[[], object]] = {
            "hang": lambda: time.sleep(3600),
            # Backtracks for ages without ever letting another thread run.
            "spin": lambda: re.match("(a+)+$", "a" * 64 + "b"),
            "exit": lambda: os._exit(3),
            "leave": lambda: sys.exit("the game is over"),
            "spawn": lambda: subprocess.Popen(["sleep", "3600"]),
            "fork": os.fork,
            "fork and exit": lambda: time.sleep(3600) if os.fork() == 0 else os._exit(3),
            "wait": lambda: os.waitpid(-1, 0),
            "chatter": lambda: (os.write(1, b"out\n"), os.write(2, b"err\n"), sys.stdin.read()),
            "raise": Path("/no such folder/of mine/game.json").read_text,
        }

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{number}", "echo") for number in range(3)]

    def reset(self, task: Task) -> str:
        self._said = [self._label, task.task_id]
        self.admissible = ("look",)
        return self._hear(task.data or "").observation

    def step(self, action: str) -> Step:
        if action.startswith("garbage "):
            return self._garbage(action.removeprefix("garbage "))
        return self._hear(action)

    def distance(self) -> int | None:
        return None

    def close(self) -> None:
        if self._label == "close raises":
            raise RuntimeError("it does not close")
        if self._label.startswith("close "):
            with Path(self._label.removeprefix("close ")).open("a") as file:
                file.write(f"{self._said[1]}\n")

    def _hear(self, word: str) -> Step:
        self._said += [word] if word else []
        self._deeds.get(word, lambda: None)()
        heavy = {"torch", "transformers", "numpy", "pydantic", "yaml"} & set(sys.modules)
        said = {"pid": str(os.getpid()), "heavy": " ".join(sorted(heavy))}.get(word)
        self.admissible = ("look", word)
        won = word == "win"
        return Step(said or " ".join(self._said), len(word), won, won, self.admissible)

    def _garbage(self, kind: str) -> Any:
        step, value = Step("fine", 0.0, False, False, None), GARBAGE[kind]
        if kind == "not a step":
            return value
        return replace(step, **{FIELD.get(kind, kind): value})


class Trap(Echo):
    """Won by three actions, whatever they are; a task's data says when it misbehaves, and how: (turn, deed)."""

    def reset(self, task: Task) -> str:
        self._task, self._turn = task, -1
        self.admissible = None
        answer = self._next()
        return answer.observation if isinstance(answer, Step) else answer

    def step(self, action: str) -> Step:
        return self._next()

    def _next(self) -> Any:
        self._turn += 1
        turn, deed = self._task.data or (None, "")
        if turn == self._turn and deed == "garbage":
            return b"garbage"
        if turn == self._turn:
            self._deeds[deed]()
        return Step(f"You are at place {self._turn}.", 0.0, self._turn == 3, self._turn == 3, None)


class Unordered(Vault):
    """Lists things in the order of a set, which is another in each process."""

    def reset(self, task: Task) -> str:
        return f"{' '.join({f'thing{n}' for n in range(20)})} {super().reset(task)}"


def make(name: str, *, label: str = "echo") -> Echo:
    if name == "trap":
        return Trap(label)
    if name != "echo":
        raise ValueError(f"no environment {name}")
    return Echo(label)
