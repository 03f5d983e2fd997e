"""Progress on stderr: a live display on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Shows how far a loop of ``total`` steps is.

    Args:
        total: steps of the loop; 0 where there is only one thing to do.
        done: steps that an earlier process did; they do not count for the time left.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._total, self._first, self._done = total, done, done
        self._began = time.monotonic()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._live,
        )
        self._steps = self._bars.add_task("steps", total=total, completed=done, left="", visible=total > 0)
        self._inner = self._bars.add_task("", total=1, visible=False, left="")

    def inner(self, name: str, total: int) -> None:
        """Begins a part of the step: ``total`` episodes, say."""
        self._bars.reset(self._inner, description=name, total=total, visible=True)

    def advance(self) -> None:
        """One of the part is done."""
        self._bars.advance(self._inner)

    def step(self, line: str, done: int | None = None) -> None:
        """A step is done, ``done`` of them in all; ``line`` says what came of it."""
        self._done = self._done + 1 if done is None else done
        left = self.left()
        self._bars.update(self._steps, completed=self._done, left=left)
        self.say(f"step {self._done}/{self._total}  {line}  {left}")

    def left(self) -> str:
        """Time left, from the mean of the steps of this process."""
        ran = self._done - self._first
        if not ran or self._done >= self._total:
            return ""
        seconds = (time.monotonic() - self._began) / ran * (self._total - self._done)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def say(self, line: str) -> None:
        if self._live:
            self._bars.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(line.rstrip() + "\n")
            sys.stderr.flush()

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        with self._bars:
            yield self
