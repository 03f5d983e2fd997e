"""Games by TextWorld's own generators, each from a seed of its own."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from bmrl.envs.textworld.package import knowledge, textworld
from bmrl.envs.textworld.record import Events, Record
from bmrl.errors import UsageError

VERSION = 1  # raise when the same seed gives another game
# In vain in a row: so many seeds that settings which allow no game at all are told, not waited for.
_TRIES = 60

Settings = Mapping[str, Any]


def embedded_settings(world: str, rng: Random) -> dict[str, Any]:
    """The difficulty of one embedded game, drawn."""
    if world == "cooking":
        recipe = rng.choice((1, 1, 2))
        return {
            "recipe": recipe,
            "take": recipe,
            "rooms": rng.choice((1, 6, 6)),
            "open": rng.random() < 0.5,
            "cook": rng.random() < 0.5,
            "cut": rng.random() < 0.5,
        }
    if world == "coin":
        length = rng.randint(3, 6)
        return {"length": length, "rooms": length * rng.choice((1, 2)), "mode": rng.choice(("simple", "random"))}
    return {"length": rng.randint(2, 4), "rooms": rng.randint(4, 7), "mode": rng.choice(("easy", "medium"))}


def unseen(world: str, settings: Settings) -> dict[str, Any]:
    """The settings of a game of the unseen split: foods and preparations that no other has, or larger maps."""
    if world == "cooking":
        return {**settings, "foods": "valid"}
    more = 3 if world == "coin" else 2
    return {**settings, "length": settings["length"] + more, "rooms": settings["rooms"] + 2 * more}


def kind_of(world: str, settings: Settings) -> str:
    """Family of a game: what is to be done with the food, or how the map is made."""
    if world == "cooking":
        return "_".join(skill for skill in ("cook", "cut") if settings[skill]) or "fetch"
    return str(settings["mode"])


def seed_of(*key: object) -> int:
    """A generator's seed, from what it is for; TextWorld takes 32 bits."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "little")


def make(world: str, settings: Settings, seed: int) -> Record | None:
    """One game, without plan; None when the generator finds none for this seed.

    No compiler is asked, and no global random state is read or changed.

    Raises:
        BmrlError: textworld is not installed.
    """
    textworld()
    from textworld.generator import QuestGenerationError
    from textworld.generator.game import GameOptions

    options = GameOptions()
    options.seeds = seed
    try:
        with _quick(world):
            game = _MAKERS[world](settings, options)
    # How the generators say that chance has led them into a corner.
    except (AssertionError, AttributeError, ValueError, QuestGenerationError):
        return None
    names = [info.name for info in game.infos.values() if info.name]
    if len(names) > len(set(names)):
        return None  # texts could not tell them apart
    kind = kind_of(world, settings)
    return Record(
        task_id=f"{world}-{kind}-{seed:08x}",
        kind=kind,
        settings=tuple(sorted(settings.items())),
        seed=seed,
        facts=tuple(sorted(_fact(fact) for fact in game.world.facts)),
        names=tuple(sorted((k, info.name) for k, info in game.infos.items() if info.name)),
        quests=tuple((_events(quest.win_events), _events(quest.fail_events)) for quest in game.quests),
    )


def games(
    world: str,
    namespace: str,
    count: int,
    *,
    seed: int = 0,
    settings: Settings | None = None,
    larger: bool = False,
    avoid: Collection[str] = (),
) -> Iterator[Record]:
    """Different games with shortest plans, as many as asked; the same arguments give the same games.

    Args:
        namespace: what they are for; two never share a seed.
        settings: of all of them; None draws those of each as the embedded ones have them.
        larger: of the unseen split, see `unseen`.
        avoid: `Record.content` of games that must not come.

    Raises:
        UsageError: the settings allow no game, or not so many different ones.
        BmrlError: textworld is not installed.
    """
    from bmrl.envs.textworld.game import Game
    from bmrl.envs.textworld.plan import plan

    known, index, since = set(avoid), 0, 0
    while count:
        number = seed_of(world, namespace, seed, index)
        index += 1
        asked = dict(settings) if settings is not None else embedded_settings(world, Random(number))
        made = make(world, unseen(world, asked) if larger else asked, number)
        since += 1
        if since > _TRIES:
            raise UsageError(f"TextWorld's {world} generator finds no further game of {asked}; ask for easier ones")
        if made is None or made.content in known:
            continue
        commands = plan(Game(made))
        if commands:  # a game that is won, or lost, before it begins is none
            known.add(made.content)
            yield replace(made, plan=tuple(commands))
            count, since = count - 1, 0


def _fact(proposition: Any) -> tuple[str, ...]:
    return (proposition.name, *(variable.name for variable in proposition.arguments))


def _events(events: Any) -> Events:
    return tuple(sorted(tuple(sorted(_fact(fact) for fact in event.condition.preconditions)) for event in events))


def _cooking(settings: Settings, options: Any) -> Any:
    from textworld.challenges.tw_cooking import cooking

    asked = {key: value for key, value in settings.items() if key not in ("rooms", "foods")}
    fixed = {"go": settings["rooms"], "split": settings.get("foods", "train"), "drop": False, "recipe_seed": 0}
    return cooking.make({**asked, **fixed}, options)


def _coin(settings: Settings, options: Any) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector

    options.kb = knowledge("coin")
    options.grammar.allowed_variables_numbering = True
    options.quest_length, options.nb_rooms = settings["length"], settings["rooms"]
    return coin_collector.make_game(settings["mode"], options)


def _treasure(settings: Settings, options: Any) -> Any:
    from textworld.challenges.tw_treasure_hunter import treasure_hunter

    options.kb = knowledge("treasure")
    options.quest_length, options.nb_rooms = settings["length"], settings["rooms"]
    return treasure_hunter.make_game(settings["mode"], options)


_MAKERS = {"cooking": _cooking, "coin": _coin, "treasure": _treasure}


@contextmanager
def _quick(world: str) -> Iterator[None]:
    """Within it generators read the rules once a process, and have no walkthrough compiled and played."""
    from unittest.mock import patch

    from textworld.generator.data import KnowledgeBase
    from textworld.generator.maker import GameMaker

    rules = knowledge(world)
    with (
        patch.object(KnowledgeBase, "load", lambda *args, **kwargs: rules),
        patch.object(GameMaker, "set_walkthrough", lambda self, commands: None),
    ):
        yield
