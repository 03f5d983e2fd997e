"""Fakes that the tests own: a two-layer policy, a one-corridor world, a sampler that follows a script."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from bmrl.chat import Chat, make_chat
from bmrl.envs.base import Step, Task
from bmrl.pocket import build_tokenizer
from bmrl.policy import Policy, new_model, with_new_adapter
from bmrl.types import Completion

WORDS = "You are at place door the go left right wait Nothing happens . , 1 2 3 4 5 6 7 8 9"


def tokenizer():
    # A word at the start of an action has no blank before it: "go" is a token of its own.
    texts = [*(f" {word}" for word in WORDS.split()), "go", "stay", "fall", "sing"]
    return build_tokenizer(texts, words=60, context_tokens=512)


def chat() -> Chat:
    return make_chat(tokenizer())


def with_the_last(groups, rewards):
    """Rewards of turns from one per episode, which comes with its last turn."""
    return [
        [[0.0] * (len(episode.turns) - 1) + [reward] for episode, reward in zip(group, values, strict=True)]
        for group, values in zip(groups, rewards, strict=True)
    ]


def policy(*, adapter: bool = True, seed: int = 0) -> Policy:
    """Random weights; a new model's are such that the distribution is far from uniform."""
    base = new_model(
        tokenizer(),
        layers=2,
        hidden=32,
        heads=4,
        kv_heads=2,
        intermediate=48,
        context_tokens=512,
        seed=seed,
        name="tiny",
    )
    if not adapter:
        return base
    made = with_new_adapter(base, rank=4, alpha=8, dropout=0.0, targets="all-linear", seed=seed)
    shake(made, seed)
    return made


def shake(policy: Policy, seed: int, scale: float = 0.05) -> None:
    """Moves the adapter off its start, where B is 0 and it has no effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable.values():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(scale * noise.to(parameter.device))


@dataclass
class Corridor:
    """Won by so many "go": the task's length. "stay" is admissible too and does nothing; "fall" loses."""

    admissible: tuple[str, ...] | None = None
    left: int = 0
    played: list[str] = field(default_factory=list)

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{n}", "corridor", plan=("go",) * n, data=n) for n in range(1, 9)]

    def split_hash(self, split: str) -> str:
        return "corridors"

    def reset(self, task: Task) -> str:
        self.left, self.played = task.data, []
        self.admissible = ("fall", "go", "stay")
        return f"You are at place {self.left}."

    def step(self, action: str) -> Step:
        self.played.append(action)
        if action not in ("go", "stay", "fall"):
            return Step("Nothing happens.", 0.0, False, False, self.admissible)
        self.left -= action == "go"
        won, lost = self.left == 0, action == "fall"
        return Step(f"You are at place {self.left}.", float(won), won or lost, won, self.admissible)

    def distance(self) -> int | None:
        return self.left

    def close(self) -> None:
        pass


def make(name: str) -> Corridor:
    """As a pool makes environments, also in worker processes."""
    return Corridor()


class ScriptedSampler:
    """Says what its script says, and writes down what it was given.

    Args:
        script: row's nth action as ids; called with (row, n).
        rows: rows it claims to hold.
    """

    def __init__(self, script, *, rows: int, stop: int) -> None:
        self.rows = rows
        self.script = script
        self.stop = stop
        self.said: dict[int, int] = {}
        self.transcripts: dict[int, list[int]] = {}
        self.prompts: list[tuple[int, ...]] = []  # everything a row held when it was asked for an action
        self.dropped: list[int] = []
        self.deciding: dict[int, int] = {}  # row in a turn -> most tokens of it

    def begin(self, row: int, added: Sequence[int], draws: NDArray[np.float64]) -> None:
        assert row not in self.deciding, "a turn began before the last one was over"
        held = self.transcripts.setdefault(row, [])
        held.extend(added)
        self.prompts.append(tuple(held))
        self.deciding[row] = len(draws)

    def step(self, *, temperature: float, stop_ids: frozenset[int]) -> list[tuple[int, Completion]]:
        assert self.deciding, "nobody was in a turn"
        completed = []
        for row, most in self.deciding.items():
            said = tuple(self.script(row, self.said.get(row, 0)))[:most]
            self.said[row] = self.said.get(row, 0) + 1
            self.transcripts[row].extend(said)
            completed.append((row, Completion(said, (-0.5,) * len(said), said[-1] in stop_ids)))
        self.deciding = {}
        return completed

    def drop(self, row: int) -> None:
        del self.transcripts[row]
        self.said.pop(row)
        self.dropped.append(row)
