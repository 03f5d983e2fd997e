"""The maths of the update: pure functions on tensors and plain numbers; see docs/algorithms."""

from bmrl.algorithm.advantages import centred, leave_one_out, over_batch, rewards_to_go, standardised
from bmrl.algorithm.anchors import anchored
from bmrl.algorithm.kl import k1, k2, k3
from bmrl.algorithm.loss import clipped_loss, sequence_ratio, token_ratio, token_weights

__all__ = [
    "anchored",
    "centred",
    "clipped_loss",
    "k1",
    "k2",
    "k3",
    "leave_one_out",
    "over_batch",
    "rewards_to_go",
    "sequence_ratio",
    "standardised",
    "token_ratio",
    "token_weights",
]
