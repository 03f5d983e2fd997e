"""Whether one pass at the largest budget holds the shorter episodes: what is claimed of a policy that is not told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bmrl.envs.base import Task
from bmrl.evaluate import plan_plays
from bmrl.types import EndReason, Episode, Play

LISTED = 20  # episodes named in a text


def check(
    play: Callable[[list[Play]], Sequence[Episode]],
    tasks: Sequence[Task],
    split: str,
    budgets: Sequence[int],
    seeds: Sequence[int],
    announce: str,
) -> dict[str, Any]:
    """Plays one pass and each budget anew, with the same random streams, and compares them episode by episode.

    Returns:
        ``announce``, ``budgets``: of each ``budget``, success by ``one_pass`` and ``anew``, how many ``episodes`` and
        how many are ``different``; ``different``: each of these, with its ``turn`` (from 1) where they part. Of a
        policy that is told its budget it is no error that they part: it is what the telling did.
    """
    whole = play(plan_plays(tasks, split, [max(budgets)], seeds, "none"))
    rows: list[dict[str, Any]] = []
    different: list[dict[str, Any]] = []
    for budget in sorted(budgets):
        anew = play(plan_plays(tasks, split, [budget], seeds, "none"))
        pairs = [(_moves(cut(long, budget)), _moves(short), short) for long, short in zip(whole, anew, strict=True)]
        apart = [(one, other, short) for one, other, short in pairs if one != other]
        different += [
            {
                "task_id": short.task_id,
                "seed": short.seed,
                "budget": budget,
                "one_pass": one[-1][0],
                "anew": other[-1][0],
                "turn": next(n for n, pair in enumerate(zip(one, other, strict=False), start=1) if pair[0] != pair[1]),
            }
            for one, other, short in apart
        ]
        rows.append(
            {
                "budget": budget,
                "one_pass": sum(cut(long, budget).success for long in whole) / len(whole),
                "anew": sum(short.success for short in anew) / len(anew),
                "episodes": len(anew),
                "different": len(apart),
            }
        )
    return {"announce": announce, "budgets": rows, "different": different}


def cut(episode: Episode, budget: int) -> Episode:
    """The shorter episode that stands at the beginning of one, if the policy is not told its budget."""
    ends_anyway = len(episode.turns) < budget or (
        len(episode.turns) == budget and episode.end_reason is not EndReason.CONTEXT
    )
    if ends_anyway:
        return episode
    rest = episode.turns[budget:]
    return Episode(
        step=episode.step,
        group=episode.group,
        episode=episode.episode,
        task_id=episode.task_id,
        split=episode.split,
        seed=episode.seed,
        budget=budget,
        end_reason=EndReason.BUDGET,
        turns=episode.turns[:budget],
        final_observation=rest[0].observation if rest else episode.final_observation,
    )


def _moves(episode: Episode) -> list[tuple[str, ...]]:
    """What was done, turn by turn, and last how it ended; not what was shown, which tells the budget if it is told."""
    turns = [(turn.action, turn.text, str(turn.valid), str(turn.reward)) for turn in episode.turns]
    return [*turns, (str(episode.end_reason),)]


def table(found: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = ["budget  one pass    anew  different episodes"]
    for row in found["budgets"]:
        shares = f"{100 * row['one_pass']:>6.1f} %  {100 * row['anew']:>4.1f} %"
        lines.append(f"{row['budget']:>6}  {shares}  {row['different']:>6} of {row['episodes']}")
    if found["announce"] != "none":
        lines += ["", f"it is told its budget (announce {found['announce']}): a difference is what the telling did"]
    return "\n".join(lines)


def faults(found: Mapping[str, Any]) -> list[str]:
    """A line for each episode that differs although nothing was told; none if all are equal."""
    if found["announce"] != "none":
        return []
    lines = [
        f"one pass is not {e['task_id']} with seed {e['seed']} at {e['budget']} turns: {e['one_pass']}, played anew "
        f"{e['anew']}; they part at turn {e['turn']}"
        for e in found["different"]
    ]
    rest = len(lines) - LISTED
    return lines if rest <= 0 else [*lines[:LISTED], f"… and {rest} more; --json lists all"]
