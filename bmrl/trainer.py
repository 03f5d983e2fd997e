"""One training step, on one page; and the update it ends with."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from bmrl.algorithm import clipped_loss, kl_k3
from bmrl.batch import Batch, Row, collate, make_rows, micro_batches, reward
from bmrl.budgets import Moment, draw
from bmrl.chat import Chat
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.errors import BmrlError
from bmrl.policy import Policy, reference, token_logprobs
from bmrl.rollout import Waited, rollout
from bmrl.sampler import LiveSampler
from bmrl.seeds import python_stream, stream
from bmrl.system import return_free_memory
from bmrl.types import ERRORS, EndReason, Episode, Play


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
    """Settings of the update; see the recipe's sections ``algorithm``, ``optimizer``, ``train``, whose defaults these
    are, but for ``truncation``: an end reason that is not named is trained on."""

    temperature: float = 1.0
    aggregation: str = "constant"
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    truncation: dict[EndReason, str] = field(default_factory=dict)
    epochs: int = 1
    micro_batch_tokens: int = 8192
    max_grad_norm: float = 1.0
    max_logprob_gap: float = 0.05


def plan_step(
    step: int,
    *,
    tasks: Sequence[Task],
    split: str,
    seed: int,
    groups: int,
    group_size: int,
    budget: Any,
    learnability: Mapping[str, float] | None = None,
) -> list[list[Play]]:
    """The groups of a training step: task and budget of each drawn from streams of their own.

    Tasks come in an order shuffled anew each epoch; none comes twice before all came once.

    Args:
        budget: the distribution of budgets, see ``budgets``.
        learnability: what an adaptive one has measured before this step.
    """
    plan = []
    for group in range(groups):
        epoch, place = divmod((step - 1) * groups + group, len(tasks))
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
    reward_success: float,
    reward_invalid_action: float,
    reward_turn: float,
    max_error_share: float,
    on_episode: Callable[[Episode], None],
    poll: Callable[[], None],
) -> tuple[list[Episode], dict[str, float]]:
    """Rolls out the groups, computes advantages, updates the policy once.

    Returns:
        the episodes in the order of the plan, and the step's metrics (see ``glossary.GLOSSARY``).

    Raises:
        BmrlError: too many environment errors, a sampler that is not the policy, or a gradient that is not
            finite. The policy is unchanged then.
    """
    began = time.perf_counter()
    sampler = player.sampler()
    waited = Waited()
    plays = [play for group in plan for play in group]
    failed: list[Episode] = []

    def ended(episode: Episode) -> None:
        on_episode(episode)
        failed.extend([episode] if episode.end_reason in ERRORS else [])
        _refuse_errors(failed, len(plays), max_error_share)  # at once: each of them may have cost its time-out twice

    episodes = rollout(
        plays,
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
    rolled = time.perf_counter()
    counters = sampler.counters
    del sampler  # and with it the cache and the graphs: the update needs their memory
    return_free_memory()

    size = len(plan[0])
    groups = [episodes[i : i + size] for i in range(0, len(episodes), size)]
    rewards = [
        [reward(e, success=reward_success, invalid_action=reward_invalid_action, turn=reward_turn) for e in group]
        for group in groups
    ]
    rows = make_rows(
        groups, rewards, truncation=update.truncation, aggregation=update.aggregation, constant=player.turn_tokens
    )
    learned = update_policy(player.policy, optimizer, rows, update, poll=poll) if rows else {}

    return episodes, {
        **rollout_metrics(episodes),
        **learned,
        "reward_mean": fmean(r for group in rewards for r in group),
        "groups_dropped": sum(len(set(group)) == 1 for group in rewards),
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
    norm = 0.0
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
            loss, ratio, stopped = clipped_loss(
                logprobs, old[i], batch.advantages, batch.weights, clip_low=update.clip_low, clip_high=update.clip_high
            )
            if (anchor := anchors[i]) is not None:
                kl = kl_k3(logprobs, anchor)
                loss = loss + update.kl_coef * (batch.weights * kl).sum()
                sums["kl"] += float(kl.detach().sum()) / tokens / update.epochs
            loss.backward()  # type: ignore[no-untyped-call]
            sums["loss"] += float(loss.detach()) / update.epochs
            sums["ratio_mean"] += float(ratio.sum()) / tokens / update.epochs
            sums["clip_share"] += float(stopped.sum()) / tokens / update.epochs
            sums["entropy"] += float(entropy.sum()) / tokens / update.epochs
        if epoch == 0 and sums["logprob_gap"] > update.max_logprob_gap:
            raise BmrlError(
                f"the sampler is not the policy: their log-probabilities differ by {sums['logprob_gap']:.2g} nats on "
                f"average, above rollout.max_logprob_gap {update.max_logprob_gap:g}; nothing was learned from this step"
            )
        norm = float(torch.nn.utils.clip_grad_norm_(list(policy.trainable.values()), update.max_grad_norm))
        if not norm < float("inf"):
            raise BmrlError(f"the gradient is not finite ({norm}); lower optimizer.learning_rate and resume")
        optimizer.step()
    if not update.kl_coef:
        del sums["kl"]
    return {**sums, "grad_norm": norm, "update_tokens": update.epochs * sum(len(row.token_ids) for row in rows)}


def _logprobs(policy: Policy, batch: Batch, update: Update) -> tuple[Tensor, Tensor]:
    return token_logprobs(policy, batch.ids, batch.mask, lengths=batch.lengths, temperature=update.temperature)


def _anchor(policy: Policy, batch: Batch, update: Update) -> Tensor:
    """The reference's log-probabilities; it never moves, so that one pass serves all epochs."""
    with torch.no_grad(), reference(policy):
        return _logprobs(policy, batch, update)[0]


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What a step's episodes say: success (also per budget), end reasons, turns, tokens."""
    turns = [turn for episode in episodes for turn in episode.turns]
    metrics: dict[str, float] = {
        "episodes": len(episodes),
        "success": fmean(e.success for e in episodes),
        "turns_mean": fmean(len(e.turns) for e in episodes),
        "step_turns": len(turns),
        "invalid_share": fmean(not t.valid for t in turns) if turns else 0.0,
        "action_tokens": sum(len(t.action_ids) for t in turns),
        "observation_tokens": sum(len(t.observation_ids) for t in turns),
    }
    for budget in sorted({e.budget for e in episodes}):
        metrics[f"success_at_{budget}"] = fmean(e.success for e in episodes if e.budget == budget)
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
