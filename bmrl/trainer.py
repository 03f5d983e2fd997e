"""One training step, on one page; and the update it ends with."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from bmrl.algorithm import clipped_loss, k1, k2, k3, sequence_ratio, token_ratio
from bmrl.batch import Batch, Row, collate, has_signal, in_range, make_rows, micro_batches
from bmrl.budgets import Moment, announcement, draw
from bmrl.chat import Chat
from bmrl.credit import Credit, Prices
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.errors import BmrlError
from bmrl.glossary import CUT_OFF
from bmrl.policy import Policy, reference, token_logprobs
from bmrl.rollout import Waited, rollout
from bmrl.sampler import LiveSampler
from bmrl.seeds import python_stream, stream
from bmrl.system import return_free_memory
from bmrl.types import ERRORS, EndReason, Episode, Play

KL = {"k1": k1, "k2": k2, "k3": k3}


@dataclass(frozen=True, slots=True)
class Player:
    """What plays episodes with a policy: everything a rollout needs besides the plays."""

    policy: Policy
    chat: Chat
    pool: Pool
    rows: int
    turn_tokens: int
    context_tokens: int
    announce: str
    wording: str | None = None
    action_tokens: int | None = None
    cuda_graphs: bool = True

    def sampler(self) -> LiveSampler:
        """A new sampler from the policy as it is now."""
        return LiveSampler(
            self.policy, rows=self.rows, context_tokens=self.context_tokens, cuda_graphs=self.cuda_graphs
        )


@dataclass(frozen=True, slots=True)
class Update:
    """Settings of the update; see the recipe's sections ``reward``, ``algorithm``, ``optimizer``, ``train``, whose
    defaults these are, but for ``truncation``: an end reason that is not named is trained on."""

    temperature: float = 1.0
    prices: Prices = field(default_factory=Prices)
    credit: Credit = field(default_factory=Credit)
    ratio: str = "token"
    aggregation: str = "constant"
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    entropy_coef: float = 0.0
    truncation: dict[EndReason, str] = field(default_factory=dict)
    epochs: int = 1
    micro_batch_tokens: int = 8192
    max_grad_norm: float = 1.0
    max_logprob_gap: float = 0.05


@dataclass(frozen=True, slots=True)
class Refill:
    """How groups without a signal are replaced (DAPO, arXiv:2503.14476, section 3.2).

    Attributes:
        plan: the first so many groups of the step; those already played are the beginning of it.
        wanted: groups with a signal.
        most: groups played, those without included.
    """

    plan: Callable[[int], Sequence[Sequence[Play]]]
    wanted: int
    most: int


def plan_step(
    step: int,
    *,
    tasks: Sequence[Task],
    split: str,
    seed: int,
    first: int,
    groups: int,
    group_size: int,
    budget: Any,
    learnability: Mapping[str, float] | None = None,
) -> list[list[Play]]:
    """The groups of a training step: task and budget of each drawn from streams of their own.

    Tasks come in an order shuffled anew each epoch; none comes twice before all came once.

    Args:
        first: groups drawn in all steps before this one.
        budget: the distribution of budgets, see ``budgets``.
        learnability: what an adaptive one has measured before this step.
    """
    plan = []
    for group in range(groups):
        epoch, place = divmod(first + group, len(tasks))
        task = tasks[int(stream(seed, "tasks", epoch).permutation(len(tasks))[place])]
        moment = Moment(step, len(task.plan), learnability or {})
        turns = draw(budget, python_stream(seed, "budget", step, group), moment)
        plan.append([Play(step, group, episode, task, split, seed, turns) for episode in range(group_size)])
    return plan


def train_step(
    plan: Sequence[Sequence[Play]],
    player: Player,
    optimizer: torch.optim.Optimizer,
    update: Update,
    *,
    max_error_share: float,
    on_episode: Callable[[Episode], None],
    poll: Callable[[], None],
    refill: Refill | None = None,
    success_range: Sequence[float] | None = None,
    process: Callable[[Episode], Sequence[float]] | None = None,
) -> tuple[list[Episode], dict[str, float]]:
    """Rolls out the groups, computes advantages, updates the policy once.

    Args:
        refill: plays more groups where some have no signal, and trains on those that have one; None does neither.
        success_range: trains on groups only whose share of solved episodes lies within.
        process: what the turns of an episode earn beside ``update.prices``; whether a group has a signal is judged
            without it.

    Returns:
        the episodes in the order of the plan, refills behind, and the step's metrics (see ``glossary.GLOSSARY``).

    Raises:
        BmrlError: too many environment errors. The policy is unchanged then.
    """
    began = time.perf_counter()
    sampler = player.sampler()
    waited = Waited()
    groups: list[list[Episode]] = []
    rewards: list[list[list[float]]] = []
    extra: list[list[list[float]]] = []  # process rewards
    failed: list[Episode] = []
    due = list(plan)
    while due:
        planned = sum(map(len, due)) + sum(map(len, groups))

        def ended(episode: Episode, planned: int = planned) -> None:
            on_episode(episode)
            failed.extend([episode] if episode.end_reason in ERRORS else [])
            _refuse_errors(failed, planned, max_error_share)  # at once: each of them may have cost its time-out twice

        played = rollout(
            [play for group in due for play in group],
            sampler=sampler,
            chat=player.chat,
            pool=player.pool,
            turn_tokens=player.turn_tokens,
            context_tokens=player.context_tokens,
            temperature=update.temperature,
            announce=player.announce,
            wording=player.wording,
            action_tokens=player.action_tokens,
            waited=waited,
            on_episode=ended,
            poll=poll,
        )
        size = len(due[0])
        for group in (played[i : i + size] for i in range(0, len(played), size)):
            groups.append(group)
            rewards.append([update.prices.of_turns(episode) for episode in group])
            extra.append([list(process(episode)) if process else [0.0] * len(episode.turns) for episode in group])
        learnable = [
            has_signal(group, [sum(turns) for turns in values], update.truncation, success_range)
            for group, values in zip(groups, rewards, strict=True)
        ]
        due = []
        if refill is not None:
            missing = min(refill.wanted - sum(learnable), refill.most - len(groups))
            due = list(refill.plan(len(groups) + missing)[len(groups) :]) if missing > 0 else []
    episodes = [episode for group in groups for episode in group]
    rolled = time.perf_counter()
    counters = sampler.counters
    del sampler  # and with it the cache and the graphs: the update needs their memory
    return_free_memory()

    # With refills the mean is over the groups that have a signal: theirs is the number that is held constant.
    chosen = [
        i
        for i, group in enumerate(groups)
        if learnable[i] or (refill is None and in_range(group, update.truncation, success_range))
    ]
    rows = make_rows(
        [groups[i] for i in chosen],
        [
            [[r + e for r, e in zip(*turns, strict=True)] for turns in zip(rewards[i], extra[i], strict=True)]
            for i in chosen
        ],
        credit=update.credit,
        truncation=update.truncation,
        aggregation=update.aggregation,
        constant=player.turn_tokens,
        states=lambda episode: observations(episode, player.announce, player.wording),
    )
    if not all(isfinite(p) for e in episodes for turn in e.turns for p in turn.logprobs):
        learned = {"skipped_nonfinite": 1.0}  # what samples computes nonsense, and so would the update
    else:
        learned = update_policy(player.policy, optimizer, rows, update, poll=poll) if rows else {}

    return episodes, {
        **rollout_metrics(episodes),
        **learned,
        "reward_mean": fmean(sum(turns) for group in rewards for turns in group),
        **({"process_reward_mean": fmean(sum(turns) for group in extra for turns in group)} if process else {}),
        "groups_played": len(groups),
        "groups_dropped": len(groups) - sum(learnable),
        "rollout_s": rolled - began,
        "update_s": time.perf_counter() - rolled,
        "prefill_s": counters.prefill_s,
        "decode_s": counters.decode_s,
        "env_s": waited.env_s,
        "idle_s": rolled - began - counters.prefill_s - counters.decode_s - waited.env_s,
        "prefill_tokens": counters.prefill_tokens,
        "rows_mean": counters.decode_tokens / max(counters.steps, 1),
        "padding_share": 1 - counters.attention_needed / max(counters.attention_computed, 1),
        "tokens_per_s": counters.decode_tokens / (rolled - began),
        "dropped_tokens": sum(e.action_tokens for e in episodes) - sum(len(row.logprobs) for row in rows),
    }


def update_policy(
    policy: Policy, optimizer: torch.optim.Optimizer, rows: Sequence[Row], update: Update, *, poll: Callable[[], None]
) -> dict[str, float]:
    """``update.epochs`` optimizer steps on the rows of one rollout.

    Where a loss or gradient is not finite, or the sampler is not the policy, this and the later epochs' optimizer
    steps are skipped: weights and optimizer state stay as they are, and the metrics say ``skipped_nonfinite`` or
    ``skipped_gap``.

    The old log-probabilities are those of the first epoch's own forward, so that its ratios are exactly 1; the
    sampler's are compared with them. ``poll`` is called only while the weights are still those of the step
    before.
    """
    policy.model.train()
    pieces = [
        collate(micro, policy.device, packed=policy.packs)
        for micro in micro_batches(rows, tokens=update.micro_batch_tokens, packed=policy.packs)
    ]
    old: list[Tensor] = []
    anchors: list[Tensor | None] = []
    tokens = sum(len(row.logprobs) for row in rows)
    sums = dict.fromkeys(("loss", "kl", "clip_share", "ratio_mean", "entropy", "logprob_gap"), 0.0)
    norm, finite, gap = 0.0, True, False
    for epoch in range(update.epochs):
        optimizer.zero_grad(set_to_none=True)
        for i, batch in enumerate(pieces):
            if epoch == 0:
                poll()
                anchors.append(_anchor(policy, batch, update) if update.kl_coef else None)
            logprobs, entropy = _logprobs(policy, batch, update)
            if epoch == 0:
                old.append(logprobs.detach())
                sums["logprob_gap"] += float((old[i] - batch.logprobs).abs().sum()) / tokens
            ratio = (
                sequence_ratio(logprobs, old[i], batch.counts)
                if update.ratio == "sequence"
                else token_ratio(logprobs, old[i])
            )
            loss, stopped = clipped_loss(
                ratio, batch.advantages, batch.weights, clip_low=update.clip_low, clip_high=update.clip_high
            )
            if (anchor := anchors[i]) is not None:
                kl = KL[update.kl_estimator](logprobs, anchor)
                loss = loss + update.kl_coef * (batch.weights * kl).sum()
                sums["kl"] += float(kl.detach().sum()) / tokens / update.epochs
            if update.entropy_coef:
                loss = loss - update.entropy_coef * (batch.weights * entropy).sum()
            finite = isfinite(float(loss.detach())) and isfinite(sums["logprob_gap"])
            if not finite:
                break
            loss.backward()  # type: ignore[no-untyped-call]
            sums["loss"] += float(loss.detach()) / update.epochs
            sums["ratio_mean"] += float(ratio.detach().sum()) / tokens / update.epochs
            sums["clip_share"] += float(stopped.sum()) / tokens / update.epochs
            sums["entropy"] += float(entropy.detach().sum()) / tokens / update.epochs
        gap = sums["logprob_gap"] > update.max_logprob_gap
        if finite and not gap:
            norm = float(torch.nn.utils.clip_grad_norm_(list(policy.trainable.values()), update.max_grad_norm))
            finite = isfinite(norm)
        if gap or not finite:
            optimizer.zero_grad(set_to_none=True)
            break
        optimizer.step()
    if not update.kl_coef:
        del sums["kl"]
    return {
        **sums,
        "grad_norm": norm,
        "update_tokens": update.epochs * sum(len(row.token_ids) for row in rows),
        "skipped_nonfinite": float(not finite),
        "skipped_gap": float(finite and gap),
    }


def _logprobs(policy: Policy, batch: Batch, update: Update) -> tuple[Tensor, Tensor]:
    return token_logprobs(
        policy,
        batch.ids,
        batch.mask,
        lengths=batch.lengths,
        temperature=update.temperature,
        entropy_gradient=update.entropy_coef > 0,
    )


def _anchor(policy: Policy, batch: Batch, update: Update) -> Tensor:
    """The reference's log-probabilities; it never moves, so that one pass serves all epochs."""
    with torch.no_grad(), reference(policy):
        return _logprobs(policy, batch, update)[0]


