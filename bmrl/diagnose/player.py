"""Who is diagnosed: a trained policy, or a scripted one."""

from collections.abc import Sequence
from typing import Protocol

from bmrl.types import Episode, Play


class Player(Protocol):
    """Plays games on from given beginnings (``Play.prefix``)."""

    def play(self, plays: Sequence[Play], *, greedy: bool = False) -> list[Episode]:
        """Episodes in the order of the plays; each has the turns of its prefix, then the player's own.

        Draws follow from seed, step, group and episode of a play alone.

        Args:
            greedy: the most likely action of each turn, in place of a drawn one.
        """
        ...

    def mass(self, episodes: Sequence[Episode], commands: Sequence[Sequence[str]]) -> list[list[float]] | None:
        """Probability of each command as the last action of each episode; None where it cannot be had exactly."""
        ...
