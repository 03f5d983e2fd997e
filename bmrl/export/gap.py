"""How far an exported model is from the policy: both read the same episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bmrl.chat import Chat
from bmrl.policy import Policy


@dataclass(frozen=True, slots=True)
class Row:
    """An episode as tokens.

    Attributes:
        ids: all of its tokens.
        picked: true on those of its actions.
    """

    ids: tuple[int, ...]
    picked: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Differences of two models over the tokens of the same actions.

    Attributes:
        episodes, tokens: what was read.
        mean, highest: of the absolute differences of log-probabilities, nats.
        same_choice: tokens at which both hold the same token for the likeliest.
    """

    episodes: int
    tokens: int
    mean: float
    highest: float
    same_choice: int


def row(chat: Chat, turns: Sequence[Mapping[str, Any]], *, most: int) -> Row | None:
    """An episode of an episodes file, its actions in the words of the chat; None if it holds no action.

    It ends before the first turn without an action, for what was said there is not in the file, and before the turn
    that would exceed ``most`` tokens.
    """
    ids: list[int] = []
    picked: list[bool] = []
    for number, turn in enumerate(turns):
        if not turn["action"]:
            break
        shown = turn["observation"]
        read = chat.following(shown, stopped=True) if number else chat.opening(shown)
        said = chat.answer(turn["action"])
        if len(ids) + len(read) + len(said) > most:
            break
        ids += [*read, *said]
        picked += [False] * len(read) + [True] * len(said)
    return Row(tuple(ids), tuple(picked)) if ids else None


def judge(policy: Policy, rows: Sequence[Row], *, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the actions' tokens, (n,) fp32 nats on the CPU, and the likeliest tokens, (n,)."""
    logprobs, choices = [], []
    policy.model.eval()
    with torch.inference_mode():
        for row in rows:
            ids = torch.tensor([row.ids], device=policy.device)
            places = torch.tensor(row.picked).nonzero()[:, 0].to(policy.device)
            logits = policy.logits(policy.hidden(input_ids=ids, use_cache=False)[0, places - 1])
            logprobs.append((logits / temperature).log_softmax(-1).gather(-1, ids[0, places, None])[:, 0].cpu())
            choices.append(logits.argmax(-1).cpu())
    return torch.cat(logprobs), torch.cat(choices)


def gap(rows: Sequence[Row], a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Gap:
    """What two answers of ``judge`` about the same rows differ by."""
    difference = (a[0] - b[0]).abs()
    return Gap(
        episodes=len(rows),
        tokens=len(difference),
        mean=float(difference.mean()),
        highest=float(difference.max()),
        same_choice=int((a[1] == b[1]).sum()),
    )
