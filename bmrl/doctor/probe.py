"""What only an import or the network can tell, in a process of its own: ``python -P probe.py NAME``.

A native library that crashes, or an import that hangs, then costs one line of the doctor's. Prints one line of JSON.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

HUB_TIMEOUT_S = 5.0


def torch() -> dict[str, Any]:
    """Version and build of torch, and the cards that it sees."""
    import torch

    found: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "cards": []}
    with warnings.catch_warnings(record=True) as told:  # which is where it speaks of an old driver
        warnings.simplefilter("always")
        found["available"] = torch.cuda.is_available()
    found["warning"] = _line(told[0].message) if told else ""
    for index in range(torch.cuda.device_count() if found["available"] else 0):
        card: dict[str, Any] = {"name": "", "capability": [0, 0], "free": 0, "total": 0, "error": ""}
        try:
            card["name"] = torch.cuda.get_device_name(index)
            card["capability"] = list(torch.cuda.get_device_capability(index))
            card["free"], card["total"] = torch.cuda.mem_get_info(index)
            if float(torch.ones(8, device=f"cuda:{index}").sum()) != 8:
                card["error"] = "a sum of eight ones is not 8"
        except Exception as error:
            card["error"] = _line(error)
        found["cards"].append(card)
    return found


def bitsandbytes() -> dict[str, Any]:
    """Whether its kernels run on the device at hand: 4 bit there and back, a step of the 8-bit optimizer."""
    import bitsandbytes
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"version": bitsandbytes.__version__, "device": device, "faults": []}

    def nf4() -> float:
        whole = torch.linspace(-1, 1, 4096, device=device).view(64, 64)
        packed, state = bitsandbytes.functional.quantize_4bit(whole, quant_type="nf4", compress_statistics=True)
        return float((bitsandbytes.functional.dequantize_4bit(packed, state) - whole).abs().max())

    def adamw8bit() -> float:
        weight = torch.nn.Parameter(torch.ones(64, 64, device=device))  # 4,096: fewer entries stay in 32 bit
        optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=0.1, weight_decay=0.0)
        weight.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return abs(0.9 - float(weight.detach().mean()))  # Adam's first step is the learning rate

    # NF4's levels are up to 0.3 apart, and blocks that are scaled in 8 bit add a little.
    for name, run, most in (("nf4", nf4, 0.2), ("adamw8bit", adamw8bit, 0.01)):
        try:
            if not (error := run()) <= most:
                found["faults"].append(f"{name} is off by {error:.2g}")
        except Exception as error:
            found["faults"].append(f"{name}: {_line(error)}")
    return found


def unsloth() -> dict[str, Any]:
    """Whether it can be imported; that takes a while and changes transformers."""
    return {"version": str(import_module("unsloth").__version__)}


def hub() -> dict[str, Any]:
    """Whether the model hub answers, with whatever."""
    import urllib.error
    import urllib.request

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        request = urllib.request.Request(f"{endpoint.rstrip('/')}/api/models?limit=1")
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT_S) as answer:
            return {"status": answer.status}
    except urllib.error.HTTPError as error:
        return {"status": error.code}
    except (OSError, ValueError) as error:
        return {"error": _line(getattr(error, "reason", None) or error)}


def _line(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + " ..."


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": torch,
    "bitsandbytes": bitsandbytes,
    "unsloth": unsloth,
    "hub": hub,
}


def main(name: str) -> None:
    """Prints what a probe finds, as the last line; a failure is ``error``."""
    try:
        found = PROBES[name]()
    except BaseException as error:  # a library that exits when it is imported, too
        found = {"error": f"{type(error).__name__}: {_line(error)}"}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
