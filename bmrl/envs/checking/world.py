"""What the checks look at, and how they tell what they saw."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bmrl.envs.base import Env, Step, Task
from bmrl.envs.replay import Fault, play

Answers = list[Step | Fault]
NONSENSE = "xyzzy plugh"


@dataclass(frozen=True, slots=True)
class World:
    """What is checked.

    Attributes:
        build: makes an environment.
        tasks: of each split.
        scripts: sampled tasks with actions to play; each task comes with its plan, if it has one, and a wander.
        turns: the largest budget it is to bear.
        before: shared state before anything was made.
    """

    build: Callable[[], Env]
    tasks: Mapping[str, Sequence[Task]]
    scripts: Sequence[tuple[Task, tuple[str, ...]]]
    turns: int
    before: Mapping[str, Any]

    def sample(self) -> list[Task]:
        """The sampled tasks."""
        return list({id(task): task for task, _ in self.scripts}.values())

    def played(self) -> Iterator[tuple[Task, tuple[str, ...], Answers]]:
        """Every script in an environment of its own."""
        for task, actions in self.scripts:
            yield task, actions, play(self.build(), task, actions)


def build(world: str | Callable[..., Env], args: Mapping[str, Any]) -> Env:
    """One environment, of a name or a class; importable, so that workers can do it, too."""
    from bmrl.envs import make

    return make(world, **args) if isinstance(world, str) else world(**args)


def after(said: Sequence[str], turn: int) -> str:
    """When that was: the action before."""
    return f"after {short(said[turn - 1])}" if turn else "at the start"


def short(text: str) -> str:
    """A text in quotes, on one line, cut to what can be read."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}… ({len(text):,} characters)"
