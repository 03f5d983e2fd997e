"""Every number that is logged: its unit, what it means, what is a good and what a bad sign.

A key that is not here cannot be logged. ``{budget}`` and ``{reason}`` in a key stand for each budget and each end
reason.
"""

import re
from dataclasses import dataclass

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


# What algorithm.truncation decides on.
CUT_OFF = (EndReason.BUDGET, EndReason.CONTEXT, EndReason.FAILURE)

GLOSSARY: dict[str, Metric] = {
    "step": Metric(
        "count",
        "training step, counted from 1",
        "rises by 1 from line to line",
        "a number is missing or comes twice: the file was edited; a resume never leaves either",
    ),
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
    "budget_chance_{budget}": Metric(
        "share",
        "probability with which the step's groups had this budget; only with adaptive budgets",
        "moves to larger or smaller budgets as the policy learns",
        "all but one at budget.train.floor: hardly any group of the others has both successes and failures",
    ),
    "reward_mean": Metric(
        "reward",
        "mean reward of the step's episodes, shaping included",
        "rises with success",
        "rises while success does not: the shaping is being exploited",
    ),
    "process_reward_mean": Metric(
        "reward",
        "mean process reward of the step's episodes, in neither `reward_mean` nor `success`; only with reward.process",
        "`rules`: rises as failures are mended. `progress`: level, the mean first distance times the weight",
        "`rules`: rises while success does not: the rules are being exploited; lower reward.process_weight",
    ),
    "turns_mean": Metric(
        "turns",
        "mean turns an episode used",
        "falls as tasks are solved sooner",
        "at the budgets' mean: hardly any episode ends before its budget",
    ),
    "episodes": Metric(
        "count",
        "episodes of the step",
        "groups_played x rollout.group_size, at every step",
        "differs: episodes were lost, which is a bug",
    ),
    "end_{reason}": Metric(
        "share",
        "episodes that ended for this reason: " + ", ".join(EndReason),
        "`end_success` grows, `end_budget` shrinks",
        "`end_context` above a few percent: raise model.context_tokens; `end_timeout` or "
        "`end_env_error` above 0: see the field `error` in `episodes/`",
    ),
    "end_{reason}_at_{budget}": Metric(
        "share",
        "episodes of one budget that ended as `budget`, `context` or `failure`: what algorithm.truncation decides on",
        "`end_budget_at_…` shrinks, at large budgets first",
        "`end_context_at_…` above 0 at large budgets only: they do not fit; raise model.context_tokens, or long "
        "episodes are not learned from (algorithm.truncation.context)",
    ),
    "invalid_share": Metric(
        "share",
        "turns whose action the environment refused, or that held no action",
        "falls early",
        "rises: the policy drifts away from the action format",
    ),
    "groups_played": Metric(
        "count",
        "groups of the step, refills of rollout.dynamic included",
        "rollout.tasks_per_step; with rollout.dynamic little more",
        "at rollout.max_groups: too few groups have a signal; tasks are too hard or too easy for the budgets",
    ),
    "groups_dropped": Metric(
        "count",
        "groups that taught nothing: equal rewards leave nothing to compare; or outside of rollout.success_range",
        "below half of the groups",
        "all of them: nothing is learned; tasks are too hard or too easy for the budgets",
    ),
    "repeat_share": Metric(
        "share",
        "turns whose text is that of the turn before in their episode, among those that have one",
        "well below 1; what a world allows: a corridor is won by repeating",
        "rises towards 1: the policy says one thing only; see guards.max_repeat_share",
    ),
    "skipped_nonfinite": Metric(
        "share",
        "1 where loss, gradient or log-probabilities were not finite and the optimizer step was skipped, else 0; "
        "absent without an update",
        "0",
        "1: lower the learning rate; the run stops after guards.nonfinite_steps in a row",
    ),
    "skipped_gap": Metric(
        "share",
        "1 where logprob_gap was above rollout.max_logprob_gap and the optimizer step was skipped, else 0; absent "
        "without an update",
        "0",
        "1: the sampler is not the policy; the run stops after guards.gap_steps in a row",
    ),
    "guard_nonfinite": Metric(
        "steps",
        "steps in a row skipped because something was not finite",
        "0",
        "grows: the run stops at guards.nonfinite_steps",
    ),
    "guard_gap": Metric(
        "steps",
        "steps in a row skipped because the sampler was not the policy",
        "0",
        "grows: the run stops at guards.gap_steps",
    ),
    "guard_entropy": Metric(
        "steps",
        "steps in a row with entropy below guards.min_entropy",
        "0",
        "grows: the policy has collapsed, and the run stops at guards.patience",
    ),
    "guard_repeats": Metric(
        "steps",
        "steps in a row with repeat_share above guards.max_repeat_share",
        "0",
        "grows: the policy repeats itself, and the run stops at guards.patience",
    ),
    "guard_invalid": Metric(
        "steps",
        "steps in a row with invalid_share above guards.max_invalid_share",
        "0",
        "grows: no action is understood, and the run stops at guards.patience",
    ),
    "guard_dead": Metric(
        "steps",
        "steps in a row in which no group had a signal",
        "0",
        "grows: nothing is learned, and the run stops at guards.dead_steps",
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
        "mean KL to the policy that training started from, per sampled token (algorithm.kl_estimator); "
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
    "sampled_entropy": Metric(
        "nats",
        "mean of -log p of the sampled tokens: entropy as the rollout estimates it, over all groups",
        "near entropy",
        "as for entropy; far from it: the groups without a signal are those the policy is sure of",
    ),
    "grad_norm": Metric(
        "norm",
        "norm of the gradient before it is scaled down to optimizer.max_grad_norm",
        "of the same order throughout",
        "always far above max_grad_norm: every step is cut down; jumps: look at that step",
    ),
    "learning_rate": Metric(
        "1",
        "learning rate of the step",
        "as the recipe's optimizer schedules it",
        "0 before the last step: optimizer.warmup_steps or the schedule is not what was meant",
    ),
    "logprob_gap": Metric(
        "nats",
        "mean absolute difference of the sampler's and the update's log-probabilities of the sampled tokens",
        "1e-6 in float32 on a CPU; up to about 0.01 in bfloat16",
        "grows: the sampler is not the policy; a step above rollout.max_logprob_gap is skipped",
    ),
    "action_tokens": Metric(
        "tokens",
        "tokens the policy sampled in the step",
        "step_turns times the length of a command, and steady",
        "near step_turns x rollout.turn_tokens: turns are cut off; raise rollout.turn_tokens. Grows without success: "
        "the policy rambles",
    ),
    "observation_tokens": Metric(
        "tokens",
        "tokens of observations in the step, openings included",
        "moves with step_turns",
        "grows faster than step_turns: observations get longer; watch `end_context`",
    ),
    "step_turns": Metric(
        "turns",
        "turns played in the step",
        "varies with the budgets drawn, falls as tasks are solved sooner",
        "episodes x the budgets' mean, always: hardly any episode ends before its budget",
    ),
    "env_turns": Metric(
        "turns",
        "turns played since training began, all steps",
        "the cost of learning in interactions: compare policies at equal env_turns",
        "compared policies differ much in it: the one that played more had more to learn from",
    ),
    "tokens": Metric(
        "tokens",
        "tokens of the step's rows (supervised)",
        "near sft.batch_tokens",
        "far below it: a demonstration is about as long as a batch; raise sft.batch_tokens",
    ),
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
    "rollout_s": Metric(
        "s",
        "time of the rollout",
        "moves with step_turns",
        "grows at equal step_turns: see which of its parts does, prefill_s, decode_s, env_s or idle_s",
    ),
    "update_s": Metric(
        "s",
        "time of the update",
        "moves with update_tokens",
        "far above rollout_s with one epoch: switch model.gradient_checkpointing off if memory allows, or raise "
        "train.micro_batch_tokens",
    ),
    "prefill_s": Metric(
        "s",
        "part of rollout_s: reading what turns added; a forward that also samples is shared out by its tokens",
        "moves with prefill_tokens",
        "most of rollout_s although prefill_tokens is small: observations arrive a few at a time",
    ),
    "decode_s": Metric(
        "s",
        "part of rollout_s: sampling tokens",
        "the largest part on a GPU",
        "grows at equal action_tokens: few long episodes play alone, see rows_mean",
    ),
    "update_tokens": Metric(
        "tokens",
        "tokens of the episodes that the update read, once per epoch; absent when it had none",
        "well above action_tokens: observations are read, too",
        "absent in many steps: nothing is learned there, as for groups_dropped",
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
        "a large part of it: other programs use the processor",
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
        "above 0.2: episodes of very different length play together",
    ),
    "tokens_per_s": Metric(
        "tokens/s",
        "sampled tokens per second of rollout",
        "level, or rising as episodes get shorter",
        "falls step after step: another program uses the device, or the machine runs out of memory",
    ),
    "elapsed_s": Metric(
        "s",
        "time since training began, evaluations included, all resumes together",
        "rises by rollout_s + update_s and a little",
        "rises by much more: evaluations or checkpoints take it; raise train.eval_every or train.checkpoint_every",
    ),
    "peak_memory_gb": Metric(
        "GiB",
        "most memory so far: of the GPU, or resident memory of the program on a CPU",
        "level after the first steps",
        "rises step after step: memory leaks",
    ),
    "eval_area": Metric(
        "share",
        "at evaluations, to trackers only: area under success over log2(budget), divided by its width",
        "rises from evaluation to evaluation",
        "falls while `success` rises: the policy learns the training tasks by heart",
    ),
    "eval_success_at_{budget}": Metric(
        "share",
        "at evaluations, to trackers only: success within the budget on env.eval_split; intervals are in `eval/`",
        "rises at every budget below its ceiling",
        "moves by less than its interval: nothing is shown; evaluate more tasks or seeds",
    ),
}


def metric(key: str) -> Metric | None:
    """The glossary's entry for a logged key, patterns included; None when there is none."""
    if key in GLOSSARY:
        return GLOSSARY[key]
    if found := re.fullmatch(r"((?:eval_)?success_at_|budget_chance_)[1-9]\d*", key):
        return GLOSSARY[f"{found[1]}{{budget}}"]
    if found := re.fullmatch(r"end_(\w+)_at_[1-9]\d*", key):
        return GLOSSARY["end_{reason}_at_{budget}"] if found[1] in CUT_OFF else None
    if key.startswith("end_") and key.removeprefix("end_") in list(EndReason):
        return GLOSSARY["end_{reason}"]
    return None


def markdown() -> str:
    """The glossary as a page of the documentation."""
    lines = [
        "# Metrics",
        "",
        "One line of `metrics.jsonl` holds the numbers of one training step. Each key is listed",
        "here; bmrl cannot log another. Times end in `_s` or `_per_s`: they, and `peak_memory_gb`,",
        "are all that differs between two runs of one recipe and seed on one machine.",
        "",
        "With `tracking: [jsonl, tensorboard, wandb, trackio]` in the recipe, or some of them, the same",
        "numbers go to those, too, and success over budgets at every evaluation. Each needs the extra of",
        "its name, e.g. `pip install 'bmrl[wandb]'`. TensorBoard's files are in `tensorboard/` of the run;",
        "Weights & Biases and trackio get a project `bmrl` (`WANDB_MODE=offline` keeps it in `wandb/` of",
        "the run; send it with `wandb sync --append`, as a resumed run is more than one folder there). They",
        "are told the numbers, the name of the run folder and the recipe without paths and secrets. One",
        "that fails costs a line of warning, never the run.",
        "",
        "This page is made from `bmrl/glossary.py`.",
        "",
        "| key | unit | meaning | good | worry when |",
        "|---|---|---|---|---|",
    ]
    for key, entry in GLOSSARY.items():
        lines.append(f"| `{key}` | {entry.unit} | {entry.meaning} | {entry.good} | {entry.bad} |")
    return "\n".join(lines) + "\n"
