"""A whole world of one's own: a row of rooms, a key in one of them, a chest in another."""

import hashlib
from random import Random

from bmrl.envs import Step, Task

SPLITS = {"train": 40, "valid_seen": 20}


class Vault:
    """Find the key, find the chest, open it.

    Args:
        rooms: how many there are.
    """

    instructions = "The commands are: go left, go right, take key, open chest."

    def __init__(self, rooms: int = 6) -> None:
        if rooms < 2:
            raise ValueError(f"rooms is {rooms}; a key and a chest need 2")
        self.rooms = rooms
        self.admissible: tuple[str, ...] | None = None

    def splits(self) -> list[str]:
        return list(SPLITS)

    def tasks(self, split: str) -> list[Task]:
        rng = Random(f"vault/{split}/{self.rooms}")  # a stream of its own: the same tasks whenever asked
        tasks = []
        for number in range(SPLITS[split]):
            start = rng.randrange(self.rooms)
            key, chest = rng.sample(range(self.rooms), 2)
            plan = (*walk(start, key), "take key", *walk(key, chest), "open chest")
            tasks.append(Task(f"{split}-{number}", "vault", plan, data=(start, key, chest)))
        return tasks

    def split_hash(self, split: str) -> str:
        return hashlib.sha256(repr([task.data for task in self.tasks(split)]).encode()).hexdigest()

    def reset(self, task: Task) -> str:
        self.at, self.key, self.chest = task.data  # the key's room; None: in hand
        self.open = False
        return f"There are {self.rooms} rooms in a row. {self._look()}\n\nYour task is to: open the chest."

    def step(self, action: str) -> Step:
        if action not in (self.admissible or ()):
            return Step("Nothing happens.", 0.0, False, False, self.admissible)
        if action == "take key":
            self.key = None
        elif action == "open chest":
            self.open = True
        else:
            self.at += 1 if action == "go right" else -1
        return Step(self._look(), float(self.open), self.open, self.open, self.admissible)

    def distance(self) -> int | None:
        if self.open:
            return 0
        to_key = 0 if self.key is None else abs(self.at - self.key) + 1
        return to_key + abs((self.at if self.key is None else self.key) - self.chest) + 1

    def close(self) -> None:
        self.admissible = None

    def _look(self) -> str:
        can = {"go left": self.at > 0, "go right": self.at < self.rooms - 1, "take key": self.at == self.key}
        can["open chest"] = self.at == self.chest and self.key is None
        self.admissible = tuple(sorted(command for command, possible in can.items() if possible))
        things = [name for name, room in (("a key", self.key), ("a chest", self.chest)) if room == self.at]
        return f"You are in room {self.at + 1}. You see {' and '.join(things) or 'nothing'}."


def walk(start: int, end: int) -> tuple[str, ...]:
    """Commands from one room to another."""
    return ("go right" if end > start else "go left",) * abs(end - start)
