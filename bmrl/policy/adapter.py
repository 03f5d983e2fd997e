"""The LoRA adapter: a new one, a stored one, and the frozen one that the KL is against."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import nn

from bmrl.errors import BmrlError, UsageError
from bmrl.policy import unsloth
from bmrl.policy.linear import lay_out
from bmrl.policy.model import Policy, one_line, seeded

REFERENCE = "reference"  # name of the frozen adapter that the KL is against


def with_new_adapter(
    policy: Policy, *, rank: int, alpha: int, dropout: float, targets: str | list[str], seed: int
) -> Policy:
    """Adds a fresh LoRA adapter; it changes nothing until it is trained (B is 0).

    Args:
        seed: decides the initial A matrices.

    Raises:
        UsageError: a target is no module of the model.
    """
    from peft import LoraConfig, get_peft_model

    if isinstance(targets, list):
        modules = [n for n, _ in policy.causal.named_modules()]
        if unknown := [t for t in targets if not any(n == t or n.endswith(f".{t}") for n in modules)]:
            linear = {n.rpartition(".")[2] for n, m in policy.causal.named_modules() if isinstance(m, nn.Linear)}
            raise UsageError(
                f"lora.targets: {policy.name} has no module {unknown[0]}; it has {', '.join(sorted(linear))}; "
                "or say all-linear"
            )
    inside = {*policy.causal.get_decoder().modules(), policy.causal.get_output_embeddings()}
    # The image encoder of Gemma 3 has modules of the same names, and takes no part.
    outside = [n for n, m in policy.causal.named_modules() if isinstance(m, nn.Linear) and m not in inside]
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        exclude_modules=outside or None,
        task_type="CAUSAL_LM",
    )
    with seeded(seed):
        try:
            model = get_peft_model(policy.causal, config)
        except ValueError as error:
            raise UsageError(f"lora.targets: {one_line(error)}") from error
    return unsloth.adapted(lay_out(replace(policy, model=model)))


def with_adapter(policy: Policy, folder: Path, *, rank: int | None = None) -> Policy:
    """Adds the adapter of a folder in peft's format, trainable.

    Args:
        rank: what the recipe says; a different rank in the folder is refused.

    Raises:
        BmrlError: no adapter there, or it does not fit the model.
    """
    from peft import PeftConfig, get_peft_model
    from safetensors.torch import load_file

    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / file).is_file():
            raise BmrlError(f"model.adapter: {folder} holds no {file}; name an adapter folder or a finished run")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        if config.peft_type != "LORA":
            raise UsageError(f"model.adapter: {folder} is a {config.peft_type} adapter; only LoRA works here")
        if rank is not None and config.r != rank:
            raise UsageError(
                f"lora.rank: the recipe says {rank}, the adapter in {folder} has {config.r}; set lora.rank={config.r}"
            )
        config.inference_mode = False
        with seeded(0), warnings.catch_warnings():  # what it draws is overwritten below
            # The name of the base model is ours ("pocket"), not the path that peft sees; shapes are checked below.
            warnings.filterwarnings("ignore", message="(?s).*correct base model")
            model = get_peft_model(policy.causal, config)
        tensors = load_file(folder / "adapter_model.safetensors")
    except UsageError:
        raise
    except Exception as error:  # peft raises several kinds for a damaged or foreign adapter
        raise BmrlError(f"model.adapter: {folder} does not fit {policy.name}: {one_line(error)}") from error
    adapted = unsloth.adapted(lay_out(replace(policy, model=model)))
    # peft itself would leave out, or leave as they are, tensors whose names do not match.
    adapted.load_adapter_tensors(tensors, source=f"model.adapter: {folder}")
    return adapted


def add_reference(policy: Policy, folder: Path) -> None:
    """Loads the adapter of a folder a second time, frozen: the reference of the KL."""
    policy.model.load_adapter(str(folder), adapter_name=REFERENCE, is_trainable=False)
    policy.model.set_adapter("default")


@contextmanager
def reference(policy: Policy) -> Iterator[None]:
    """Within it the model is the reference: the adapter that training started from, or none."""
    if REFERENCE in policy.model.peft_config:
        policy.model.set_adapter(REFERENCE)
        try:
            yield
        finally:
            policy.model.set_adapter("default")
    else:
        with policy.model.disable_adapter():
            yield
