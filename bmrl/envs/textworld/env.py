"""TextWorld's cooking, coin collector and treasure hunter games as bmrl environments."""

from collections.abc import Sequence
from typing import Any

from bmrl.envs.base import Step, Task
from bmrl.envs.textworld import splits, text
from bmrl.envs.textworld.game import Game
from bmrl.envs.textworld.package import textworld
from bmrl.envs.textworld.plan import plan
from bmrl.envs.textworld.record import Record
from bmrl.envs.textworld.view import Goal, View, goal_of, view_of
from bmrl.errors import UsageError

SOURCES = ("embedded", "generated")
MODES = ("simple", "random"), ("easy", "medium", "hard")
_TYPES = {"mode": str, "open": bool, "cook": bool, "cut": bool}  # of settings; the others are whole numbers
_COMMON = "The commands are: go DIRECTION, take X, take X from Y, drop X, put X on Y, examine X, inventory, look"


def task_of(record: Record) -> Task:
    """The task that a game is."""
    return Task(record.task_id, record.kind, record.plan, record, record.search_turns)


class _World:
    """What the three worlds share: playing, and where games come from.

    Args:
        world: "cooking", "coin" or "treasure".
        source: "embedded" or "generated".
        admissible: whether the agent is shown the admissible commands after each observation.
        asked: the generated games.
    """

    def __init__(self, world: str, source: str, admissible: bool, asked: splits.Asked) -> None:
        if source not in SOURCES:
            raise UsageError(f"textworld_{world} source {source!r}; known: {', '.join(SOURCES)}")
        if source == "embedded" and asked != WORLDS[world](source="generated")._asked:  # its defaults
            raise UsageError(
                f"textworld_{world} source 'embedded' is as it is; difficulty counts with source: generated"
            )
        if asked.games < 1 or asked.seed < 0:
            raise UsageError(f"textworld_{world}: games must be at least 1, and seed at least 0")
        self.world = world
        self._asked = asked if source == "generated" else None
        self._show = admissible
        self._game: Game | None = None
        self._view, self._goal = View(), Goal()
        self.admissible: tuple[str, ...] | None = None

    @property
    def settings(self) -> dict[str, Any] | None:
        """Of the generated games; None where they are embedded."""
        return None if self._asked is None else dict(self._asked.settings)

    def splits(self) -> list[str]:
        """Names of the splits that there are."""
        return list(splits.SPLITS)

    def tasks(self, split: str) -> Sequence[Task]:
        """All games of a split, in their fixed order.

        Raises:
            UsageError: no such split, or the settings allow no game.
            BmrlError: textworld is not installed, or files are damaged.
        """
        self._check(split)
        textworld()  # told here in one line, and not by every episode
        if self._asked is not None:
            return [task_of(record) for record in splits.generated(self.world, split, self._asked)]
        return [task_of(record) for record in splits.embedded(self.world, split)]

    def split_hash(self, split: str) -> str:
        """SHA-256 of the split's games and their order."""
        self._check(split)
        if self._asked is not None:
            return splits.content_hash(splits.generated(self.world, split, self._asked))
        return splits.embedded_hash(self.world, split)

    def _check(self, split: str) -> None:
        if split not in splits.SPLITS:
            raise UsageError(
                f"unknown split {split!r} of textworld_{self.world}; there are: {', '.join(splits.SPLITS)}"
            )

    def reset(self, task: Task) -> str:
        """Start the task's game; returns the opening text."""
        game = self._game = Game(task.data)
        self._goal = goal_of(game)
        self._view = view_of(game)
        return self._shown(game, text.opening(game, self._view, self._goal))

    def step(self, action: str) -> Step:
        """Send one command. The reward is 1 for the step that wins, else 0."""
        game = self._playing()
        command = action.strip()
        told = text.REFUSED
        if game.apply(command):
            before, self._view = self._view, view_of(game)
            told = text.answer(game, command, before, self._view, self._goal)
        if game.won or game.lost:
            told += f"\n{text.WON if game.won else text.LOST}"
        return Step(
            observation=self._shown(game, told),
            reward=float(game.won),
            terminated=game.won or game.lost,
            won=game.won,
            admissible=self.admissible,
        )

    def distance(self) -> int | None:
        """Fewest turns to the goal with full knowledge; None where it cannot be reached."""
        commands = plan(self._playing())
        return None if commands is None else len(commands)

    def close(self) -> None:
        """Forget the game."""
        self._game = None
        self.admissible = None

    def _playing(self) -> Game:
        if self._game is None:
            raise RuntimeError("step or distance before reset")
        return self._game

    def _shown(self, game: Game, told: str) -> str:
        self.admissible = tuple(game.commands)
        return f"{told}\nCommands: {', '.join(game.commands)}" if self._show else told


