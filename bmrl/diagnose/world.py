"""What a diagnosis is of: the world, and how much of it is played."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from bmrl.diagnose.bank import Bank
from bmrl.envs import Env, Explorer, Judge, Task


@dataclass(frozen=True, slots=True)
class World:
    """Where it is played.

    Attributes:
        env: of its own for the diagnosis, which plays transcripts again in it.
        judge, expert: make a judge and an exploring expert from an opening; None where the environment has none.
    """

    name: str
    env: Env
    split: str
    split_hash: str
    tasks: Sequence[Task]
    judge: Callable[[str], Judge] | None = None
    expert: Callable[[str, Random], Explorer] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is played.

    Attributes:
        budgets: turns.
        seeds: every task is played once for each.
        announce: what the players are told of their budget.
        states: of each source in each bank.
        samples: actions drawn at a state where the probability of each cannot be had.
        strengths: how many actions are forced, to see the recovery; empty forces none.
        bank: one to use, of the same tasks; else one is drawn.
    """

    budgets: Sequence[int]
    seeds: Sequence[int] = (0,)
    announce: str = "none"
    states: int = 20
    samples: int = 8
    strengths: Sequence[int] = (1, 2, 4, 8)
    bank: Bank | None = None

    @property
    def most(self) -> int:
        """The largest budget."""
        return max(self.budgets)

    @property
    def told(self) -> bool:
        """Whether each budget has to be played."""
        return self.announce != "none"

    @property
    def passes(self) -> list[int]:
        """Budgets that are played."""
        return sorted(self.budgets) if self.told else [self.most]


def explored(world: World, task: Task, expert: Callable[[str, Random], Explorer], most: int) -> list[str]:
    """What the exploring expert does, in ``most`` turns at most."""
    # Keyed as in the baselines: its first play of the search reference.
    player = expert(world.env.reset(task), Random(f"search/{task.task_id}/0"))
    actions: list[str] = []
    while len(actions) < most:
        actions.append(player.act())
        step = world.env.step(actions[-1])
        if step.terminated:
            break
        player.observe(actions[-1], step.observation)
    return actions
