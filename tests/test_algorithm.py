"""The maths against values derived by hand."""

import math

import pytest
import torch

from bmrl.algorithm import clipped_loss, grpo_advantages, kl_k3, token_weights


def test_grpo_advantages():
    # rewards 1, 0, 0, 0: mean 1/4, variance (9/16 + 3 * 1/16) / 4 = 3/16, std = sqrt(3) / 4;
    # (1 - 1/4) / std = sqrt(3), (0 - 1/4) / std = -1 / sqrt(3)
    assert grpo_advantages([1, 0, 0, 0]) == pytest.approx([3**0.5] + [-(3**-0.5)] * 3)
    assert grpo_advantages([1, 0]) == pytest.approx([1, -1])


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e9, 1 / 3])
def test_equal_rewards_give_exactly_zero(value):
    assert grpo_advantages([value] * 7) == [0.0] * 7


def test_no_reward_no_advantage():
    assert grpo_advantages([]) == []


def test_token_weights():
    # two episodes of 2 and 6 action tokens
    assert token_weights([2, 6], aggregation="token", constant=0) == [1 / 8, 1 / 8]
    assert token_weights([2, 6], aggregation="episode", constant=0) == [1 / 4, 1 / 12]
    assert token_weights([2, 6], aggregation="constant", constant=16) == [1 / 32, 1 / 32]


def test_clipped_loss_and_its_gradient():
    # Ratios 1, 1.5, 0.5, 1.5, 0.5 with advantages 1, 1, 1, -1, -1, bounds 0.8 and 1.28, weights 1.
    # min(r A, clip(r) A): 1, 1.28 (clipped), 0.5, -1.5, -0.8 (clipped): sum 0.48, loss -0.48.
    # d loss / d logprob = -r A where not clipped, else 0: -1, 0, -0.5, 1.5, 0.
    ratios = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5])
    logprobs = ratios.log().requires_grad_()
    loss, ratio, stopped = clipped_loss(
        logprobs,
        torch.zeros(5),
        torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]),
        torch.ones(5),
        clip_low=0.2,
        clip_high=0.28,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-0.48)
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 0.0, -0.5, 1.5, 0.0])
    assert ratio.tolist() == pytest.approx(ratios.tolist())
    assert stopped.tolist() == [False, True, False, False, True]


def test_weights_scale_each_token():
    # At ratio 1 the gradient of a token is -weight * advantage.
    logprobs = torch.zeros(3, requires_grad=True)
    loss, _, _ = clipped_loss(
        logprobs,
        torch.zeros(3),
        torch.tensor([2.0, -1.0, 3.0]),
        torch.tensor([0.5, 0.25, 0.0]),
        clip_low=0.2,
        clip_high=0.2,
    )
    loss.backward()
    assert logprobs.grad.tolist() == [-1.0, 0.25, 0.0]


def test_kl_k3():
    # d = reference - policy = ln 2: 2 - ln 2 - 1; d = 0: 0; d = -ln 2: 1/2 + ln 2 - 1
    policy = torch.tensor([0.0, 0.0, 0.0])
    reference = torch.tensor([math.log(2), 0.0, -math.log(2)])
    expected = [1 - math.log(2), 0.0, math.log(2) - 0.5]
    assert kl_k3(policy, reference).tolist() == pytest.approx(expected)
