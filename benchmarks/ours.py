"""bmrl itself as a competitor's process: rollout, update, step, evaluation; and the floors."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import worlds
from floors import decode_bytes, prefill_operations, rates, shape_of, update_operations
from serve import Job, measured, serve

from bmrl.batch import Row, make_rows
from bmrl.chat import make_chat
from bmrl.credit import Credit, Prices
from bmrl.envs import instructions
from bmrl.envs.pool import Pool
from bmrl.optimizer import make_optimizer
from bmrl.policy import Policy, load, with_new_adapter
from bmrl.rollout import rollout
from bmrl.run.evaluate import evaluate_policy
from bmrl.sampler import LiveSampler
from bmrl.trainer import Player, Update, train_step, update_policy
from bmrl.types import EndReason, Episode, Play, Turn

# Tokens that are enough for an opening with its instructions, and for an observation behind its action.
OPENING, OBSERVATION = 768, 64

UPDATE = Update(
    credit=Credit("grpo"),  # as the peers compute it
    max_logprob_gap=1e9,  # not what is measured
)


def policy_of(setup: Job) -> Policy:
    """The model of ``setup``, with a new adapter where it asks for one."""
    policy = load(setup["model"], dtype=setup["dtype"], gradient_checkpointing=setup.get("checkpointing", False))
    if not setup["lora"]:
        return policy
    return with_new_adapter(policy, rank=setup["lora"], alpha=32, dropout=0.0, targets="all-linear", seed=0)


class Ours:
    """bmrl with one policy.

    Args:
        setup: ``model``, ``dtype``, ``lora`` (rank, or 0), ``checkpointing``, ``turn_tokens``, ``context_tokens``,
            ``micro_batch_tokens``, ``learning_rate``.
    """

    def __init__(self, setup: Job) -> None:
        self.setup = setup
        self.policy = policy_of(setup)
        self.chat = make_chat(self.policy.tokenizer, instructions=instructions("alfworld"))
        self.update_settings = replace(UPDATE, micro_batch_tokens=setup["micro_batch_tokens"])

    def rollout(self, job: Job) -> dict[str, Any]:
        """Plays ``episodes`` in groups of ``group``, budgets from ``least`` to ``most``, ``rows`` abreast."""
        rows = min(job.get("rows") or job["episodes"], job["episodes"])
        with self._pool(rows) as pool:
            groups = self._plays(pool, job)
            sampler = LiveSampler(self.policy, rows=rows, context_tokens=self._context(job))
            episodes, figures = measured(
                lambda: rollout(
                    [play for group in groups for play in group],
                    sampler=sampler,
                    chat=worlds.heard(self.chat),
                    pool=pool,
                    turn_tokens=self.setup["turn_tokens"],
                    context_tokens=self._context(job),
                    temperature=1.0,
                )
            )
        self._whole(episodes)
        counters = sampler.counters
        padding = 1 - counters.attention_needed / max(counters.attention_computed, 1)
        return {
            "figures": figures,
            "counters": {**asdict(counters), "padding_share": padding},
            "episodes": self._recorded(episodes) if job.get("record") else [],
        }

    def update(self, job: Job) -> dict[str, Any]:
        """One optimizer step on ``episodes`` in groups of ``group``; ``layout``: a row per episode or per turn."""
        episodes = [_episode(record) for record in job["episodes"]]
        size = job["group"]
        groups = [episodes[i : i + size] for i in range(0, len(episodes), size)]
        rewards = [[Prices().of_turns(episode) for episode in group] for group in groups]
        rows = make_rows(
            groups, rewards, credit=Credit("grpo"), truncation={}, aggregation="constant", constant=job["constant"]
        )
        if not rows:
            raise ValueError("no group has a signal to learn from; take another seed or larger groups")
        if job["layout"] == "turn":
            rows = [part for row in rows for part in by_turn(row)]
        optimizer = self._optimizer()
        work = partial(update_policy, self.policy, optimizer, rows, self.update_settings, poll=lambda: None)
        learned, figures = measured(work)
        tokens = sum(len(row.token_ids) for row in rows)
        return {"figures": {**figures, "tokens": tokens, "grad_norm": learned["grad_norm"]}}

    def step(self, job: Job) -> dict[str, Any]:
        """A whole training step: rollout and update."""
        with self._pool(job["episodes"]) as pool:
            groups, optimizer = self._plays(pool, job), self._optimizer()
            player = self._player(pool, job["episodes"])
            player = replace(player, chat=worlds.heard(self.chat), context_tokens=self._context(job))
            work = partial(train_step, groups, player, optimizer, self.update_settings)
            (episodes, metrics), figures = measured(
                lambda: work(
                    max_error_share=0.0,
                    on_episode=lambda _: None,
                    poll=lambda: None,
                )
            )
        self._whole(episodes)
        parts = {key: metrics[key] for key in ("rollout_s", "update_s", "groups_dropped")}
        return {"figures": {**figures, **parts}, "episodes": self._recorded(episodes)}

    def evaluate(self, job: Job) -> dict[str, Any]:
        """Success at ``budgets`` in one pass over the first ``games`` games of valid_seen, as they really are."""
        args = {"source": "embedded"}
        with Pool("alfworld", args, workers=0, timeout_s=60.0, slots=job["games"]) as pool:
            player, count = self._player(pool, job["games"]), job["games"]
            (_, answer), figures = measured(
                lambda: evaluate_policy(
                    player,
                    target="benchmark",
                    checkpoint=None,
                    split="valid_seen",
                    budgets=job["budgets"],
                    seeds=[job["seed"]],
                    temperature=1.0,
                    limit=count,
                    on_start=lambda _: None,
                    on_episode=lambda _: None,
                    poll=lambda: None,
                )
            )
        return {"figures": figures, "success": {point["budget"]: point["success"] for point in answer["budgets"]}}

    def floors(self, job: Job) -> dict[str, Any]:
        """Seconds below which nothing can get with these ``episodes``, ``rows`` abreast."""
        shape, rate = shape_of(self.policy), rates(self.setup["dtype"])
        turns = [[(t["observation_ids"], t["action_ids"]) for t in e["turns"]] for e in job["episodes"]]
        return {
            **rate,
            **asdict(shape),
            "context_tokens": self._context(job),
            "decode_floor_s": decode_bytes(turns, job["rows"], shape) / rate["copy_bytes_per_s"],
            "prefill_floor_s": prefill_operations(turns, shape) / rate["operations_per_s"],
            "update_floor_s": update_operations(turns, shape) / rate["operations_per_s"],
        }

    def _context(self, job: Job) -> int:
        """Tokens to keep room for: an opening, and turns as long as they may be in these games."""
        return min(self.setup["context_tokens"], OPENING + job["most"] * (self.setup["turn_tokens"] + OBSERVATION))

    @staticmethod
    def _whole(episodes: Sequence[Episode]) -> None:
        if cut := [e.task_id for e in episodes if e.end_reason not in (EndReason.SUCCESS, EndReason.FAILURE)]:
            raise RuntimeError(f"{len(cut)} episodes ended before their budget, the first in {cut[0]}")

    def _recorded(self, episodes: list[Episode]) -> list[dict[str, Any]]:
        """Episodes for other processes, and their first prompt as text, for who speaks in messages."""
        decode = self.policy.tokenizer.decode
        return [{**asdict(e), "opening": decode(e.turns[0].observation_ids)} for e in episodes]

    def _optimizer(self) -> torch.optim.Optimizer:
        rate = self.setup.get("learning_rate", 1e-5)
        return make_optimizer(
            "adamw", self.policy.trainable.values(), learning_rate=rate, weight_decay=0.0, beta2=0.999
        )

    def _player(self, pool: Pool, rows: int) -> Player:
        return Player(
            policy=self.policy,
            chat=self.chat,
            pool=pool,
            rows=rows,
            turn_tokens=self.setup["turn_tokens"],
            context_tokens=self.setup["context_tokens"],
            announce="none",
        )

    def _pool(self, slots: int) -> Pool:
        args = {"source": "embedded", "admissible": self.setup.get("admissible", False)}
        return Pool("alfworld", args, workers=0, timeout_s=60.0, slots=slots, make=worlds.make)

    def _plays(self, pool: Pool, job: Job) -> list[list[Play]]:
        fields = {key: job[key] for key in ("episodes", "group", "least", "most", "seed")}
        return worlds.plays(pool.tasks("train"), **fields)


def by_turn(row: Row) -> list[Row]:
    """The layout of trainers that make a row of each turn: all tokens up to it, its own sampled ones trained."""
    parts, used, begin = [], 0, 0
    mask = row.action_mask
    ends = [i + 1 for i, picked in enumerate(mask) if picked and not (i + 1 < len(mask) and mask[i + 1])]
    for end in ends:
        own = [False] * begin + list(mask[begin:end])
        count = sum(own)
        logprobs, advantages = (values[used : used + count] for values in (row.logprobs, row.advantages))
        parts.append(Row(row.token_ids[:end], tuple(own), logprobs, advantages, row.weight))
        used, begin = used + count, end
    return parts


def _episode(record: dict[str, Any]) -> Episode:
    turns = tuple(Turn(**{k: tuple(v) if isinstance(v, list) else v for k, v in t.items()}) for t in record["turns"])
    record = {name: value for name, value in record.items() if name != "opening"}
    return Episode(**{**record, "turns": turns, "end_reason": EndReason(record["end_reason"])})


if __name__ == "__main__":
    ours = Ours(json.loads(sys.argv[1]))
    serve({name: getattr(ours, name) for name in ("rollout", "update", "step", "evaluate", "floors")})
