"""Demonstrations that are not the expert's: a run's own successful episodes, or a file of chats."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bmrl.budgets import announcement
from bmrl.chat import parse_action
from bmrl.envs.base import Shown
from bmrl.episodes import read_episodes
from bmrl.errors import BmrlError, UsageError
from bmrl.run_folder import RESOLVED, load_resolved
from bmrl.seeds import stream
from bmrl.strict import loads

LISTED = 20  # mistakes of a file that are told
_TAGS = ("<think>", "</think>", "</action>")


def from_run(folder: Path, *, env: str, most: int, seed: int) -> list[list[Shown]]:
    """Successful training episodes of a run: rejection sampling.

    Each play of a task, by its actions, comes once, under the smallest budget that it won with. Budgets take turns,
    and so do the tasks within a budget, each in a shuffled order: however many the large budgets solved, the small
    ones are not crowded out. Refused actions are shown, not imitated. What the run announced of its budgets is taken
    out again.

    Args:
        folder: the run.
        env: environment that the demonstrations are for.
        most: demonstrations returned at most.

    Raises:
        UsageError: no run, one of another environment, or no success in it.
        BmrlError: its files are damaged.
    """
    world, announce, wording = _settings(folder)
    if world != env:
        raise UsageError(f"sft.path: {folder} is a run in {world}, the recipe's env.name is {env}")
    played = 0
    known: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for path in sorted((folder / "episodes").glob("step-*.jsonl")):
        for episode in read_episodes(path):
            played += 1
            play = (episode["task_id"], *(turn["action"] for turn in episode["turns"]))
            if episode["success"] and (play not in known or episode["budget"] < known[play]["budget"]):
                known[play] = episode
    if not known:
        raise UsageError(f"sft.path: none of the {played} training episodes of {folder} is a success; train it longer")
    found: dict[int, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for won in known.values():
        found[won["budget"]][won["task_id"]].append(won)
    rng = stream(seed, "demonstrations")

    def in_turn(piles: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        shuffled = [piles[i] for i in rng.permutation(len(piles))]
        mixed = [[pile[i] for i in rng.permutation(len(pile))] for pile in shuffled]
        return [one for row in zip_longest(*mixed) for one in row if one is not None]

    of_budget = [in_turn(list(found[budget].values())) for budget in sorted(found)]
    chosen = [one for row in zip_longest(*of_budget) for one in row if one is not None][:most]
    return [_turns(episode, announce, wording) for episode in chosen]


def _settings(folder: Path) -> tuple[str, str, str | None]:
    """Of a run: its environment, and the form and the words in which it announced budgets."""
    recipe = load_resolved(folder)
    world, budget = (recipe.get("env") or {}).get("name"), recipe.get("budget") or {}
    announce, wording = budget.get("announce"), budget.get("wording")
    if (
        not isinstance(world, str)
        or announce not in ("none", "total", "remaining")
        or not isinstance(wording, str | None)
    ):
        raise BmrlError(
            f"{folder / RESOLVED}: damaged (env.name, budget.announce or budget.wording); "
            "restore it or take another run"
        )
    return world, announce, wording


def _turns(episode: Mapping[str, Any], announce: str, wording: str | None) -> list[Shown]:
    turns = []
    for used, turn in enumerate(episode["turns"]):
        told = announcement(announce, episode["budget"], used, wording)
        observation = turn["observation"].removesuffix(f"\n{told}") if told else turn["observation"]
        turns.append(Shown(observation, turn["action"], float(turn["valid"])))
    return turns


def from_file(path: Path, *, most: int) -> list[list[Shown]]:
    """Chats of a JSONL file, one a line: ``{"messages": [{"role": "user", "content": "…"}, …]}``.

    Users speak first and take turns with the assistant, who speaks last; the first user's message is the first
    observation. An assistant's message is a command, or has it in ``<action>`` tags. Instructions are the
    recipe's, ``chat.system``: a system message is a mistake.

    Args:
        most: chats returned at most, the first ones.

    Raises:
        UsageError: the file cannot be read, or holds no chat.
        BmrlError: lines are no such chats; one line for each, up to 20.
    """
    try:
        # Not splitlines(): a text in JSON may hold what that takes for the end of a line.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise UsageError(f"sft.path: {path} cannot be read ({type(error).__name__}); name a JSONL file") from error
    chats, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            chats.append(_chat(line))
        except ValueError as error:
            problems.append(f"{path.name}:{number}: {error}")
    if problems:
        rest = len(problems) - LISTED
        raise BmrlError("\n".join([*problems[:LISTED], *([f"… and {rest} more"] if rest > 0 else [])]))
    if not chats:
        raise UsageError(f"sft.path: {path} holds no chat; write one a line")
    return chats[:most]


def _chat(line: str) -> list[Shown]:
    try:
        messages = loads(line)["messages"]
        said = [(message["role"], message["content"]) for message in messages]
    except (ValueError, KeyError, TypeError):
        raise ValueError('no chat; write {"messages": [{"role": "user", "content": "…"}, …]}') from None
    if any(not isinstance(text, str) for _, text in said):
        raise ValueError("a content is no text; write it in quotes")
    if said and said[0][0] == "system":
        raise ValueError("a system message; leave it out, instructions come from chat.system of the recipe")
    if [role for role, _ in said] != ["user", "assistant"] * (len(said) // 2) or not said:
        raise ValueError("roles must be user, assistant, user, … and end with assistant; add or remove messages")
    turns = [Shown(said[i][1], _command(said[i + 1][1]), 1.0) for i in range(0, len(said), 2)]
    if any(not turn.action for turn in turns):
        raise ValueError("an assistant's message holds no command; write it alone, or as <action>command</action>")
    return turns


def _command(text: str) -> str:
    plain = "<action>" not in text
    # Thoughts around a command without tags cannot be told from it.
    return "" if plain and any(tag in text for tag in _TAGS) else parse_action(text, stopped=True, plain=plain)
