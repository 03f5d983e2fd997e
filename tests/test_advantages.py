"""Advantages and credit against values derived by hand."""

import pytest
from test_update import episode, turn

from bmrl.algorithm import anchored, centred, leave_one_out, over_batch, rewards_to_go, standardised
from bmrl.credit import Credit, Prices, advantages
from bmrl.types import EndReason

# Returns 1, 0, 0, 0: mean 1/4, variance (9/16 + 3 * 1/16) / 4 = 3/16, std = sqrt(3) / 4.
BY_HAND = [
    (centred, [3 / 4] + [-1 / 4] * 3),
    (standardised, [3**0.5] + [-(3**-0.5)] * 3),  # (3/4) / std and (-1/4) / std
    (leave_one_out, [1.0] + [-1 / 3] * 3),  # 1 - 0, and 0 - 1/3
]


@pytest.mark.parametrize(("function", "expected"), BY_HAND)
def test_advantages_of_a_group(function, expected):
    assert function([1, 0, 0, 0]) == pytest.approx(expected)


@pytest.mark.parametrize("function", [centred, standardised, leave_one_out, over_batch])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e9, 1 / 3])
def test_equal_returns_give_exactly_zero(function, value):
    assert function([value] * 7) == [0.0] * 7
    assert function([value]) == [0.0]
    assert function([]) == []


def test_rewards_to_go():
    # From the back: 1; 0 + 1/2 x 1; -1 + 1/2 x 1/2
    assert rewards_to_go([-1.0, 0.0, 1.0], 0.5) == [-0.75, 0.5, 1.0]
    assert rewards_to_go([], 0.5) == []


def test_anchored_counts_each_episode_once():
    # State a: the first episode's visits 1 and 3 count as their mean 2, the second's is 0: the baseline is 1, not
    # 4/3. State b was seen by one episode alone, twice: nothing to compare.
    states = [["a", "a", "b", "b"], ["a"]]
    returns = [[1.0, 3.0, 5.0, 7.0], [0.0]]
    assert anchored(states, returns, scale=False) == [[0.0, 2.0, 0.0, 0.0], [-1.0]]
    # The means 2 and 0 have the standard deviation 1.
    assert anchored(states, [[2.0, 6.0, 5.0, 7.0], [0.0]], scale=True) == [[0.0, 2.0, 0.0, 0.0], [-1.0]]
    assert anchored([["a"], ["a"]], [[1.0], [1.0]], scale=True) == [[0.0], [0.0]]


# A group of two: success after two turns (rewards 0, 1), failure after three (0, 0, 0); another that both solved at
# once (1), (1). Returns 1, 0 and 1, 1.
REWARDS = [[[0.0, 1.0], [0.0, 0.0, 0.0]], [[1.0], [1.0]]]
STATES = [[["start", "door"], ["start", "hall", "start"]], [["start"], ["start"]]]
TABLE = [
    # episode level: the same number for all turns
    (Credit("grpo"), [[[1.0, 1.0], [-1.0, -1.0, -1.0]], [[0.0], [0.0]]]),
    (Credit("gspo"), [[[1.0, 1.0], [-1.0, -1.0, -1.0]], [[0.0], [0.0]]]),
    (Credit("dr_grpo"), [[[0.5, 0.5], [-0.5, -0.5, -0.5]], [[0.0], [0.0]]]),
    (Credit("rloo"), [[[1.0, 1.0], [-1.0, -1.0, -1.0]], [[0.0], [0.0]]]),
    # less the group's mean: 1/2, -1/2, 0, 0; their standard deviation is sqrt(1/8): sqrt(2), -sqrt(2), 0, 0
    (Credit("reinforce_pp"), [[[2**0.5] * 2, [-(2**0.5)] * 3], [[0.0], [0.0]]]),
    # 1, 0, 1, 1: mean 3/4, std sqrt(3)/4: 1/sqrt(3) and -sqrt(3)
    (
        Credit("reinforce_pp", baseline="batch"),
        [[[3**-0.5] * 2, [-(3**0.5)] * 3], [[3**-0.5], [3**-0.5]]],
    ),
    # turn level, discount 1/2: rewards to go 1/2, 1 and 0, 0, 0; returns 1/2, 0, mean 1/4, std 1/4
    (Credit("rloo", "turn", 0.5), [[[0.5, 1.0], [-0.5, -0.5, -0.5]], [[0.0], [0.0]]]),
    (Credit("dr_grpo", "turn", 0.5), [[[0.25, 0.75], [-0.25, -0.25, -0.25]], [[0.0], [0.0]]]),
    (Credit("grpo", "turn", 0.5), [[[1.0, 3.0], [-1.0, -1.0, -1.0]], [[0.0], [0.0]]]),
    # episode: 1/2, -1/2. step, discount 1/2: "start" has 1/2 (first) and the mean of 0, 0 (second): baseline 1/4
    (Credit("gigpo", discount=0.5), [[[0.75, 0.5], [-0.75, -0.5, -0.75]], [[0.0], [0.0]]]),
    (Credit("gigpo", discount=0.5, step_weight=2.0), [[[1.0, 0.5], [-1.0, -0.5, -1.0]], [[0.0], [0.0]]]),
    # divided by 1/2 and by 1/4: 1, -1 and, at "start", 1, -1
    (Credit("gigpo", discount=0.5, scale=True), [[[2.0, 1.0], [-2.0, -1.0, -2.0]], [[0.0], [0.0]]]),
]


@pytest.mark.parametrize(("credit", "expected"), TABLE, ids=str)
def test_advantage_of_each_turn(credit, expected):
    found = advantages(REWARDS, STATES, credit)
    for group, of_group in zip(found, expected, strict=True):
        for turns, of_turns in zip(group, of_group, strict=True):
            assert turns == pytest.approx(of_turns)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
def test_turn_credit_without_discount_is_episode_credit_where_only_the_end_is_rewarded(name):
    by_turn, by_episode = (advantages(REWARDS, STATES, Credit(name, per)) for per in ("turn", "episode"))
    assert by_turn == by_episode


def test_rewards_of_turns_come_with_the_turn():
    won = episode(EndReason.SUCCESS, turn(valid=False), turn())
    assert Prices(2.0, -0.5, -0.25).of_turns(won) == [-0.75, 1.75]
    lost = episode(EndReason.BUDGET, turn(), turn(valid=False))
    assert Prices(2.0, -0.5, -0.25).of_turns(lost) == [-0.25, -0.75]
