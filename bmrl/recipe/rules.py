"""What keys of a recipe must not say together; each key by itself is valid already."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bmrl.recipe.schema import Recipe

Key = tuple[str | int, ...]  # path of a key: names of sections, positions in lists
Problem = tuple[Key, str]  # where, and "problem; hint"

# Thoughts and an action do not fit into fewer tokens; what a small chat model needs is about 256.
THINK_TOKENS = 64


class Contradictions(ValueError):
    """Raised inside the schema; carries every contradiction with its place."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = list(problems)


def contradictions(recipe: "Recipe") -> list[Problem]:
    """All contradictions of the recipe, in the order of the rules."""
    return [problem for rule in RULES for problem in rule(recipe)]


def _kind_of_training(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.train is None and recipe.sft is None:
        yield (
            ("train",),
            ("missing, and so is `sft`; add `train` for reinforcement learning or `sft` for supervised learning"),
        )
    if recipe.train is not None and recipe.sft is not None:
        yield ("sft",), "stands beside `train`; a recipe has one of them, remove the other"


def _what_is_trained(recipe: "Recipe") -> Iterator[Problem]:
    model, lora, reinforcement = recipe.model, recipe.lora, recipe.train is not None
    if reinforcement and recipe.sft is None:
        if model.new is not None:
            yield (
                ("model", "new"),
                "needs `sft`; reinforcement learning starts from trained weights",
            )
        if lora is None:
            yield (
                ("lora",),
                "null needs `sft`; reinforcement learning trains an adapter, e.g. {rank: 16}",
            )
    if reinforcement and lora is not None and lora.dropout > 0:
        yield (
            ("lora", "dropout"),
            (f"{lora.dropout:g} with `train`; set 0, or the update is not on-policy"),
        )
    if lora is None and model.quantization != "none":
        yield (
            ("model", "quantization"),
            (
                f"{model.quantization} with `lora: null`; 4-bit weights cannot be trained, "
                "set quantization: none or give lora a rank"
            ),
        )
    if lora is None and model.adapter is not None:
        yield ("model", "adapter"), "with `lora: null`; give lora the adapter's rank to train it on"
    if recipe.sft is not None and model.new is not None and lora is not None:
        yield ("lora",), "with `model.new`; a new model trains all its weights, write `lora: null`"


def _new_model(recipe: "Recipe") -> Iterator[Problem]:
    model, new = recipe.model, recipe.model.new
    if new is None:
        return
    if model.quantization != "none" and recipe.lora is not None:
        yield ("model", "quantization"), "with `model.new`; a new model has no weights to quantize"
    if model.adapter is not None and recipe.lora is not None:
        yield ("model", "adapter"), "with `model.new`; a new model has no adapter to start from"
    # Rotary positions turn pairs of channels, so a head has an even width.
    if new.hidden % (2 * new.heads):
        yield (
            ("model", "new", "hidden"),
            (
                f"{new.hidden} is not a multiple of twice the {new.heads} heads; "
                f"{-(-new.hidden // (2 * new.heads)) * 2 * new.heads} is"
            ),
        )
    if new.heads % new.kv_heads:
        yield (
            ("model", "new", "kv_heads"),
            (f"{new.kv_heads} does not divide the {new.heads} heads; use a divisor of {new.heads}"),
        )


def _budgets(recipe: "Recipe") -> Iterator[Problem]:
    train = recipe.budget.train
    if train.kind == "mix":
        for turns in _repeated(train.turns):
            yield (
                ("budget", "train", "turns"),
                (f"{turns} is listed twice; list it once and raise its weight"),
            )
        if train.weights is not None and len(train.weights) != len(train.turns):
            yield (
                ("budget", "train", "weights"),
                (f"{len(train.weights)} weights for {len(train.turns)} budgets; give one weight per entry of turns"),
            )
        elif train.weights is not None and sum(train.weights) <= 0:
            yield ("budget", "train", "weights"), "all are 0; give one budget a positive weight"
    if train.kind == "adaptive":
        for turns in _repeated(train.turns):
            yield ("budget", "train", "turns"), f"{turns} is listed twice; list each budget once"
        if train.floor * len(train.turns) > 1:
            yield (
                ("budget", "train", "floor"),
                f"{train.floor:g} for each of {len(train.turns)} budgets is more than 1 in all; lower it",
            )
    if train.kind == "relative":
        for factor in _repeated(train.factors):
            yield ("budget", "train", "factors"), f"{factor:g} is listed twice; list each factor once"
    if recipe.sft is not None and train.kind in ("curriculum", "adaptive", "relative"):
        yield (
            ("budget", "train", "kind"),
            f"{train.kind} with `sft`; demonstrations have no such budgets, use mix, uniform or loguniform",
        )
    if train.kind in ("uniform", "loguniform", "relative") and train.low > train.high:
        yield ("budget", "train", "low"), f"{train.low} is above high {train.high}; swap them"
    for turns in _repeated(recipe.budget.eval):
        yield ("budget", "eval"), f"{turns} is listed twice; list each budget once"


def _credit(recipe: "Recipe") -> Iterator[Problem]:
    algorithm = recipe.algorithm
    if algorithm.name != "gigpo" and algorithm.credit == "episode" and algorithm.discount < 1:
        yield (
            ("algorithm", "discount"),
            f"{algorithm.discount:g} with `credit: episode`, which has one return per "
            "episode; set credit: turn, or discount: 1",
        )


def _demonstrations(recipe: "Recipe") -> Iterator[Problem]:
    sft = recipe.sft
    if sft is None:
        return
    if sft.source == "expert" and sft.path is not None:
        yield ("sft", "path"), "with `source: expert`, who plays anew; set source: run or file, or leave it out"
    if sft.source != "expert" and sft.path is None:
        what = "the run's folder" if sft.source == "run" else "a JSONL file"
        yield ("sft", "source"), f"{sft.source} without a path; add sft.path, {what}"
    if sft.source != "expert" and sft.noise > 0:
        yield ("sft", "noise"), f"{sft.noise:g} with `source: {sft.source}`, where nothing can be forced; set 0"


def _process(recipe: "Recipe") -> Iterator[Problem]:
    algorithm, reward = recipe.algorithm, recipe.reward
    if reward.process == "none":
        if reward.process_weight != type(reward).model_fields["process_weight"].default:
            yield ("reward", "process_weight"), "with `process: none`; set process: progress or rules, or leave it out"
    elif reward.process == "progress" and algorithm.name != "gigpo" and algorithm.credit == "episode":
        yield (
            ("reward", "process"),
            f"progress with `credit: episode` of {algorithm.name}: it adds the same to every episode of a group and "
            "cancels; set algorithm.credit: turn, or algorithm.name: gigpo",
        )


def _wording(recipe: "Recipe") -> Iterator[Problem]:
    wording = recipe.budget.wording
    if wording is None:
        return
    if {recipe.budget.announce, *(recipe.sft.announce if recipe.sft is not None else ())} == {"none"}:
        yield ("budget", "wording"), "with `budget.announce: none`, which tells nothing; set total or remaining"
    if "{turns}" not in wording:
        yield ("budget", "wording"), "does not say the number; write {turns} where it stands"
    elif set("{}") & set(wording.replace("{turns}", "")):
        yield ("budget", "wording"), "has braces other than those of {turns}; remove them"


def _stop(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.train is not None and recipe.train.env_turns is not None and recipe.optimizer.schedule == "linear":
        yield (
            ("optimizer", "schedule"),
            "linear with `train.env_turns`, which may end the run before the decay does; set schedule: constant",
        )


def _lists_without_repeats(recipe: "Recipe") -> Iterator[Problem]:
    for form in _repeated(recipe.sft.announce if recipe.sft is not None else ()):
        yield ("sft", "announce"), f"{form} is listed twice; list each form once"
    for place in _repeated(recipe.tracking):
        yield ("tracking",), f"{place} is listed twice; list each place once"


def _tokens(recipe: "Recipe") -> Iterator[Problem]:
    context, turn = recipe.model.context_tokens, recipe.rollout.turn_tokens
    if turn >= context:
        yield (
            ("rollout", "turn_tokens"),
            (f"{turn} leaves no room in model.context_tokens {context}; raise the latter"),
        )
    if recipe.chat.think and turn < THINK_TOKENS:
        yield ("rollout", "turn_tokens"), f"{turn} is too few with `chat.think: true`; try 256"


def _groups(recipe: "Recipe") -> Iterator[Problem]:
    rollout = recipe.rollout
    if rollout.max_groups is not None and not rollout.dynamic:
        yield ("rollout", "max_groups"), f"{rollout.max_groups} without `dynamic: true`; set that, or remove it"
    elif rollout.max_groups is not None and rollout.max_groups < rollout.tasks_per_step:
        yield (
            ("rollout", "max_groups"),
            f"{rollout.max_groups} is below tasks_per_step {rollout.tasks_per_step}; raise it",
        )
    bounds = rollout.success_range
    if bounds is not None and len(bounds) != 2:
        yield ("rollout", "success_range"), f"{len(bounds)} numbers; write two, [low, high]"
    elif bounds is not None and bounds[0] > bounds[1]:
        low, high = bounds
        yield ("rollout", "success_range"), f"low {low:g} is above high {high:g}; swap them"


def _splits(recipe: "Recipe") -> Iterator[Problem]:
    same = recipe.env.eval_split == recipe.env.train_split
    if same and recipe.train is not None and recipe.train.eval_every > 0:
        yield (
            ("env", "eval_split"),
            (
                f"{recipe.env.eval_split} is also the train_split, so success would be measured on "
                "training tasks; name another split or set train.eval_every to 0"
            ),
        )


def _chat(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.model.name != "pocket":
        return
    if recipe.chat.think:
        yield ("chat", "think"), "with `model.name: pocket`, which writes commands only; set false"
    if recipe.chat.system is not None:
        yield ("chat", "system"), "with `model.name: pocket`, which takes no instructions"


def _repeated(values: Sequence[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


RULES: tuple[Callable[["Recipe"], Iterator[Problem]], ...] = (
    _kind_of_training,
    _what_is_trained,
    _new_model,
    _budgets,
    _credit,
    _demonstrations,
    _process,
    _wording,
    _stop,
    _lists_without_repeats,
    _tokens,
    _groups,
    _splits,
    _chat,
)
