"""Ctrl-C and SIGTERM: finish what must not be cut in half, save, leave with 130."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from bmrl.errors import Interrupted


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Within it the first signal only raises a flag; the yielded function raises ``Interrupted`` once it is up.

    A second signal ends the program at once, as without us.
    """
    caught: list[int] = []
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for s, handler in before.items():
            signal.signal(s, handler)

    def poll() -> None:
        if caught:
            raise Interrupted(f"stopped by {signal.Signals(caught[0]).name}")

    for s in before:
        signal.signal(s, note)
    try:
        yield poll
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
