"""A world whose best action differs by budget: what can be learned of it depends on what is told, and on the mix.

"stay" ends an episode at once and wins 9 of the 16 tasks; "go" twice wins all of them, and needs two turns. Told that one
turn is left, one should stay; told that two are left, one should go. Not told, staying wins 9/16 of either, going wins
nothing in one turn and everything in two, 1/2 on average: the best single choice is to stay. With two turns always, it
is to go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import pytest
import tiny

from bmrl.credit import Credit
from bmrl.envs.base import Shown, Step, Task
from bmrl.envs.pool import Pool
from bmrl.optimizer import make_optimizer
from bmrl.policy import new_model
from bmrl.recipe import FixedBudget, MixBudget
from bmrl.seeds import stream
from bmrl.sft import example, sft_step
from bmrl.trainer import Player, Update, plan_step, train_step

LUCKY, TASKS = 9, 16
GROUPS, SIZE, STEPS = 16, 8, 120


@dataclass
class Arms:
    admissible: tuple[str, ...] | None = None
    lucky: bool = False
    went: int = 0

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{n}", "arms", plan=("go", "go"), data=n < LUCKY) for n in range(TASKS)]

    def split_hash(self, split: str) -> str:
        return "arms"

    def reset(self, task: Task) -> str:
        self.lucky, self.went, self.admissible = task.data, 0, ("go", "stay")
        return "You are at the door."

    def step(self, action: str) -> Step:
        self.went += action == "go"
        won = (action == "stay" and self.lucky) or self.went == 2
        return Step("You go right.", float(won), action == "stay" or won, won, self.admissible)

    def distance(self) -> int | None:
        return 2 - self.went

    def close(self) -> None:
        pass


def make(name: str) -> Arms:
    return Arms()


def started(seed, announce):
    """A policy that has learned to answer with a command: first either as often, whatever it is told, then "go"."""
    policy, chat, rng = (
        new_model(
            tiny.tokenizer(), layers=2, hidden=32, heads=4, kv_heads=2, intermediate=64, context_tokens=128,
            seed=seed, name="arms",
        ),
        tiny.chat(),
        stream(seed, "warm start"),
    )  # fmt: skip
    optimizer = make_optimizer("adamw", policy.trainable.values(), learning_rate=3e-3, weight_decay=0.0, beta2=0.999)
    for _ in range(60):
        rows = []
        for _ in range(32):
            said = [str(rng.choice(["go", "stay"])), "go"]
            turns = [Shown("You are at the door.", said[0], 1.0), Shown("You go right.", said[1], 1.0)]
            budget = int(rng.integers(1, 3))
            rows.append(
                example(turns, chat, announce=announce, budget=budget, observation_weight=1.0, context_tokens=128)
            )
        sft_step(policy, optimizer, rows, micro_batch_tokens=4096, max_grad_norm=1.0)
    return policy


def trained(seed, announce, budget):
    """Share of episodes that go first, by budget, in the last ten steps."""
    policy = started(seed, announce)
    optimizer = make_optimizer("adamw", policy.trainable.values(), learning_rate=2e-4, weight_decay=0.0, beta2=0.999)
    update = Update(credit=Credit("rloo"), entropy_coef=0.01, max_logprob_gap=1e-3)
    last = []
    with Pool("arms", {}, workers=0, timeout_s=30, slots=GROUPS * SIZE, make=make) as pool:
        player = Player(policy, tiny.chat(), pool, GROUPS * SIZE, 4, 128, announce)
        tasks = pool.tasks("train")
        for step in range(1, STEPS + 1):
            plan = plan_step(
                step,
                tasks=tasks,
                split="train",
                seed=seed,
                first=(step - 1) * GROUPS,
                groups=GROUPS,
                group_size=SIZE,
                budget=budget,
            )
            episodes, _ = train_step(
                plan, player, optimizer, update, max_error_share=0.0, on_episode=lambda _: None, poll=lambda: None
            )
            last += episodes if step > STEPS - 10 else []
    return {
        b: fmean(e.turns[0].action == "go" for e in last if e.budget == b) for b in sorted({e.budget for e in last})
    }


MIX = MixBudget(kind="mix", turns=[1, 2])
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])


@pytest.mark.slow
@SEEDS
def test_told_what_is_left_a_mix_learns_to_act_by_it(seed):
    going = trained(seed, "remaining", MIX)
    assert going[1] < 0.1 and going[2] > 0.9


@pytest.mark.slow
@SEEDS
def test_told_nothing_it_learns_the_best_single_choice(seed):
    going = trained(seed, "none", MIX)
    assert going[1] < 0.1 and going[2] < 0.1


@pytest.mark.slow
@SEEDS
def test_one_budget_teaches_one_arm(seed):
    assert trained(seed, "none", FixedBudget(kind="fixed", turns=2))[2] > 0.9
