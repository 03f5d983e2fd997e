"""The policy: `model` says what it is, `load` reads it, `adapter` is the part of it that is trained."""

from bmrl.policy.adapter import (
    Swaps,
    add_reference,
    for_sampling,
    reference,
    swapped,
    with_adapter,
    with_new_adapter,
)
from bmrl.policy.load import load, new_model, save_model
from bmrl.policy.model import Policy, seeded, token_logprobs

__all__ = [
    "Policy",
    "Swaps",
    "add_reference",
    "for_sampling",
    "load",
    "new_model",
    "reference",
    "save_model",
    "seeded",
    "swapped",
    "token_logprobs",
    "with_adapter",
    "with_new_adapter",
]
