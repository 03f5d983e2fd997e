"""Every number that a training step logs: what it means, and the file it is written to.

A key that is not in the glossary cannot be logged. ``{budget}`` and ``{reason}`` in a key stand for
each budget and each end reason.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bmrl.atomic import append_json, write_text
from bmrl.errors import BmrlError
from bmrl.types import EndReason


@dataclass(frozen=True, slots=True)
class Metric:
    """One logged key.

    Attributes:
        unit: unit of the number; "share" lies between 0 and 1.
        meaning: what it is and how it is averaged.
        good: what a healthy run shows.
        bad: what to worry about, and what to do then.
    """

    unit: str
    meaning: str
    good: str
    bad: str


GLOSSARY: dict[str, Metric] = {
    "step": Metric("count", "training step, counted from 1", "-", "-"),
    "success": Metric(
        "share",
        "solved episodes among the step's episodes, over all its budgets",
        "rises over tens of steps, with noise of its own",
        "falls and stays down: lower the learning rate. Budgets differ from step to step: "
        "judge a policy by its evaluations",
    ),
    "success_at_{budget}": Metric(
        "share",
        "the same among the step's episodes of one budget; absent when the step drew none",
        "rises at every budget that can be solved",
        "rises at large budgets only: the policy learns to last longer, not to act better",
    ),
    "reward_mean": Metric(
        "reward",
        "mean reward of the step's episodes, shaping included",
        "rises with success",
        "rises while success does not: the shaping is being exploited",
    ),
    "turns_mean": Metric(
        "turns",
        "mean turns an episode used",
        "falls as tasks are solved sooner",
        "at the budgets' mean: hardly any episode ends before its budget",
    ),
    "episodes": Metric("count", "episodes of the step", "groups x group size", "-"),
    "end_{reason}": Metric(
        "share",
        "episodes that ended for this reason: " + ", ".join(EndReason),
        "`end_success` grows, `end_budget` shrinks",
        "`end_context` above a few percent: raise model.context_tokens; `end_timeout` or "
        "`end_env_error` above 0: see the field `error` in `episodes/`",
    ),
    "invalid_share": Metric(
        "share",
        "turns whose action the environment refused, or that held no action",
        "falls early",
        "rises: the policy drifts away from the action format",
    ),
    "groups_dropped": Metric(
        "count",
        "groups whose episodes all have the same reward: there is nothing to compare, no gradient",
        "below half of the groups",
        "all of them: nothing is learned; tasks are too hard or too easy for the budgets",
    ),
    "loss": Metric(
        "nats",
        "the loss that was minimised: in reinforcement learning the surrogate, near 0 by "
        "construction; in supervised learning the mean cross-entropy of the weighted tokens",
        "supervised: falls",
        "not a number: lower the learning rate. The surrogate's value says nothing of progress",
    ),
    "kl": Metric(
        "nats",
        "mean KL to the policy that training started from, per sampled token (estimator k3); "
        "only with algorithm.kl_coef above 0",
        "rises slowly from 0",
        "jumps: lower the learning rate or raise algorithm.kl_coef",
    ),
    "clip_share": Metric(
        "share",
        "sampled tokens whose gradient clipping stopped, mean over the epochs",
        "0 in the first epoch; a few percent later",
        "above 0.3: too many epochs on the same episodes, or too large a learning rate",
    ),
    "ratio_mean": Metric(
        "ratio",
        "mean probability ratio between the updated and the sampling policy, over the epochs",
        "exactly 1 with one epoch; near 1 with several",
        "away from 1 by more than a few percent: as for clip_share",
    ),
    "entropy": Metric(
        "nats",
        "mean entropy of the policy at its sampled tokens, at the sampling temperature",
        "falls slowly",
        "falls to 0: nothing new is tried; raise rollout.temperature or lower the learning rate",
    ),
    "grad_norm": Metric(
        "norm",
        "norm of the gradient before it is scaled down to optimizer.max_grad_norm",
        "of the same order throughout",
        "always far above max_grad_norm: every step is cut down; jumps: look at that step",
    ),
    "learning_rate": Metric("1", "learning rate of the step", "as scheduled", "-"),
    "logprob_gap": Metric(
        "nats",
        "mean absolute difference of the sampler's and the update's log-probabilities of the sampled tokens",
        "1e-6 in float32 on a CPU; up to about 0.01 in bfloat16",
        "grows: the sampler is not the policy; the run stops at rollout.max_logprob_gap",
    ),
    "action_tokens": Metric("tokens", "tokens the policy sampled in the step", "-", "-"),
    "observation_tokens": Metric("tokens", "tokens of observations in the step", "-", "-"),
    "step_turns": Metric("turns", "turns played in the step", "-", "-"),
    "env_turns": Metric(
        "turns",
        "turns played since training began, all steps",
        "the cost of learning in interactions: compare policies at equal env_turns",
        "-",
    ),
    "tokens": Metric("tokens", "tokens of the step's rows (supervised)", "-", "-"),
    "action_loss": Metric(
        "nats",
        "mean cross-entropy of the demonstrated action tokens that count fully: search steps weigh less (supervised)",
        "falls",
        "falls to near 0: the demonstrations are being memorised",
    ),
    "prefill_tokens": Metric(
        "tokens",
        "tokens the sampler read without sampling them; a group's common opening counts once",
        "near observation_tokens or below",
        "far above: the KV cache is dropped and read again; raise rollout.kv_cache_gb",
    ),
    "rollout_s": Metric("s", "time of the rollout", "-", "-"),
    "update_s": Metric("s", "time of the update", "-", "-"),
    "prefill_s": Metric(
        "s",
        "part of rollout_s: reading what turns added; a forward that also samples is shared out by its tokens",
        "-",
        "-",
    ),
    "decode_s": Metric("s", "part of rollout_s: sampling tokens", "-", "-"),
    "update_tokens": Metric(
        "tokens",
        "tokens of the episodes that the update read, once per epoch; absent when it had none",
        "well above action_tokens: observations are read, too",
        "-",
    ),
    "dropped_tokens": Metric(
        "tokens",
        "sampled tokens that taught nothing: of groups without signal, of failed, masked and dropped episodes",
        "below half of action_tokens",
        "near action_tokens: as for groups_dropped",
    ),
    "env_s": Metric(
        "s",
        "part of rollout_s: waiting for environments while nothing is decoded",
        "a few percent of rollout_s",
        "a large part of it: raise env.workers",
    ),
    "idle_s": Metric(
        "s",
        "rest of rollout_s: text and tokens, bookkeeping",
        "a few percent of rollout_s",
        "-",
    ),
    "rows_mean": Metric(
        "episodes",
        "mean number of episodes that get a token at once",
        "near tasks_per_step x group_size, or what rollout.kv_cache_gb holds",
        "far below: few long episodes are left at the end of each step",
    ),
    "padding_share": Metric(
        "share",
        "share of the attention work of the rollout that goes into padding",
        "0 on a CPU; below 0.05 on a GPU",
        "-",
    ),
    "tokens_per_s": Metric("tokens/s", "sampled tokens per second of rollout", "-", "-"),
    "elapsed_s": Metric("s", "time since training began, all resumes together", "-", "-"),
    "peak_memory_gb": Metric(
        "GiB",
        "most memory so far: of the GPU, or resident memory of the program on a CPU",
        "level after the first steps",
        "rises step after step: memory leaks",
    ),
}


def metric(key: str) -> Metric | None:
    """The glossary's entry for a logged key, patterns included; None when there is none."""
    if key in GLOSSARY:
        return GLOSSARY[key]
    if re.fullmatch(r"success_at_[1-9]\d*", key):
        return GLOSSARY["success_at_{budget}"]
    if key.startswith("end_") and key.removeprefix("end_") in list(EndReason):
        return GLOSSARY["end_{reason}"]
    return None


