"""Files of episodes: a line of JSON each, written whole, read back and checked."""

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from bmrl.atomic import write_bytes
from bmrl.errors import BmrlError
from bmrl.strict import is_number, loads
from bmrl.types import EndReason, Episode


def episode_line(episode: Episode) -> dict[str, Any]:
    """An episode as it stands in a file: token fields are counts, ``logprob`` is that of a turn's text in nats."""
    return {
        "step": episode.step,
        "group": episode.group,
        "episode": episode.episode,
        "task_id": episode.task_id,
        "split": episode.split,
        "seed": episode.seed,
        "budget": episode.budget,
        "end_reason": str(episode.end_reason),
        "success": episode.success,
        "turns": [
            {
                "observation": turn.observation,
                "action": turn.action,
                "valid": turn.valid,
                "reward": turn.reward,
                "observation_tokens": len(turn.observation_ids),
                "action_tokens": len(turn.action_ids),
                # Rounded: what is left over differs with the rows that were computed together.
                **({} if turn.distance is None else {"distance": turn.distance}),
                "logprob": round(total, 4) if turn.logprobs and isfinite(total := sum(turn.logprobs)) else None,
            }
            for turn in episode.turns
        ],
        "final_observation": episode.final_observation,
        "error": episode.error,
    }


def write_lines(path: Path, episodes: Iterable[Episode | Mapping[str, Any]]) -> Path:
    """Write episodes, or what ``episode_line`` made of them, as JSONL, atomically."""
    plain = (episode_line(one) if isinstance(one, Episode) else one for one in episodes)
    lines = (json.dumps(line, allow_nan=False) for line in plain)
    write_bytes(path, "".join(line + "\n" for line in lines).encode())
    return path


def write_episodes(folder: Path, step: int, episodes: Iterable[Episode]) -> Path:
    """Write a training step's episodes to ``episodes/step-000100.jsonl`` of the run folder."""
    return write_lines(folder / "episodes" / f"step-{step:06d}.jsonl", episodes)


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """The episodes of a file, as ``episode_line`` made them.

    Raises:
        BmrlError: a line is damaged; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BmrlError(f"{path}: cannot be read ({error}); evaluate or train again") from error
    episodes = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            episode = loads(line)
        except ValueError:
            episode = None
        if not is_episode(episode):
            raise BmrlError(f"{path}:{number}: damaged, not an episode; evaluate or train again")
        episodes.append(episode)
    return episodes


def is_episode(value: Any) -> bool:
    """Whether ``episode_line`` may have made it."""
    try:
        sound = all(type(value[key]) is int for key in ("step", "group", "episode", "seed", "budget"))
        sound = sound and all(isinstance(value[key], str) for key in ("task_id", "split", "final_observation", "error"))
        sound = sound and value["end_reason"] in list(EndReason)
        sound = sound and value["success"] is (value["end_reason"] == EndReason.SUCCESS)
        return sound and isinstance(value["turns"], list) and all(map(_is_turn, value["turns"]))
    except (KeyError, TypeError, AttributeError):
        return False


def _is_turn(turn: Any) -> bool:
    texts = isinstance(turn["observation"], str) and isinstance(turn["action"], str)
    numbers = turn["reward"], turn["observation_tokens"], turn["action_tokens"], turn.get("logprob") or 0
    return texts and isinstance(turn["valid"], bool) and all(map(is_number, numbers))
