"""The policy: loading, the adapter, and log-probabilities of sampled tokens.

The sampler (``sampler.py``) and the update share the model, the adapter and the two functions below, so that
both speak of the same distribution.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bmrl.errors import BmrlError, UsageError
from bmrl.files import data_path

REFERENCE = "reference"  # name of the frozen adapter that the KL is against
# Positions per slice of the output layer: 1,024 x a vocabulary of 150,000 in fp32 is 0.6 GB.
HEAD_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model with what is trained of it.

    Attributes:
        model: the transformers model; with an adapter, the peft model around it.
        causal: the transformers model itself, adapter layers inside.
        tokenizer: its tokenizer.
        device: where it lives.
        name: how recipes name it, free of machine paths.
    """

    model: Any
    causal: Any
    tokenizer: Any
    device: torch.device
    name: str

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


def best_device() -> torch.device:
    """The CUDA card if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def locate(name: str) -> str:
    """The folder or hub id behind a model name; ``pocket`` is the embedded policy."""
    if name != "pocket":
        return name
    folder = data_path("pocket")
    if not (folder / "model.safetensors").is_file():
        raise BmrlError(
            "data/pocket/model.safetensors is missing; reinstall bmrl, or train the pocket policy with: "
            "bmrl sft recipes/pocket_sft.yaml"
        )
    return str(folder)


def load(
    name: str,
    *,
    dtype: str,
    quantization: str = "none",
    gradient_checkpointing: bool = False,
    device: torch.device | None = None,
) -> Policy:
    """Loads a model without an adapter; its weights are frozen only once an adapter is added.

    Args:
        name: ``pocket``, a local folder, or a hub id.
        dtype: ``float32`` or ``bfloat16``.
        quantization: ``none`` or ``nf4`` (bitsandbytes, double quantization).
        gradient_checkpointing: recompute activations in the backward pass.

    Raises:
        UsageError: the model is of a kind that does not work here.
        BmrlError: the model is not there, or its files are damaged.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    _quiet()
    device = device or best_device()
    where = locate(name)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if quantization == "nf4":
        options["quantization_config"] = _nf4(dtype)
        options["device_map"] = {"": device}
    try:
        config = AutoConfig.from_pretrained(where)
        _check_kind(name, config)
        # SDPA leaves out the capping of attention scores (Gemma 2).
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        tokenizer = AutoTokenizer.from_pretrained(where)
        causal, found = AutoModelForCausalLM.from_pretrained(
            where,
            attn_implementation="eager" if capped else "sdpa",
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the name
            **options,
        )
    except UsageError:
        raise
    except Exception as error:  # hub, tokenizer, config and safetensors errors have no common class
        if Path(where).is_dir():
            problem = _one_line(error).replace(where, name)
            raise BmrlError(f"model.name: {name} cannot be loaded: {problem}; are its files complete?") from error
        raise BmrlError(
            f"model.name: {name} is neither on this disk nor to be had from the hub; without network run: "
            "bmrl train recipes/quickstart.yaml"
        ) from error
    # transformers would go on with random weights in their place.
    if odd := sorted(found["missing_keys"]) or sorted(key for key, *_ in found["mismatched_keys"]):
        raise BmrlError(
            f"model.name: {name} cannot be loaded: its weights do not fit its config.json; {odd[0]} is "
            f"{'missing' if found['missing_keys'] else 'of another shape'}; download the model again"
        )
    if quantization == "none":
        causal = causal.to(device)
    for module in causal.modules():
        # bitsandbytes repacks 4-bit weights for AVX-512 at the first forward without gradients, and gradients
        # after that are silently wrong (cosine 0.2 to the right ones). A rollout is such a forward.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    policy = Policy(causal, causal, tokenizer, device, name)
    _check_logits(policy)
    if gradient_checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def _check_kind(name: str, config: Any) -> None:
    """Refuses kinds of models that the sampler's cache of keys and values cannot serve."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if kind is None or config.is_encoder_decoder or getattr(config, "is_decoder", True) is False:
        reason = "is no decoder-only language model"
    elif kind._is_stateful or layers - {"full_attention", "sliding_attention"}:
        reason = "remembers more than keys and values (Mamba, hybrids, linear or chunked attention)"
    elif not kind._supports_sdpa:
        reason = "has an attention that torch's scaled_dot_product_attention cannot do"
    else:
        return
    raise UsageError(
        f"model.name: {name} ({config.model_type}) {reason}; use a decoder such as Llama, Qwen2.5, Qwen3 or Gemma"
    )


def _check_logits(policy: Policy) -> None:
    """Refuses a model that does to its logits what ``Policy.logits`` does not know of."""
    ids = torch.arange(4, device=policy.device)[None]
    with torch.no_grad():
        theirs = policy.causal(input_ids=ids, use_cache=False).logits.float()
        ours = policy.logits(policy.hidden(input_ids=ids, use_cache=False))
    # The model may scale in its own precision, we do in fp32: a rounding or two apart.
    allowed = 4 * torch.finfo(policy.causal.dtype).eps * theirs.abs().max()
    if not (ours - theirs).abs().max() <= allowed:
        raise UsageError(
            f"model.name: {policy.name} ({policy.causal.config.model_type}) gives other logits than its output layer; "
            "it cannot be trained here"
        )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 240 else text[:240] + " ..."


def _quiet() -> None:
    # Its bars and reports would break our own display; what it reports is checked here.
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _nf4(dtype: str) -> Any:
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
            raise UsageError(f"lora.targets: {_one_line(error)}") from error
    return Policy(model, policy.causal, policy.tokenizer, policy.device, policy.name)


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
        with seeded(0):  # what it draws is overwritten below
            model = get_peft_model(policy.causal, config)
        tensors = load_file(folder / "adapter_model.safetensors")
    except UsageError:
        raise
    except Exception as error:  # peft raises several kinds for a damaged or foreign adapter
        raise BmrlError(f"model.adapter: {folder} does not fit {policy.name}: {_one_line(error)}") from error
    adapted = Policy(model, policy.causal, policy.tokenizer, policy.device, policy.name)
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


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global generator, seeded inside and as it was afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def new_model(
    tokenizer: Any,
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    context_tokens: int,
    seed: int,
    name: str,
) -> Policy:
    """A Llama-architecture model with random weights, fp32, embeddings tied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    with seeded(seed):
        causal = LlamaForCausalLM(config)
    causal.to(best_device())
    return Policy(causal, causal, tokenizer, best_device(), name)


