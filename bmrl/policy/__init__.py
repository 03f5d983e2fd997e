"""The policy: `model` says what it is, `load` reads it, `adapter` is the part of it that is trained, `linear` makes
its layers quick, `packed` lets episodes share a row, `logprobs` is what the update asks of it."""

from bmrl.policy.adapter import (
    add_reference,
    reference,
    with_adapter,
    with_new_adapter,
)
from bmrl.policy.continuations import continuation_logprobs
from bmrl.policy.linear import Forward, for_sampling, swapped
from bmrl.policy.load import best_device, load, new_model, save_model
from bmrl.policy.logprobs import token_logprobs
from bmrl.policy.model import Policy, seeded
from bmrl.policy.packed import with_packing

__all__ = [
    "Forward",
    "Policy",
    "add_reference",
    "best_device",
    "continuation_logprobs",
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
    "with_packing",
]