def _asked(games: int, seed: int, **settings: Any) -> splits.Asked:
    for name, value in {"games": games, "seed": seed, **settings}.items():
        kind = _TYPES.get(name, int)
        if type(value) is not kind:  # neither True for 1, nor 2.5 games
            raise UsageError(f"textworld: {name} is {value!r}, and should be of type {kind.__name__}")
    return splits.Asked(games, seed, tuple(sorted(settings.items())))


def _refuse(world: str, setting: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise UsageError(f"textworld_{world} {setting} {value!r}; known: {', '.join(map(str, allowed))}")


class CookingEnv(_World):
    """Find the kitchen, read the cookbook, fetch, cut and cook what it says, prepare the meal, eat it.

    Args:
        source: "embedded", the games that ship with bmrl, or "generated": made by what follows.
        admissible: whether the agent is shown the admissible commands after each observation.
        games: how many in each split.
        seed: of the generator.
        recipe: ingredients, 1 to 5.
        rooms: 1, 6, 9 or 12.
        open: whether doors and the fridge begin closed.
        cook, cut: whether ingredients have to be cooked and cut.
        take: how many of the ingredients must be fetched; 0: all of them.
    """

    instructions = (
        f"{_COMMON}, open X, close X, insert X into Y, cook X with Y, chop X with knife, slice X with knife, "
        "dice X with knife, prepare meal, eat X."
    )

    def __init__(
        self,
        source: str = "embedded",
        admissible: bool = False,
        games: int = 100,
        seed: int = 0,
        recipe: int = 1,
        rooms: int = 6,
        open: bool = True,
        cook: bool = True,
        cut: bool = True,
        take: int = 0,
    ) -> None:
        asked = _asked(games, seed, recipe=recipe, rooms=rooms, open=open, cook=cook, cut=cut, take=take or recipe)
        _refuse("cooking", "recipe", recipe, range(1, 6))
        _refuse("cooking", "rooms", rooms, (1, 6, 9, 12))
        _refuse("cooking", "take", take, range(recipe + 1))
        super().__init__("cooking", source, admissible, asked)


class CoinEnv(_World):
    """Find the coin in a chain of rooms and take it.

    Args:
        source, admissible, games, seed: as of `CookingEnv`.
        length: rooms of the chain from the start to the coin, 1 to 40.
        rooms: of the whole map; those beyond the chain lead astray. At most 100.
        mode: "simple", each of them a dead end beside the chain, or "random", they may go on.
    """

    instructions = f"{_COMMON}."

    def __init__(
        self,
        source: str = "embedded",
        admissible: bool = False,
        games: int = 100,
        seed: int = 0,
        length: int = 5,
        rooms: int = 10,
        mode: str = "simple",
    ) -> None:
        asked = _asked(games, seed, length=length, rooms=rooms, mode=mode)
        _refuse("coin", "mode", mode, MODES[0])
        _refuse("coin", "length", length, range(1, 41))
        most = min(100, 4 * length) if mode == "simple" else 100
        if not length <= rooms <= most:
            raise UsageError(f"textworld_coin rooms {rooms}; with length {length} from {length} to {most}")
        super().__init__("coin", source, admissible, asked)


class TreasureEnv(_World):
    """Find the thing that is named and take it; taking the other one loses.

    Args:
        source, admissible, games, seed: as of `CookingEnv`.
        length: commands of the quest that the generator begins with, 1 to 20; a shorter way may exist.
        rooms: of the map, 2 to 20.
        mode: "easy", empty rooms without doors; "medium", doors and containers; "hard", some of them locked.
    """

    instructions = f"{_COMMON}, open X, close X, insert X into Y, unlock X with Y, lock X with Y, eat X."

    def __init__(
        self,
        source: str = "embedded",
        admissible: bool = False,
        games: int = 100,
        seed: int = 0,
        length: int = 3,
        rooms: int = 6,
        mode: str = "medium",
    ) -> None:
        asked = _asked(games, seed, length=length, rooms=rooms, mode=mode)
        _refuse("treasure", "mode", mode, MODES[1])
        _refuse("treasure", "length", length, range(1, 21))
        _refuse("treasure", "rooms", rooms, range(2, 21))
        super().__init__("treasure", source, admissible, asked)


WORLDS = {"cooking": CookingEnv, "coin": CoinEnv, "treasure": TreasureEnv}
