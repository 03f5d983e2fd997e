"""4-bit base weights (NF4, double quantization) through bitsandbytes, which are read and never written.

An adapter is never merged into them: it would be rounded away. Sampler and update compute it apart.

On a CPU with AVX-512 bfloat16, bitsandbytes puts the weights of a layer into another order at the first forward in
evaluation mode whose input needs no gradient, and computes later gradients from that order as if it were the first
one: they are wrong (cosine about 0.2 to the right ones) and nothing says so. A rollout is such a forward and the
update follows it. So no layer is allowed the other order, and an update refuses weights that are in it.
"""

from typing import Any

import torch

from bmrl.errors import BmrlError, UsageError

FLAG = "support_avx512bf16_for_cpu"  # of a 4-bit layer: whether it may reorder its weights


def settings(dtype: str) -> Any:
    """What transformers quantizes by while it loads.

    Args:
        dtype: that products are computed in.

    Raises:
        UsageError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "model.quantization: nf4 needs bitsandbytes; install it with: pip install 'bmrl[quantization]'"
        ) from error
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )


def keep_order(causal: Any, name: str) -> None:
    """Forbids the 4-bit layers of a model to reorder their weights.

    Raises:
        BmrlError: a linear layer of the decoder is not in 4 bit, or not in NF4 with double quantization.
    """
    for where, module in causal.get_decoder().named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        state = getattr(module.weight, "quant_state", None)
        if state is None or state.quant_type != "nf4" or not state.nested:
            raise BmrlError(
                f"model.quantization: {name} was not loaded in NF4: {where} is {type(module).__name__}; bitsandbytes "
                "does not take layers narrower than 64, and checkpoints that are quantized already are not requantized"
            )
    for module in causal.modules():
        if hasattr(module, FLAG):
            setattr(module, FLAG, False)


def refuse_reordered(causal: Any) -> None:
    """Refuses to compute gradients with weights that have been reordered.

    Raises:
        BmrlError: a layer was allowed to do it.
    """
    if not getattr(causal, "is_loaded_in_4bit", False):
        return
    for where, module in causal.named_modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if getattr(state, "packing_format_for_cpu", False):
            raise BmrlError(
                f"the 4-bit weights of {where} were reordered by an evaluation, and gradients would be wrong; nothing "
                "was learned from this step. Load the model through bmrl.policy.load, or start again with --resume"
            )
