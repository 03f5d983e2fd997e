"""Success does not depend on how long an episode is: then nothing may be gained, or lost, by taking one more turn.

The expected gradient of such a world is 0, and every algorithm's estimate of it is a mean over groups: z is how many
standard errors it lies from 0. The baseline of the group is that of whole episodes; one keyed by the number of the
turn is shown to have a bias (the hidden bonus of verl-project/verl#7244).
"""

import math
from statistics import fmean

import numpy as np
import pytest
import torch

from bmrl.algorithm import clipped_loss, sequence_ratio, token_ratio, token_weights
from bmrl.credit import Credit, advantages
from bmrl.seeds import stream

GOES_ON, WINS = 0.7, 0.4  # probability of one more turn; of success, whatever was done
BUDGET, GROUP, STEPS = 8, 4, 4000


def played(rng):
    """One group: of each episode whether it went on at each of its turns, and whether it won."""
    group = []
    for _ in range(GROUP):
        moves = []
        while len(moves) < BUDGET and (not moves or moves[-1]):
            moves.append(bool(rng.random() < GOES_ON))
        group.append((moves, bool(rng.random() < WINS)))
    return group


def by_turn_index(rewards, states, credit):
    """What must not be done: an episode is held against those of its group that ended with the same turn.

    One that is alone there keeps its whole return, as in a group of one: rare lengths are paid for being rare.
    """
    found = []
    for group in rewards:
        same = {len(turns): [sum(other) for other in group if len(other) == len(turns)] for turns in group}
        baseline = {length: fmean(returns) if len(returns) > 1 else 0.0 for length, returns in same.items()}
        found.append([[sum(turns) - baseline[len(turns)]] * len(turns) for turns in group])
    return found


def z(credit, aggregation, *, ratio="token", function=advantages):
    """Standard errors between 0 and the mean gradient by the logit of going on, which an update follows upwards."""
    gradients = []
    rng = stream(0, "length bias")
    for _ in range(STEPS):
        group = played(rng)
        rewards = [[0.0] * (len(moves) - 1) + [float(won)] for moves, won in group]
        states = [["corridor"] * len(moves) for moves, _ in group]
        [found] = function([rewards], [states], credit)
        kept = [i for i, turns in enumerate(found) if any(turns)]
        if not kept:
            gradients.append(0.0)
            continue
        lengths = [len(group[i][0]) for i in kept]
        weights = token_weights(lengths, aggregation=aggregation, constant=float(BUDGET))
        if aggregation == "constant":
            weights = [w * len(kept) / GROUP for w in weights]
        logit = torch.tensor(math.log(GOES_ON / (1 - GOES_ON)), dtype=torch.float64, requires_grad=True)
        sign = torch.tensor([1.0 if went else -1.0 for i in kept for went in group[i][0]], dtype=torch.float64)
        logprobs = torch.nn.functional.logsigmoid(sign * logit)
        of_tokens = torch.tensor([a for i in kept for a in found[i]], dtype=torch.float64)
        of_weights = torch.tensor([w for w, n in zip(weights, lengths, strict=True) for _ in range(n)])
        old = logprobs.detach()
        change = sequence_ratio(logprobs, old, lengths) if ratio == "sequence" else token_ratio(logprobs, old)
        loss, _ = clipped_loss(change, of_tokens, of_weights, clip_low=0.2, clip_high=0.28)
        loss.backward()
        gradients.append(-float(logit.grad))
    return float(np.mean(gradients) / (np.std(gradients) / len(gradients) ** 0.5))


UNBIASED = [
    (Credit("rloo"), "constant"),
    (Credit("dr_grpo"), "constant"),
    (Credit("rloo", "turn"), "constant"),
    (Credit("dr_grpo", "turn"), "constant"),
]


@pytest.mark.parametrize(("credit", "aggregation"), UNBIASED, ids=str)
def test_nothing_is_gained_by_one_more_turn(credit, aggregation):
    assert abs(z(credit, aggregation)) < 3


def test_a_baseline_keyed_by_the_turn_would_be_found_out():
    assert abs(z(Credit("rloo"), "constant", function=by_turn_index)) > 3


@pytest.mark.parametrize(
    ("credit", "aggregation", "ratio"),
    [
        (Credit("grpo"), "constant", "token"),
        (Credit("grpo"), "episode", "token"),
        (Credit("grpo"), "token", "token"),
        (Credit("reinforce_pp"), "constant", "token"),
        (Credit("reinforce_pp", baseline="batch"), "constant", "token"),
        (Credit("gspo"), "episode", "sequence"),
        (Credit("gigpo", discount=1.0), "constant", "token"),
    ],
    ids=str,
)
def test_of_the_others_no_bias_is_seen_either_where_success_is_independent_of_length(credit, aggregation, ratio):
    assert abs(z(credit, aggregation, ratio=ratio)) < 3


@pytest.mark.parametrize("credit", [Credit("gigpo", discount=0.95), Credit("rloo", "turn", 0.95)], ids=str)
def test_a_discount_makes_episodes_shorter(credit):
    # That is what a discount is for: the same success is worth more the fewer turns come before it.
    assert z(credit, "constant") < -3