def observations(episode: Episode, announce: str, wording: str | None) -> list[str]:
    """What the environment showed before each turn, without the line that tells the budget."""
    told = [announcement(announce, episode.budget, used, wording) for used in range(len(episode.turns))]
    return [turn.observation.removesuffix(f"\n{line}") for turn, line in zip(episode.turns, told, strict=True)]


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What a step's episodes say: success (also per budget), end reasons, turns, tokens."""
    turns = [turn for episode in episodes for turn in episode.turns]
    pairs = [pair for episode in episodes for pair in pairwise(episode.turns)]
    logprobs = [logprob for turn in turns for logprob in turn.logprobs]
    metrics: dict[str, float] = {
        "episodes": len(episodes),
        "success": fmean(e.success for e in episodes),
        "turns_mean": fmean(len(e.turns) for e in episodes),
        "step_turns": len(turns),
        "invalid_share": fmean(not t.valid for t in turns) if turns else 0.0,
        "repeat_share": fmean(a.text == b.text for a, b in pairs) if pairs else 0.0,
        "sampled_entropy": -fmean(logprobs) if logprobs else 0.0,
        "action_tokens": sum(len(t.action_ids) for t in turns),
        "observation_tokens": sum(len(t.observation_ids) for t in turns),
    }
    for budget in sorted({e.budget for e in episodes}):
        of_budget = [e for e in episodes if e.budget == budget]
        metrics[f"success_at_{budget}"] = fmean(e.success for e in of_budget)
        for reason in CUT_OFF:
            metrics[f"end_{reason}_at_{budget}"] = fmean(e.end_reason is reason for e in of_budget)
    for reason in EndReason:
        metrics[f"end_{reason}"] = fmean(e.end_reason is reason for e in episodes)
    return metrics


def success_rates(episodes: Sequence[Episode], group_size: int) -> list[tuple[int, float]]:
    """Budget and success rate of each group, in order; an episode that the environment broke does not count."""
    rates = []
    for i in range(0, len(episodes), group_size):
        if scored := [e for e in episodes[i : i + group_size] if e.end_reason not in ERRORS]:
            rates.append((scored[0].budget, fmean(e.success for e in scored)))
    return rates


def _refuse_errors(failed: Sequence[Episode], episodes: int, limit: float) -> None:
    if len(failed) > limit * episodes:
        raise BmrlError(
            f"{len(failed)} of {episodes} episodes ended in an environment error, above env.max_error_share "
            f"{limit:g}; the first: {failed[0].task_id}: {failed[0].error}"
        )
