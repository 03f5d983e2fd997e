"""Competitors: each a process of its own, so that neither memory nor libraries of one touch the other."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self, TextIO

from bmrl.errors import BmrlError

HERE = Path(__file__).resolve().parent


class Competitor:
    """A process that runs ``script`` and answers jobs (see ``serve.py``); it starts with its first job.

    Args:
        name: how the results call it.
        python: interpreter of the environment it runs in.
        setup: given to the script as JSON.
    """

    def __init__(self, name: str, script: str, setup: Mapping[str, Any], python: str = sys.executable) -> None:
        self.name = name
        self._line = [python, str(HERE / script), json.dumps(setup)]
        self._process: subprocess.Popen[str] | None = None
        self._answers: TextIO | None = None
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process

    def ask(self, do: str, **job: Any) -> dict[str, Any]:
        """Has a job done.

        Raises:
            BmrlError: it failed, or the process ended; one line.
        """
        if self._process is None:
            self._process = self._started()
        assert self._process.stdin is not None and self._answers is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **job}) + "\n")
            self._process.stdin.flush()
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._said.seek(0)
            lines = [line.strip() for line in self._said if line.strip()] or ["ended without a word"]
            raise BmrlError(f"{self.name}: {lines[-1][:300]}")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise BmrlError(f"{self.name}: {found['error']}")
        return found

    def _started(self) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
        readable, writable = os.pipe()
        self._answers = os.fdopen(readable)
        try:
            return subprocess.Popen(
                [*self._line, str(writable)],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[writable],
                text=True,
                # A thread that spins while it waits would take its core from whoever is measured.
                env={"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", **os.environ, "PYTHONPATH": path},
            )
        except OSError as error:
            raise BmrlError(f"{self.name}: {self._line[0]} does not start: {error.strerror}") from error
        finally:
            os.close(writable)  # or the end of the process would not end the answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        if self._answers is not None:
            self._answers.close()
        self._said.close()


def alternating(
    works: Mapping[str, Callable[[], Mapping[str, float]]],
    *,
    repeats: int,
    missing: list[str],
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Runs all works in turn, ``repeats`` times over: what the machine does meanwhile meets all of them.

    A work that fails is a line in ``missing`` and is not asked again.

    Returns:
        name -> figure -> its median, least and most, for those that did all repeats.
    """
    took: dict[str, list[Mapping[str, float]]] = {name: [] for name in works}
    for repeat in range(repeats):
        for name, work in works.items():
            if len(took[name]) < repeat:
                continue
            try:
                took[name].append(work())
                say(f"  {name}: {took[name][-1]['wall_s']:.2f} s")
            except BmrlError as error:
                missing.append(str(error))
                say(f"  {error}")
    return {name: spreads(runs) for name, runs in took.items() if len(runs) == repeats}


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Median, least and most of each figure over the runs."""
    return {
        key: {"median": median(values), "least": min(values), "most": max(values)}
        for key in runs[0]
        if (values := [float(run[key]) for run in runs])
    }


def ratio(found: Mapping[str, Any], name: str, ours: str, figure: str = "wall_s") -> float | None:
    """How many times ours the competitor takes; None where one of the two is missing."""
    if name not in found or ours not in found or not found[ours][figure]["median"]:
        return None
    return float(found[name][figure]["median"] / found[ours][figure]["median"])
