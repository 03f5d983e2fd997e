"""The policy: `model` says what it is, `load` reads it, `adapter` is the part of it that is trained."""

from bmrl.policy.adapter import (
    add_reference,
    merged_weights,
    reference,
    using_weights,
    with_adapter,
    with_new_adapter,
)
from bmrl.policy.load import load, new_model, save_model
from bmrl.policy.model import Policy, seeded, token_logprobs

__all__ = [
    "Policy",
    "add_reference",
    "load",
    "merged_weights",
    "new_model",
    "reference",
    "save_model",
    "seeded",
    "token_logprobs",
    "using_weights",
    "with_adapter",
    "with_new_adapter",
]
