"""Tokens of a run, and hours at given rates; values by hand."""

import pytest

from bmrl.files import recipes_path
from bmrl.recipe import Recipe, load
from bmrl.workload import Tokens, of_evaluation, of_run, of_step

# Of plain text (context.sizes): opening 132, observation 22, action 6.
SETTINGS = (
    "rollout.tasks_per_step=3",
    "rollout.group_size=4",
    "budget.train={kind: mix, turns: [4, 8], weights: [1, 3]}",  # 7 turns on average
    "budget.eval=[5, 10]",
    "train.steps=10",
    "train.eval_every=4",
    "train.eval_tasks=2",
)


def recipe(*more: str, name: str = "quickstart") -> Recipe:
    return load(recipes_path(f"{name}.yaml"), [*SETTINGS, *more])


def test_a_step():
    # Read: 3 groups, the opening once and 4 x 6 observations: 3 x (132 + 24 x 22) = 1980.
    # Written: 12 episodes x 7 x 6 = 504. Trained: 12 x (132 + 6 x 22 + 42) = 3672.
    assert of_step(recipe()) == Tokens(read=1980, written=504, trained=3672)
    assert of_step(recipe("train.epochs_per_step=2")) == Tokens(read=1980, written=504, trained=7344)


def test_an_evaluation_is_one_pass_unless_the_policy_is_told_its_budget():
    # 2 tasks x (132 + 9 x 22), and x 10 x 6
    assert of_evaluation(recipe()) == Tokens(read=660, written=120)
    # 2 x (132 + 4 x 22) more, and 2 x 5 x 6
    assert of_evaluation(recipe("budget.announce=total")) == Tokens(read=660 + 440, written=180)


@pytest.mark.parametrize(("every", "evaluations"), [(4, 4), (5, 3), (0, 0), (100, 2)])  # 0 4 8 10; 0 5 10; none; 0 10
def test_a_run(every, evaluations):
    found = of_run(recipe(f"train.eval_every={every}"))
    assert found.written == 10 * 504 + evaluations * 120


def test_demonstrations():
    sft = load(recipes_path("pocket_sft.yaml"), ["sft.episodes=100", "sft.epochs=2"])
    # 11 turns: 132 + 10 x 22 + 11 x 6 = 418 tokens
    assert of_run(sft) == Tokens(trained=100 * 2 * 418)


def test_hours_at_given_rates():
    rates = Tokens(read=100.0, written=10.0, trained=50.0)
    # 36,000 / 100 + 3,600 / 10 + 18,000 / 50 = 3 x 360 s
    assert Tokens(36_000, 3_600, 18_000).hours(rates) == pytest.approx(0.3)
    assert Tokens(trained=18_000).hours(Tokens(trained=50.0)) == pytest.approx(0.1)
