"""What all of a process shares and an environment must leave as it is."""

import os
import random
import sys
from collections.abc import Mapping
from typing import Any


def shared_state() -> dict[str, Any]:
    """What a process has once, by name; numpy's and torch's generators where they are loaded."""
    state: dict[str, Any] = {
        "the global state of random": random.getstate(),
        "the working directory": os.getcwd(),  # noqa: PTH109 (a text, to be compared)
        "os.environ": dict(os.environ),
        "sys.argv": list(sys.argv),
    }
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        state["the global state of numpy.random"] = [
            str(getattr(p, "tolist", lambda p=p: p)()) for p in numpy.random.get_state()
        ]
    if torch is not None:
        state["the global state of torch's generator"] = torch.get_rng_state().tolist()
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Puts back what a faulty environment may have changed, as far as that is simple."""
    random.setstate(state["the global state of random"])
    os.chdir(state["the working directory"])
    os.environ.clear()
    os.environ.update(state["os.environ"])
    sys.argv[:] = state["sys.argv"]


def changes(before: Mapping[str, Any]) -> list[str]:
    """Names of what is not as it was."""
    now = shared_state()
    return [name for name in before if before[name] != now[name]]
