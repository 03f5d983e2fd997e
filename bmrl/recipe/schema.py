"""The schema of a recipe: strict (no value is coerced) and closed (an unknown key is a mistake).

The ``description`` of each field is what the documentation and the error messages print. What two
keys must not say together is in ``rules.py``.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bmrl.recipe.rules import Contradictions, contradictions

# One line per field: the classes read as the table they are.
# fmt: off

# Bounds are far above any use: they are there so that a slip of the keyboard is told and not tried.
Positive = Annotated[int, Field(ge=1, le=10**9)]
NonNegative = Annotated[int, Field(ge=0, le=10**9)]
Turns = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Group = Annotated[int, Field(ge=1, le=4096)]
Announce = Literal["none", "total", "remaining"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class NewModel(Section):
    """A Llama-architecture model to be trained from nothing, with a tokenizer made from the demonstrations."""

    layers: Width = Field(4, description="transformer layers")
    hidden: Width = Field(256, description="width of the residual stream")
    heads: Width = Field(4, description="attention heads")
    kv_heads: Width = Field(2, description="key/value heads (grouped-query attention)")
    intermediate: Width = Field(704, description="width of the feed-forward layer")


class ModelSection(Section):
    name: str = Field("pocket", min_length=1, description="hub id, local model folder, .gguf file, installed package that carries one (`smollm2-135m`), or `pocket`, the embedded policy; a label when `new` is given")
    new: NewModel | None = Field(None, description="sizes of a model trained from nothing (supervised recipes only)")
    backend: Literal["auto", "transformers", "unsloth"] = Field("auto", description="library that loads the model and computes the update; `auto` takes unsloth on a CUDA card where it is installed and knows the model, see backends.md")
    quantization: Literal["none", "nf4"] = Field("none", description="4-bit base weights through bitsandbytes (CUDA or CPU), or none")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="data type of the base weights; float32 on CPU")
    adapter: str | None = Field(None, description="adapter folder or run folder to start from; also the reference of the KL")
    context_tokens: Annotated[int, Field(ge=64, le=2**20)] = Field(8192, description="most tokens of an episode, opening included")
    gradient_checkpointing: bool = Field(True, description="recompute activations in the backward pass: less memory, more time")


class LoraSection(Section):
    rank: Width = Field(32, description="rank of the adapter")
    alpha: Width = Field(64, description="scale; the adapter's output is multiplied by alpha / rank")
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.0, description="dropout on the adapter's input; must be 0 in reinforcement learning, or the update is not of the policy that sampled")
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = Field("all-linear", description="modules that get an adapter")


class EnvSection(Section):
    name: str = Field("alfworld", description="environment")
    args: dict[str, str | int | float | bool | None] = Field(default_factory=dict, description="arguments of the environment, see its page")
    train_split: str = Field("train", description="split that training tasks come from")
    eval_split: str = Field("valid_seen", description="split for the evaluations during training")
    workers: Annotated[int, Field(ge=0, le=256)] = Field(0, description="worker processes that step environments; 0 steps them in the program itself")
    timeout_s: Annotated[float, Field(gt=0)] = Field(30.0, description="longest time for one reset or step in a worker, seconds")
    max_error_share: Share = Field(0.25, description="share of a step's episodes that may end in `timeout` or `env_error` before the run stops")


class FixedBudget(Section):
    kind: Literal["fixed"] = Field(description="every group has the same budget")
    turns: Turns = Field(description="the budget, turns")


class MixBudget(Section):
    kind: Literal["mix"] = Field(description="one of a list")
    turns: list[Turns] = Field(min_length=1, description="the budgets, turns")
    weights: list[Annotated[float, Field(ge=0)]] | None = Field(None, description="relative frequency of each budget; equal when left out")


class UniformBudget(Section):
    kind: Literal["uniform"] = Field(description="any number from low to high, each as often")
    low: Turns = Field(description="smallest budget, turns")
    high: Turns = Field(description="largest budget, turns")


class LogUniformBudget(Section):
    kind: Literal["loguniform"] = Field(description="any number from low to high, small ones more often: each doubling as often")
    low: Turns = Field(description="smallest budget, turns")
    high: Turns = Field(description="largest budget, turns")


class CurriculumBudget(Section):
    kind: Literal["curriculum"] = Field(description="one after the other, by training step")
    turns: list[Turns] = Field(min_length=1, description="the budgets in their order, rising or falling, turns; the last one stays")
    every: Positive = Field(description="training steps before the next budget")


class AdaptiveBudget(Section):
    kind: Literal["adaptive"] = Field(description="one of a list, more often where more groups have both successes and failures")
    turns: list[Turns] = Field(min_length=1, description="the budgets, turns")
    floor: Share = Field(0.05, description="least probability of each budget")
    memory: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="what each group leaves of its budget's smoothed share of such groups")


class RelativeBudget(Section):
    kind: Literal["relative"] = Field(description="a factor times the length of the task's shortest plan, rounded up")
    factors: list[Annotated[float, Field(gt=0, le=1000)]] = Field(min_length=1, description="the factors, each as often")
    low: Turns = Field(description="smallest budget, turns")
    high: Turns = Field(description="largest budget, turns")


TrainBudget = Annotated[FixedBudget | MixBudget | UniformBudget | LogUniformBudget | CurriculumBudget | AdaptiveBudget | RelativeBudget, Field(discriminator="kind")]


class BudgetSection(Section):
    train: TrainBudget = Field(description="distribution the budget of a training group is drawn from")
    eval: list[Turns] = Field([4, 6, 8, 10, 15, 20, 30, 50], min_length=1, description="budgets of an evaluation, turns")
    action_tokens: Positive | None = Field(None, description="most tokens of an episode's actions beside its turns: who has used them up ends `budget`; not for endpoints")
    announce: Announce = Field("none", description="what the agent is told of its budget, each turn")
    wording: str | None = Field(None, min_length=1, description="the line that tells it, in place of the built-in one; `{turns}` stands for the number")


class ChatSection(Section):
    think: bool = Field(False, description="let the agent write its thoughts before the action")
    system: str | None = Field(None, description="instructions in place of the built-in ones; chat models only")


class RolloutSection(Section):
    tasks_per_step: Group = Field(16, description="groups per training step, one task each")
    group_size: Annotated[int, Field(ge=2, le=4096)] = Field(8, description="episodes per group, same task and same budget")
    turn_tokens: Annotated[int, Field(ge=1, le=65_536)] = Field(32, description="most tokens of one turn's action")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="sampling temperature in training")
    kv_cache_gb: Literal["auto"] | Annotated[float, Field(gt=0)] = Field("auto", description="memory for the KV cache of the episodes in flight, GiB; decides how many of `context_tokens` fit, and so play at once. `auto`: what a card has left beside the model and the forwards of the rollout, but no more than the episodes of a step can use, or a quarter of the machine's memory; chosen once for a run, see memory.md")
    cuda_graphs: bool = Field(True, description="decode in captured CUDA graphs, in fixed shapes; where a model cannot be captured, decoding goes on without. On a CPU it changes nothing")
    max_logprob_gap: Annotated[float, Field(gt=0)] = Field(0.05, description="mean difference between the sampler's and the update's log-probabilities above which a step is skipped and `guards.gap_steps` counts, nats")
    dynamic: bool = Field(False, description="refill groups without a signal (equal rewards) by groups of the next tasks, until `tasks_per_step` have one or `max_groups` were played (DAPO, arXiv:2503.14476); only groups with one are trained on")
    max_groups: Positive | None = Field(None, description="most groups played in a step, with `dynamic`; null: 3 x tasks_per_step")
    success_range: Annotated[list[Share], Field(min_length=1)] | None = Field(None, description="train only on groups whose share of solved episodes lies within, bounds included: [low, high]; with `dynamic` the others are refilled; null: on all")


class GuardsSection(Section):
    nonfinite_steps: Positive | None = Field(3, description="steps in a row with a loss or gradient that is not finite after which the run stops; each is skipped. null: skipped, but never a stop")
    gap_steps: Positive | None = Field(1, description="steps in a row above `rollout.max_logprob_gap` after which the run stops; each is skipped. null: skipped, but never a stop")
    min_entropy: Annotated[float, Field(gt=0)] | None = Field(0.005, description="entropy below which a step counts as collapsed, nats; null: none does")
    max_repeat_share: Share | None = Field(0.95, description="share of turns whose text is that of the turn before, of those that have one, above which a step counts as collapsed; null: none does")
    max_invalid_share: Share | None = Field(0.98, description="share of refused actions above which a step counts as collapsed; null: none does")
    patience: Positive = Field(5, description="collapsed steps in a row, by the same measure, after which the run stops")
    dead_steps: Positive | None = Field(20, description="steps in a row in which no group had a signal after which the run stops; null: never")


class RewardSection(Section):
    success: float = Field(1.0, description="reward of a solved task")
    invalid_action: float = Field(0.0, description="reward of each action the environment refuses")
    turn: float = Field(0.0, description="reward of each turn used")
    process: Literal["none", "progress", "rules"] = Field("none", description="process supervision: none, `progress` (shaping by the planner's distance to the goal), or `rules` (an action that has an effect after one that failed earns, a place searched again costs)")
    process_weight: Annotated[float, Field(gt=0)] = Field(0.1, description="with `progress`: reward per turn of distance; with `rules`: reward of each")


Truncation = Literal["train", "mask", "drop"]


class TruncationSection(Section):
    budget: Truncation = Field("train", description="episodes that used up their budget: `train` on them as failures, `mask` (in the baseline, no gradient), or `drop` (neither)")
    context: Truncation = Field("mask", description="episodes that ran out of context")
    failure: Truncation = Field("train", description="episodes the environment called lost")


class _Update(Section):
    aggregation: Literal["token", "episode", "constant"] = Field("constant", description="how token losses add up: mean over all tokens, mean of episode means, or sum over a constant")
    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="the ratio is clipped below 1 - clip_low")
    clip_high: Annotated[float, Field(gt=0)] = Field(0.28, description="the ratio is clipped above 1 + clip_high")
    kl_coef: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the KL to the reference")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the KL: k1 and k2 with the gradient of KL(policy, reference), k3 with that of KL(reference, policy)")
    entropy_coef: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of a bonus for the entropy of the policy at the sampled tokens")
    truncation: TruncationSection = Field(default_factory=TruncationSection, description="what is learned from episodes that were cut off")


class _Credited(_Update):
    credit: Literal["episode", "turn"] = Field("episode", description="`episode`: all turns of an episode share its advantage; `turn`: each has that of the rewards from it on")
    discount: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="of later rewards, per turn; below 1 with `credit: turn` only")


class Grpo(_Credited):
    name: Literal["grpo"] = Field(description="reward minus the group's mean, over the group's standard deviation")


class DrGrpo(_Credited):
    name: Literal["dr_grpo"] = Field(description="reward minus the group's mean")


class Rloo(_Credited):
    name: Literal["rloo"] = Field(description="reward minus the mean of the group's other episodes")


class ReinforcePP(_Credited):
    name: Literal["reinforce_pp"] = Field(description="reward minus a mean, over the standard deviation of the step's episodes")
    baseline: Literal["group", "batch"] = Field("group", description="whose mean: of the episode's group, or of all of the step")


class Gspo(_Credited):
    name: Literal["gspo"] = Field(description="advantages of grpo; ratio and clipping of whole episodes")
    aggregation: Literal["token", "episode", "constant"] = Field("episode", description="how token losses add up: mean over all tokens, mean of episode means, or sum over a constant")
    clip_low: Annotated[float, Field(gt=0, lt=1)] = Field(3e-4, description="the episode's ratio, a mean over its tokens, is clipped below 1 - clip_low")
    clip_high: Annotated[float, Field(gt=0)] = Field(4e-4, description="the episode's ratio is clipped above 1 + clip_high")


class Gigpo(_Update):
    name: Literal["gigpo"] = Field(description="advantage of the episode in its group, plus that of each turn among those of the group that saw the same observation")
    discount: Annotated[float, Field(gt=0, le=1)] = Field(0.95, description="of later rewards, per turn, in the advantage of a turn")
    step_weight: Annotated[float, Field(ge=0)] = Field(1.0, description="weight of the advantage of a turn beside that of its episode")
    scale: bool = Field(False, description="divide both advantages by their standard deviations, over episodes")


Algorithm = Grpo | DrGrpo | Rloo | ReinforcePP | Gspo | Gigpo


class OptimizerSection(Section):
    name: Literal["adamw", "adamw8bit", "paged_adamw8bit"] = Field("adamw", description="AdamW, its 8-bit form, or that with a state that moves to the computer's memory when the card is full (CUDA); both through bitsandbytes")
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(1e-5, description="peak learning rate")
    warmup_steps: NonNegative = Field(0, description="steps over which the learning rate rises linearly from 0")
    schedule: Literal["constant", "linear"] = Field("constant", description="after the warm-up: constant, or linear decay to 0 at the last step")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="the gradient is scaled down to this norm")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="decoupled weight decay")
    beta2: Annotated[float, Field(gt=0, lt=1)] = Field(0.999, description="decay of AdamW's second moment")


class TrainSection(Section):
    steps: Positive = Field(description="training steps")
    env_turns: Positive | None = Field(None, description="stop after the step that reaches so many turns played in all, if `steps` does not come first: holds the cost in interactions equal between budgets")
    max_hours: Annotated[float, Field(gt=0)] | None = Field(None, description="stop after a saved checkpoint once this much time has gone, all resumes together")
    epochs_per_step: Positive = Field(1, description="optimizer steps on the same episodes")
    micro_batch_tokens: Annotated[int, Field(ge=1)] = Field(8192, description="most tokens of episodes in one forward, a longer one goes alone; time and memory only, never the gradient")
    eval_every: NonNegative = Field(0, description="evaluate every so many steps; 0 never")
    eval_tasks: Positive | None = Field(None, description="evaluate on the first so many tasks of the split; all when left out")
    checkpoint_every: Positive = Field(10, description="save a checkpoint every so many steps; the last step is always saved")
    keep_checkpoints: Positive = Field(3, description="how many checkpoints stay on disk; the best evaluated one stays, too")


class SftSection(Section):
    source: Literal["expert", "run", "file"] = Field("expert", description="where the demonstrations come from: the environment's expert, a run's own successful training episodes, or a file of chats")
    path: Annotated[str, Field(min_length=1)] | None = Field(None, description="with `run` its folder; with `file` JSON lines of `{messages: [{role: user, content: …}, {role: assistant, content: …}, …]}`")
    episodes: Annotated[int, Field(ge=1, le=10_000_000)] = Field(description="number of demonstrations; of a run or a file, at most so many")
    epochs: Annotated[float, Field(gt=0, le=10_000)] = Field(1.0, description="passes over them")
    noise: Share = Field(0.0, description="probability that a random action is forced before the expert's; shown, not imitated")
    max_turns: Turns = Field(50, description="longest demonstration, turns")
    batch_tokens: Positive = Field(8192, description="tokens per optimizer step")
    micro_batch_tokens: Positive = Field(8192, description="most tokens of demonstrations in one forward, a longer one goes alone; time and memory only, never the gradient")
    observation_weight: Annotated[float, Field(ge=0)] = Field(0.0, description="weight of the loss on observations, beside 1 for actions")
    announce: list[Announce] = Field(["none"], min_length=1, description="forms in which budgets are announced, drawn per demonstration")


class Recipe(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = Field(description="name of the experiment and of its run folder")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="every random draw follows from it")
    model: ModelSection = Field(default_factory=ModelSection, description="the policy: weights, precision, where to start")
    lora: LoraSection | None = Field(default_factory=LoraSection, description="adapter; null trains all weights (supervised recipes only)")
    env: EnvSection = Field(default_factory=EnvSection, description="the environment and its splits")
    budget: BudgetSection = Field(description="how many turns an episode may use")
    chat: ChatSection = Field(default_factory=ChatSection, description="what the agent is asked to write")
    rollout: RolloutSection = Field(default_factory=RolloutSection, description="how episodes are played in training")
    guards: GuardsSection = Field(default_factory=GuardsSection, description="when a step is skipped and a run stops by itself, see guards.md")
    reward: RewardSection = Field(default_factory=RewardSection, description="what an episode is worth; success is reported as it is")
    algorithm: Annotated[Algorithm, Field(discriminator="name")] = Field(default_factory=lambda: Rloo(name="rloo"), description="advantages and loss of the update; `rloo` when the section is left out")
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection, description="the optimizer")
    train: TrainSection | None = Field(None, description="reinforcement learning; a recipe has either this or `sft`")
    sft: SftSection | None = Field(None, description="supervised learning from demonstrations")
    tracking: list[Literal["jsonl", "tensorboard", "wandb", "trackio"]] = Field(["jsonl"], description="where metrics go beside `metrics.jsonl`, which is always written; each but `jsonl` needs the extra of its name, e.g. `bmrl[wandb]`")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = contradictions(self)
        if problems:
            raise Contradictions(problems)
        return self


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe with every default filled in, as plain JSON data."""
    return recipe.model_dump(mode="json")
