"""The optimizer and its learning rate."""

from collections.abc import Iterable

import torch
from torch import nn

from bmrl.errors import UsageError


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float, beta2: float
) -> torch.optim.Optimizer:
    """AdamW, its 8-bit form, or that with a state that moves to the computer's memory when the card is full.

    Raises:
        UsageError: an 8-bit form without bitsandbytes, or the paged one without a card to page out of.
    """
    betas = (0.9, beta2)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, betas=betas, weight_decay=weight_decay)
    if name == "paged_adamw8bit" and not torch.cuda.is_available():
        raise UsageError(f"optimizer.name: {name} needs a CUDA device; set optimizer.name=adamw8bit")
    try:
        import bitsandbytes
    except ImportError as error:
        raise UsageError(
            f"optimizer.name: {name} needs bitsandbytes; install it with: pip install 'bmrl[quantization]'"
        ) from error
    kinds = {"adamw8bit": bitsandbytes.optim.AdamW8bit, "paged_adamw8bit": bitsandbytes.optim.PagedAdamW8bit}
    optimizer: torch.optim.Optimizer = kinds[name](parameters, lr=learning_rate, betas=betas, weight_decay=weight_decay)
    return optimizer


def learning_rate(step: int, *, peak: float, warmup_steps: int, schedule: str, steps: int) -> float:
    """Learning rate of a step, counted from 1.

    Linear from 0 to ``peak`` at step ``warmup_steps``; then constant, or linear to 0 just after step ``steps``.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    return peak * max(0, steps + 1 - step) / (steps + 1 - warmup_steps)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Sets the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = value
