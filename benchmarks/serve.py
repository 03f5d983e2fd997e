"""What a competitor's process does beside its work: jobs in, answers out, seconds and memory.

Standard library alone: it runs in environments that hold another trainer or engine and nothing of bmrl.
"""

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Job = dict[str, Any]
Result = TypeVar("Result")
STATUS = Path("/proc/self/status")


def serve(jobs: Mapping[str, Callable[[Job], dict[str, Any]]]) -> None:
    """Answers each line of stdin, an object whose ``do`` names the job, with a line of JSON.

    Answers go to the pipe that the second argument names: libraries print to stdout what they like. An exception is
    an answer with ``error``, one line; the process goes on.
    """
    answers = os.fdopen(int(sys.argv[2]), "w")
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = jobs[job["do"]](job)
        except Exception as error:  # whatever a foreign library raises
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def measured(work: Callable[[], Result]) -> tuple[Result, dict[str, float]]:
    """What ``work`` returns, and what it took.

    ``wall_s``; ``cpu_s``, of all threads of this process; ``peak_mb``: the most resident memory above what was
    resident before, MiB.
    """
    before, (began, cpu) = start_peak(), (time.perf_counter(), time.process_time())
    result = work()
    return result, {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": peak_above(before),
    }


def start_peak() -> float:
    """Gives free memory back, forgets the peak so far; MiB resident now (0 where the kernel does not tell)."""
    gc.collect()
    if not STATUS.is_file():
        return 0.0
    ctypes.CDLL(None).malloc_trim(0)  # or the next peak would hide in what the allocator keeps
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_above(before: float) -> float:
    """MiB by which the peak since ``start_peak`` exceeds its answer."""
    return _status("VmHWM") - before if STATUS.is_file() else 0.0


def _status(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
