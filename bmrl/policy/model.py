"""A model with its adapter.

Sampler and update both go through ``hidden`` and ``logits``, so that they speak of the same distribution.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bmrl.errors import BmrlError


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model with what is trained of it.

    Attributes:
        model: the transformers model; with an adapter, the peft model around it.
        causal: the transformers model itself, adapter layers inside.
        tokenizer: its tokenizer.
        device: where it lives.
        name: how recipes name it, free of machine paths.
        packs: whether episodes can share a row, see ``with_packing``; otherwise rows are padded.
        backend: what loaded it, ``transformers`` or ``unsloth``.
    """

    model: Any
    causal: Any
    tokenizer: Any
    device: torch.device
    name: str
    packs: bool = False
    backend: str = "transformers"

    @property
    def adapted(self) -> bool:
        return self.model is not self.causal

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Name -> parameter, in the order of the model; what the optimizer gets."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states (batch, time, width) of the decoder."""
        states: Tensor = self.causal.get_decoder()(**inputs).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits (..., vocabulary) of hidden states (..., width)."""
        logits: Tensor = self.causal.get_output_embeddings()(hidden).float()
        # What families do after the output layer; ``load`` refuses a model that does anything else.
        config = self.causal.config.get_text_config()
        logits = logits * (getattr(config, "logit_scale", None) or 1.0)  # Cohere
        logits = logits / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
        cap = getattr(config, "final_logit_softcapping", None)  # Gemma
        return torch.tanh(logits / cap) * cap if cap else logits

    def adapter_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores: the adapter in peft's naming, or all weights without one."""
        if not self.adapted:
            return {n: p.detach() for n, p in self.causal.named_parameters()}
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(self.model, adapter_name="default"))

    def adapter_config(self) -> dict[str, Any]:
        """The adapter's configuration as plain JSON data, free of machine paths."""
        if not self.adapted:
            return {}
        config = self.model.peft_config["default"].to_dict()
        config = json.loads(json.dumps(config, default=lambda x: sorted(x) if isinstance(x, set) else str(x)))
        base = Path(self.name).name if Path(self.name).is_absolute() else self.name
        return {**config, "base_model_name_or_path": base, "inference_mode": True}

    def load_adapter_tensors(self, tensors: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
        """Puts stored tensors back, bit for bit.

        Args:
            source: where they come from, for the error.

        Raises:
            BmrlError: a tensor is missing, unknown or of another shape.
        """
        own = self.adapter_tensors()
        if set(own) != set(tensors):
            odd = sorted(set(own) ^ set(tensors))[0]
            raise BmrlError(f"{source} does not fit the model: {odd} stands only on one side; was the recipe changed?")
        with torch.no_grad():
            for name, tensor in own.items():
                if tensor.shape != tensors[name].shape:
                    raise BmrlError(
                        f"{source} does not fit the model: {name} is {tuple(tensors[name].shape)}, "
                        f"the model has {tuple(tensor.shape)}"
                    )
                tensor.copy_(tensors[name])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global generator, seeded inside and as it was afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def one_line(error: Exception) -> str:
    """What a library says of its own failure, short and in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 240 else text[:240] + " ..."
