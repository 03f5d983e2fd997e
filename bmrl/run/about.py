"""What a model card tells of a run, from the files of the run alone."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bmrl import checkpoint as checkpoints
from bmrl import evaluations, run_folder
from bmrl.chat import _TODAY, Chat, opening_text, rules
from bmrl.episodes import read_episodes
from bmrl.export.card import About, Talk
from bmrl.export.gap import Gap
from bmrl.metrics import MetricsFile
from bmrl.models import find
from bmrl.recipe import Recipe, resolved
from bmrl.redact import redacted
from bmrl.report.read import Source
from bmrl.target import Target

# Where the run holds no episode to show.
_EXAMPLE = (("(first observation)", "(command)"), ("(the environment's answer)", ""))


def stored_turns(run: Path, step: int) -> list[list[dict[str, Any]]]:
    """Turns of episodes of the run: of an evaluation of this step, else of the training up to it.

    Raises:
        BmrlError: a line is damaged.
    """
    name = f"step-{step:06d}"
    evaluated = [path for path in sorted((run / "eval").glob(f"*{name}*.jsonl")) if path.with_suffix(".json").is_file()]
    trained = [path for path in (run / "episodes").glob("step-*.jsonl") if path.stem <= name]
    for path in (*evaluated, *sorted(trained, reverse=True)):
        if turns := [episode["turns"] for episode in read_episodes(path) if episode["turns"]]:
            return turns
    return []


def talk(recipe: Recipe, chat: Chat, turns: Sequence[Sequence[Mapping[str, Any]]]) -> Talk:
    """How a policy is spoken to, with an example from these episodes if there is one."""
    from bmrl.envs import instructions

    told = rules(think=recipe.chat.think, system=recipe.chat.system, instructions=instructions(recipe.env.name))
    one = max(turns, key=lambda one: bool(one[0]["action"]), default=[])
    played = [(turn["observation"], turn["action"] or "look") for turn in one]
    (seen, action), (then, _) = (*played, *_EXAMPLE)[:2] if len(played) > 1 else _EXAMPLE
    first = seen if chat.plain else opening_text(told, seen)
    said = action if chat.plain else f"<action>{action}</action>"
    messages = [
        {"role": role, "content": text} for role, text in (("user", first), ("assistant", said), ("user", then))
    ]
    template = str(chat.tokenizer.chat_template)
    arguments: dict[str, Any] = {"enable_thinking": recipe.chat.think} if "enable_thinking" in template else {}
    code = "".join(f", {key}={value}" for key, value in arguments.items())
    if "strftime_now" in template:
        arguments["strftime_now"] = _TODAY.strftime
        code += f", strftime_now=date({_TODAY.year}, {_TODAY.month}, {_TODAY.day}).strftime"
    ids = [*chat.opening(seen), *chat.answer(action), *chat.following(then, stopped=True)]
    rendered = chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True, **arguments)["input_ids"]
    decode = chat.speech.decode
    texts = [(decode(frame.head) + frame.lead, frame.trail + decode(frame.tail)) for frame in (chat.first, chat.later)]
    pieces = dict(zip(("head", "tail", "between", "tail_next"), (*texts[0], *texts[1]), strict=True))
    return Talk(
        first=first,
        rendered=decode(tuple(ids)),
        pieces=None if rendered == ids else pieces,
        arguments=code,
        plain=chat.plain,
        stop=str(chat.tokenizer.convert_ids_to_tokens(chat.close[-1])),
        turn_tokens=recipe.rollout.turn_tokens,
        temperature=recipe.rollout.temperature,
    )


def about_run(
    target: Target, checkpoint: Path, *, base: str | None, dtype: str, best: bool, talk: Talk, measured: Gap | None
) -> About:
    """All that a card tells of a checkpoint of a run; arguments as ``card.About`` has them.

    Raises:
        BmrlError: files of the run are damaged.
    """
    assert target.folder is not None
    run, recipe, step = target.folder, target.recipe, int(checkpoint.name.removeprefix("step-"))
    system = run_folder.load_system(run)
    metrics = [one for one in MetricsFile(run / "metrics.jsonl").read() if (one["step"] or 0) <= step]
    source = Source(run, target.name, _public(recipe), system, [], [], metrics, None)
    hashes = {f"`{run_folder.RESOLVED}` of the run": sha256(run / run_folder.RESOLVED)}
    what = "trained weights" if base is None else "adapter"
    hashes[f"the {what} of the run's {checkpoint.name}"] = sha256(checkpoint / checkpoints.ADAPTER)
    hashes |= {f"the games of {split}": str(digest) for split, digest in (system.get("games") or {}).items()}
    return About(
        source=source,
        step=step,
        base=base,
        base_code=_base_code(recipe.model.name),
        dtype=dtype,
        best=best,
        talk=talk,
        curves=_curves(run, step),
        gap=measured,
        hashes=hashes,
    )


def _curves(run: Path, step: int) -> list[tuple[evaluations.Evaluation, evaluations.Evaluation | None]]:
    """The run's evaluations of a step, the longest curve first, each with one of before training made alike."""
    known = evaluations.of_run(run)
    starts = [one for one in known if one.step == 0 and step]

    def start(after: evaluations.Evaluation) -> evaluations.Evaluation | None:
        return next((one for one in starts if _alike(one, after)), None)

    found = sorted((one for one in known if one.step == step), key=lambda one: len(one.budgets), reverse=True)
    return [(one, start(one)) for one in found]


def _alike(before: evaluations.Evaluation, after: evaluations.Evaluation) -> bool:
    """Whether every point of one curve may stand beside a point of the other."""
    keys = ("split_hash", "sampling", "announce", "tasks", "seeds")
    return set(after.budgets) <= set(before.budgets) and all(before.head[key] == after.head[key] for key in keys)


def _public(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain data, without folders of this machine."""
    plain: dict[str, Any] = redacted(resolved(recipe))
    for key in ("name", "adapter"):
        if (value := plain["model"][key]) is not None:
            plain["model"][key] = shown(value)
    return plain


def settings(recipe: Recipe, *, dtype: str | None) -> dict[str, Any]:
    """With what `bmrl eval` is to play the export: the public recipe, as a program can use it.

    Args:
        dtype: of merged weights, which are not quantized; None for an adapter.
    """
    plain, whole = _public(recipe), resolved(recipe)
    # A folder of this machine is no argument elsewhere.
    plain["env"]["args"] = {
        key: value for key, value in plain["env"]["args"].items() if value == whole["env"]["args"][key]
    }
    if dtype is not None:
        plain["model"] |= {"quantization": "none"} | ({"dtype": dtype} if dtype == "float32" else {})
    return plain


def shown(name: str) -> str:
    """A model's name; of a file or folder its last part."""
    return Path(name).name if find(name).kind in ("folder", "gguf") else name


def _base_code(name: str) -> tuple[str, str]:
    """How Python gets the base model: imports, and what ``from_pretrained`` is given."""
    match find(name).kind:
        case "pocket":
            return "from bmrl.files import data_path", 'data_path("pocket")'
        case "gguf" | "package":
            imports = "from bmrl.models import find\nfrom bmrl.policy.gguf import plain_folder"
            return imports, f"plain_folder(find({json.dumps(shown(name))}))"
        case _:
            return "", json.dumps(shown(name))


def sha256(path: Path) -> str:
    """Of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
