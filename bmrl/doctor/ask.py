"""Probes: started all at once, each answers in its time or not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PROBE = Path(__file__).with_name("probe.py")
# Seconds. Imports from a cold disk take many times what they take afterwards.
PATIENCE: Mapping[str, float] = {"torch": 60, "bitsandbytes": 90, "unsloth": 180, "hub": 8}


class Asked:
    """A probe that runs."""

    def __init__(self, name: str, patience_s: float) -> None:
        self._patience_s, self._until = patience_s, time.monotonic() + patience_s
        # Files, not pipes: what a library has started may hold a pipe open for ever.
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROBE), name],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    def answer(self) -> dict[str, Any]:
        """What it found; ``error`` is one line where it failed."""
        try:
            code = self._process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {self._patience_s:g} s"}
        if code < 0:
            return {"error": f"the process crashed ({signal.Signals(-code).name})"}
        try:
            found = json.loads(_last_line(self._out))
        except ValueError:
            return {"error": _last_line(self._err)[:200] or f"it ended with code {code}"}
        return dict(found)

    def end(self) -> None:
        """Ends it, and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._out.close()
        self._err.close()


@contextmanager
def asked(names: Sequence[str], patience: Mapping[str, float] = PATIENCE) -> Iterator[dict[str, Asked]]:
    """The probes of these names, running; those that still do at the end are ended."""
    running: dict[str, Asked] = {}
    try:
        for name in names:
            running[name] = Asked(name, patience[name])
        yield running
    finally:
        for probe in running.values():
            probe.end()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