class MetricsFile:
    """``metrics.jsonl`` of a run: one line of JSON per training step.

    A number that is not finite is written as null, which JSON has and NaN it has not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, float | None]) -> None:
        """Write one step's line.

        Raises:
            KeyError: a key is not in the glossary.
            BmrlError: the disk is full or forbidden.
        """
        unknown = [key for key in record if metric(key) is None]
        if unknown:
            raise KeyError(f"not in the metrics glossary: {', '.join(unknown)}")
        finite = {key: value if value is not None and math.isfinite(value) else None for key, value in record.items()}
        append_json(self.path, finite)

    def read(self) -> list[dict[str, float | None]]:
        """All lines; half a line at the end, left by a kill, is passed over.

        Raises:
            BmrlError: a whole line is damaged; the message names file and line.
        """
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                sound = isinstance(record["step"], int)
            except (ValueError, KeyError, TypeError):
                sound = False
            if not sound:
                raise BmrlError(f"{self.path}:{number}: damaged, not a step's metrics; remove the line")
            records.append(record)
        return records

    def truncate_after(self, step: int) -> None:
        """Forget the steps after ``step``, to be played again by a resumed run."""
        kept = [record for record in self.read() if (record["step"] or 0) <= step]
        if self.path.exists():
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))


def markdown() -> str:
    """The glossary as a page of the documentation."""
    lines = [
        "# Metrics",
        "",
        "One line of `metrics.jsonl` holds the numbers of one training step. Each key is listed",
        "here; bmrl cannot log another. Times end in `_s` or `_per_s`: they, and `peak_memory_gb`,",
        "are all that differs between two runs of one recipe and seed on one machine.",
        "",
        "This page is made from `bmrl/metrics.py`.",
        "",
        "| key | unit | meaning | good | worry when |",
        "|---|---|---|---|---|",
    ]
    for key, entry in GLOSSARY.items():
        lines.append(f"| `{key}` | {entry.unit} | {entry.meaning} | {entry.good} | {entry.bad} |")
    return "\n".join(lines) + "\n"
