"""From episodes to what the update computes on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bmrl.algorithm import token_weights
from bmrl.credit import Credit, advantages
from bmrl.types import ERRORS, EndReason, Episode


@dataclass(frozen=True, slots=True)
class Row:
    """One episode as a training row."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]  # the sampler's, one per action token
    advantages: tuple[float, ...]  # one per action token
    weight: float  # of each action token's loss, fixed for the whole optimizer step


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    Shapes: ``ids`` and ``mask`` (1, tokens), the rows end to end, with the ``lengths`` of each; or (rows, time), padded
    on the right, without. The others (n,), one entry per action token, in row order, ``counts`` of them in each row.
    """

    ids: Tensor
    mask: Tensor
    lengths: list[int] | None
    counts: list[int]
    logprobs: Tensor
    advantages: Tensor
    weights: Tensor


def is_scored(episode: Episode, truncation: Mapping[EndReason, str]) -> bool:
    """Whether an episode is in its group's baseline: no environment error, not dropped."""
    return episode.end_reason not in ERRORS and bool(episode.turns) and truncation.get(episode.end_reason) != "drop"


def has_signal(
    group: Sequence[Episode],
    rewards: Sequence[float],
    truncation: Mapping[EndReason, str],
    success_range: Sequence[float] | None = None,
) -> bool:
    """Whether there is something to learn from a group: its scored rewards differ.

    Args:
        success_range: the share of solved episodes must lie within, too, bounds included.
    """
    scored = [(e, r) for e, r in zip(group, rewards, strict=True) if is_scored(e, truncation)]
    return len({r for _, r in scored}) > 1 and _within([e for e, _ in scored], success_range)


def in_range(
    group: Sequence[Episode], truncation: Mapping[EndReason, str], success_range: Sequence[float] | None
) -> bool:
    """Whether the share of solved episodes, of those scored, lies within ``success_range``; None bounds nothing."""
    return _within([e for e in group if is_scored(e, truncation)], success_range)


def _within(scored: Sequence[Episode], bounds: Sequence[float] | None) -> bool:
    return bounds is None or (bool(scored) and bounds[0] <= sum(e.success for e in scored) / len(scored) <= bounds[1])


def as_shown(episode: Episode) -> list[str]:
    """What each turn saw."""
    return [turn.observation for turn in episode.turns]


def make_rows(
    groups: Sequence[Sequence[Episode]],
    rewards: Sequence[Sequence[Sequence[float]]],
    *,
    credit: Credit,
    truncation: dict[EndReason, str],
    aggregation: str,
    constant: float,
    states: Callable[[Episode], Sequence[str]] = as_shown,
) -> list[Row]:
    """Training rows of a step.

    The baseline of a group is taken over its episodes that did not end in an environment error and whose end
    reason is not ``drop``; episodes marked ``mask`` are in the baseline and give no gradient. Episodes without an
    advantage other than 0, such as those of a group whose rewards are all equal, carry no signal and give no row.

    Args:
        rewards: of each turn of each episode, like ``groups``.
        truncation: end reason -> ``train``, ``mask`` or ``drop``; reasons not named are trained on.
        states: what the environment showed before each turn, for step-level groups.
    """
    scored = [
        [(episode, values) for episode, values in zip(group, of_group, strict=True) if is_scored(episode, truncation)]
        for group, of_group in zip(groups, rewards, strict=True)
    ]
    found = advantages(
        [[values for _, values in group] for group in scored],
        [[states(episode) for episode, _ in group] for group in scored],
        credit,
    )
    kept = [
        (episode, turns)
        for group, of_group in zip(scored, found, strict=True)
        for (episode, _), turns in zip(group, of_group, strict=True)
        if any(turns) and episode.action_tokens and truncation.get(episode.end_reason) != "mask"
    ]
    if not kept:
        return []
    weights = token_weights([episode.action_tokens for episode, _ in kept], aggregation=aggregation, constant=constant)
    if aggregation == "constant":
        # The mean is over all scored episodes, those without signal too: how many groups happen to be dead
        # must not change the size of the step that the others make.
        weights = [weight * len(kept) / sum(map(len, scored)) for weight in weights]
    return [
        Row(
            episode.token_ids,
            episode.action_mask,
            tuple(logprob for turn in episode.turns for logprob in turn.logprobs),
            tuple(a for turn, a in zip(episode.turns, turns, strict=True) for _ in turn.action_ids),
            weight,
        )
        for (episode, turns), weight in zip(kept, weights, strict=True)
    ]


class _Tokens(Protocol):
    @property
    def token_ids(self) -> Sequence[int]: ...


AnyRow = TypeVar("AnyRow", bound=_Tokens)


def micro_batches(rows: Sequence[AnyRow], *, tokens: int, packed: bool) -> list[list[AnyRow]]:
    """Every row once, in as few micro-batches as filling the first that has room makes of them, longest rows first.

    Args:
        tokens: most of a micro-batch, unless it is a single row.
        packed: rows lie end to end; otherwise they are padded to the longest, and padding counts.
    """
    batches: list[list[AnyRow]] = []
    sums: list[int] = []
    for row in sorted(rows, key=lambda r: -len(r.token_ids)):
        for i, batch in enumerate(batches):
            size = sums[i] + (len(row.token_ids) if packed else len(batch[0].token_ids))
            if size <= tokens:
                batch.append(row)
                sums[i] = size
                break
        else:
            batches.append([row])
            sums.append(len(row.token_ids))
    return batches


def lay(rows: Sequence[Sequence[float]], *, packed: bool) -> Tensor:
    """Rows as one tensor: (1, all) end to end, or (rows, longest) with 0 on the right."""
    if packed:
        return torch.tensor([[item for row in rows for item in row]])
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def collate(rows: Sequence[Row], device: torch.device, *, packed: bool) -> Batch:
    """Rows as tensors on ``device``."""
    counts = [len(row.logprobs) for row in rows]

    def flat(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float32).to(device)

    return Batch(
        ids=lay([row.token_ids for row in rows], packed=packed).to(device),
        mask=lay([row.action_mask for row in rows], packed=packed).bool().to(device),
        lengths=[len(row.token_ids) for row in rows] if packed else None,
        counts=counts,
        logprobs=flat(p for row in rows for p in row.logprobs),
        advantages=flat(a for row in rows for a in row.advantages),
        weights=flat(row.weight for row in rows for _ in row.logprobs),
    )
