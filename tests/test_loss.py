"""The maths against values derived by hand."""

import math

import pytest
import torch

from bmrl.algorithm import clipped_loss, k1, k2, k3, sequence_ratio, token_ratio, token_weights


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
    ratio = token_ratio(logprobs, torch.zeros(5))
    loss, stopped = clipped_loss(
        ratio,
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
    loss, _ = clipped_loss(
        token_ratio(logprobs, torch.zeros(3)),
        torch.tensor([2.0, -1.0, 3.0]),
        torch.tensor([0.5, 0.25, 0.0]),
        clip_low=0.2,
        clip_high=0.2,
    )
    loss.backward()
    assert logprobs.grad.tolist() == [-1.0, 0.25, 0.0]


def test_sequence_ratio_and_its_gradient():
    # Episodes of 2 and 3 tokens; log-ratios ln 4, 0 (mean ln 2: ratio 2) and 0, 0, -ln 8 (mean -ln 2: ratio 1/2).
    # The derivative of a token's ratio s by each log-probability of its episode of n tokens is s / n; of the sum of
    # an episode's ratios, s: 2 for the first episode's tokens, 1/2 for the second's.
    logprobs = torch.tensor([math.log(4), 0.0, 0.0, 0.0, -math.log(8)], requires_grad=True)
    ratio = sequence_ratio(logprobs, torch.zeros(5), [2, 3])
    assert ratio.tolist() == pytest.approx([2.0, 2.0, 0.5, 0.5, 0.5])
    ratio.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([2.0, 2.0, 0.5, 0.5, 0.5])


def test_gspo_loss_by_hand():
    # The ratios above, advantages 1 and -1, bounds 0.9 and 1.1, weights 1 / (2 episodes x own tokens).
    # First: min(2, 1.1) = 1.1, clipped. Second: min(-0.5, -0.9) = -0.9, clipped as well.
    # loss = -(1.1 - 0.9) / 2 = -0.1, and no gradient. With the advantages exchanged: min(-2, -1.1) = -2 and
    # min(0.5, 0.9) = 0.5: loss = (2 - 0.5) / 2 = 0.75; d loss / d logprob = -A s / (2 n): 2/4 = 0.5 and -0.5/6.
    weights = torch.tensor([1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6])
    for sign, expected, gradient in ((1.0, -0.1, [0.0] * 5), (-1.0, 0.75, [0.5, 0.5, -1 / 12, -1 / 12, -1 / 12])):
        logprobs = torch.tensor([math.log(4), 0.0, 0.0, 0.0, -math.log(8)], requires_grad=True)
        ratio = sequence_ratio(logprobs, torch.zeros(5), [2, 3])
        advantages = sign * torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
        loss, _ = clipped_loss(ratio, advantages, weights, clip_low=0.1, clip_high=0.1)
        loss.backward()
        assert loss.item() == pytest.approx(expected)
        assert logprobs.grad.tolist() == pytest.approx(gradient)


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        # policy - reference = -ln 2, 0, ln 2
        (k1, [-math.log(2), 0.0, math.log(2)], [-math.log(2), 0.0, math.log(2)]),  # the gradient is that of k2
        (k2, [math.log(2) ** 2 / 2, 0.0, math.log(2) ** 2 / 2], [-math.log(2), 0.0, math.log(2)]),
        # exp(d) - d - 1 with d = ln 2, 0, -ln 2; the derivative by the policy's is 1 - exp(d)
        (k3, [1 - math.log(2), 0.0, math.log(2) - 0.5], [-1.0, 0.0, 0.5]),
    ],
)
def test_estimators_of_the_kl(estimator, values, gradients):
    policy = torch.zeros(3, requires_grad=True)
    found = estimator(policy, torch.tensor([math.log(2), 0.0, -math.log(2)]))
    found.sum().backward()
    assert found.tolist() == pytest.approx(values)
    assert policy.grad.tolist() == pytest.approx(gradients)


@pytest.mark.parametrize(("estimator", "exact"), [(k1, True), (k2, False), (k3, True)])
def test_means_of_the_estimators_under_the_policy(estimator, exact):
    # Policy 1/2, 1/4, 1/4 and reference 1/4, 1/4, 1/2: KL = 1/2 ln 2 - 1/4 ln 2 = ln 2 / 4.
    # k2 is biased: 1/2 x (ln 2)^2 / 2 + 1/4 x (ln 2)^2 / 2 = 3/8 (ln 2)^2.
    policy, reference = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    mean = float((policy * estimator(policy.log(), reference.log())).sum())
    assert mean == pytest.approx(math.log(2) / 4 if exact else 3 / 8 * math.log(2) ** 2)


@pytest.mark.parametrize(("estimator", "of_reversed"), [(k1, False), (k2, False), (k3, True)])
def test_mean_gradients_of_the_estimators_are_those_of_a_kl(estimator, of_reversed):
    logits = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.tensor([0.25, 0.25, 0.5])
    logprobs = logits.log_softmax(-1)
    (logprobs.detach().exp() * estimator(logprobs, reference.log())).sum().backward()
    found = logits.grad.clone()
    logits.grad = None
    logprobs = logits.log_softmax(-1)
    if of_reversed:
        (reference * (reference.log() - logprobs)).sum().backward()
    else:
        (logprobs.exp() * (logprobs - reference.log())).sum().backward()
    assert found.tolist() == pytest.approx(logits.grad.tolist(), abs=1e-6)
