"""TextWorld itself: imported when a game is made or played, and not before."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from bmrl.errors import BmrlError

_FOLDERS = {"cooking": "tw_cooking", "coin": "tw_coin_collector", "treasure": "tw_treasure_hunter"}


def textworld() -> Any:
    """The package.

    Raises:
        BmrlError: it is not installed.
    """
    try:
        import textworld
    except ImportError as error:
        raise BmrlError(
            f"TextWorld games need the package textworld ({error}); install it: pip install 'bmrl[textworld]'"
        ) from error
    return textworld


@lru_cache
def knowledge(world: str) -> Any:
    """The rules of a world, a ``KnowledgeBase``; parsing them takes about a second, once a process."""
    package = textworld()
    from textworld.generator.data import KnowledgeBase

    data = Path(package.__file__).parent / "challenges" / _FOLDERS[world] / "textworld_data"
    return KnowledgeBase.load(logic_path=str(data / "logic"), grammar_path=str(data / "text_grammars"))
