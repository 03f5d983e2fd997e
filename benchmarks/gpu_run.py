"""The run of ``gpu_check.py``: model by model, part by part, within its time."""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_models
import gpu_parts as parts
import gpu_play
import torch
from gpu_judge import planned
from gpu_models import Shape


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Check:
    """The models one after another, and what was found so far."""

    def __init__(self, *, rehearse: bool, out: Path | None, cap_gb: float, seconds: float) -> None:
        self.rehearse, self.out, self.cap_gb = rehearse, out, cap_gb
        self.end = time.monotonic() + seconds
        self.began = time.monotonic()
        self.device = torch.device("cpu" if rehearse else "cuda")
        self.found: dict[str, Any] = {"rehearsal": rehearse, "models": {}, "system": self._system()}

    def _system(self) -> dict[str, Any]:
        names = ("torch", "transformers", "peft", "accelerate", "numpy", "safetensors", "bitsandbytes")
        versions = {name: metadata.version(name) for name in names if find_spec(name) is not None}
        system: dict[str, Any] = {"versions": versions, "cuda": torch.version.cuda, "cap_gb": self.cap_gb}
        if self.device.type == "cuda":
            total = torch.cuda.mem_get_info()[1] / 2**30
            system |= {"card": torch.cuda.get_device_name(), "total_gb": total}
            system["capability"] = list(torch.cuda.get_device_capability())
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.cap_gb / total))
        return system

    def run(self, only: str | None) -> None:
        """Every model, or the one named; the first has half of the time, the second what is left."""
        shapes = [shape for shape in gpu_models.SHAPES if only in (None, shape.name)]
        for n, shape in enumerate(shapes):
            if shape.quantized and not gpu_models.has_bitsandbytes():
                self.found["models"][shape.name] = {"missing": "bitsandbytes is not installed"}
                continue
            now = time.monotonic()
            self._model(shape, now + (self.end - now) / (len(shapes) - n))
        self.write()

    def write(self) -> None:
        """All figures so far."""
        self.found["seconds"] = time.monotonic() - self.began
        if self.out is not None:
            temporary = self.out.with_name(self.out.name + ".tmp")
            temporary.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self.out)

    def _model(self, shape: Shape, end: float) -> None:
        """All parts of a model, which has until ``end``."""
        model: dict[str, Any] = self.found["models"].setdefault(shape.name, {})
        sizes = gpu_play.REHEARSAL if self.rehearse else gpu_play.CARD
        if self.rehearse:
            shape = replace(shape, sizes=gpu_models.TINY)
        else:
            model["estimate"] = planned(shape, sizes, self.cap_gb)
            sizes = replace(sizes, rows=model["estimate"]["rows"])

        def part(name: str, share: float, work: Callable[..., Any], *given: Any) -> Any:
            """Books what a part finds; what it has beside its figures is returned."""
            now = time.monotonic()
            clock = gpu_play.Clock(now + share * max(0.0, end - now))
            say(f"{shape.name}: {name}, at most {clock.left():.0f} s")
            more = None
            try:
                clock.check()
                figures, more = work(*given, clock)
            except gpu_play.OutOfTime:
                figures = {"not_run": "time"}
            except Exception as error:
                traceback.print_exc()
                figures = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            model[name] = {**figures, "part_s": time.monotonic() - now}
            self.write()
            return more

        policy = part("made", 1.0, parts.made, shape, sizes, self.device)
        if policy is not None:
            full = part("rollout", 0.4, parts.rollout, policy, sizes)
            part("agreement_long", 0.3, parts.agreement, policy, full)  # before the update moves the policy
            part("update", 0.35, parts.update, policy, sizes)
            short = part("graphs", 0.6, parts.graphs, policy, sizes)
            part("agreement", 0.5, parts.agreement, policy, short)
            part("resume", 0.5, parts.resume, policy, short, sizes)
            part("growth", 1.0, parts.growth, policy, sizes)
        del policy
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