def save_model(policy: Policy, folder: Path, *, dtype: str) -> None:
    """Writes model and tokenizer in plain transformers format; the weights become ``dtype`` for good."""
    _quiet()
    folder.mkdir(parents=True, exist_ok=True)
    policy.causal.to(getattr(torch, dtype)).save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def token_logprobs(policy: Policy, ids: Tensor, picked: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens given all before them, where ``picked``; the rest is never computed.

    Rows are padded on the right: under causal attention no picked token sees the padding. The (batch, time,
    vocabulary) logits never exist: the output layer runs on slices of the picked positions and is recomputed
    in the backward pass.

    Args:
        ids: (batch, time) token ids.
        picked: (batch, time) bool; never true at time 0.
        temperature: the logits are divided by it, as in sampling.

    Returns:
        logprobs, (n,) fp32 nats, and entropies of the same distributions, (n,), detached; in row order.
    """
    states = policy.hidden(input_ids=ids, use_cache=False)
    before = states[:, :-1][picked[:, 1:]]  # (n, width): the state that predicts each picked token
    targets = ids[:, 1:][picked[:, 1:]]  # (n,)

    def piece(state: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(policy.logits(state) / temperature, dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
        return logprobs.gather(-1, target[:, None]).squeeze(-1), entropy

    pieces = [
        checkpoint(piece, state, target, use_reentrant=False) if torch.is_grad_enabled() else piece(state, target)
        for state, target in zip(torch.split(before, HEAD_CHUNK), torch.split(targets, HEAD_CHUNK), strict=True)
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
