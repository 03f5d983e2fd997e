"""The model card: a README that says what an export is, how it came about and how to use it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from bmrl.evaluations import Evaluation
from bmrl.export.gap import Gap
from bmrl.report.charts import percent
from bmrl.report.facts import facts, lead
from bmrl.report.read import Source

ADAPTER, MERGED, GGUF = FORMS = ("adapter", "merged", "gguf")


@dataclass(frozen=True, slots=True)
class Talk:
    """How the policy is spoken to.

    Attributes:
        first: the first message of the user, as the model was trained to get it.
        rendered: the beginning of a conversation as the model reads it.
        pieces: texts before and after the first observation, and before and after a later one, where the chat template
            renders a conversation with other tokens than in training; else None.
        arguments: what the chat template is given beside the messages, as Python.
        plain: the reply is the command itself; otherwise it stands in ``<action>`` tags.
        stop: the token that ends a reply.
        turn_tokens: most tokens of a reply.
        temperature: of sampling in training.
    """

    first: str
    rendered: str
    pieces: Mapping[str, str] | None
    arguments: str
    plain: bool
    stop: str
    turn_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class About:
    """All that a card tells.

    Attributes:
        source: the run up to the exported step, its recipe free of paths.
        step: the training step of the weights.
        base: the model that the adapter belongs to, without its path; None where the whole model was trained.
        base_code: how Python gets it: imports, and what ``from_pretrained`` is given.
        dtype: of merged weights.
        best: the checkpoint was chosen for its curve.
        curves: evaluations of this step, each with one of before training made alike, or None.
        gap: merged weights against the policy; None where it was not measured.
        hashes: name -> SHA-256.
    """

    source: Source
    step: int
    base: str | None
    base_code: tuple[str, str]
    dtype: str
    best: bool
    talk: Talk
    curves: Sequence[tuple[Evaluation, Evaluation | None]]
    gap: Gap | None
    hashes: Mapping[str, str]


def card(about: About, form: str, files: Mapping[str, str]) -> str:
    """The README of one form of an export.

    Args:
        form: ``adapter``, ``merged`` or ``gguf``.
        files: name -> SHA-256 of the files of this form.
    """
    parts = [
        _header(about, form),
        f"# {about.source.name}, step {about.step}",
        lead(about.source),
        _what(about, form),
        "## Load and ask",
        _code(about, form, files),
        "## The conversation",
        *_conversation(about.talk),
        "## Success over budgets",
        *_curves(about),
        "## Training",
        *_training(about),
        "## Hashes",
        _table(("SHA-256", "of"), [(f"`{digest}`", name) for name, digest in {**files, **about.hashes}.items()]),
        "## Limits",
        _limits(about, form),
        "<details><summary>Recipe</summary>",
        f"```yaml\n{yaml.safe_dump(about.source.recipe, sort_keys=False, allow_unicode=True)}```",
        "</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _header(about: About, form: str) -> str:
    library = {ADAPTER: "peft", MERGED: "transformers", GGUF: "gguf"}[form]
    how = "supervised" if about.source.recipe.get("sft") else "reinforcement-learning"
    environment = str((about.source.recipe.get("env") or {}).get("name"))
    head: dict[str, Any] = {} if about.base is None else {"base_model": about.base}
    head |= {"library_name": library, "pipeline_tag": "text-generation", "tags": ["bmrl", "agent", how, environment]}
    if form == ADAPTER:
        head["tags"].append("lora")
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---"


def _what(about: About, form: str) -> str:
    of = f" of `{about.base}`" if about.base else ""
    quantized = (about.source.recipe.get("model") or {}).get("quantization") == "nf4"
    if form == ADAPTER:
        trained = ", on 4-bit weights (NF4)" if quantized else ""
        return f"This folder is the LoRA adapter{of} in PEFT's format, as it was trained{trained}."
    if form == GGUF:
        return f"This folder is a GGUF file, converted from the merged weights{of} ({about.dtype})."
    if about.base is None:
        return f"This folder is the whole model, {about.dtype}, in the format of transformers."
    text = f"This folder is the model{of} with the adapter merged in: {about.dtype}, in the format of transformers."
    return f"{text} {_gap(about, quantized=quantized)}"


def _gap(about: About, *, quantized: bool) -> str:
    why = "Rounding to this type changes it"
    if quantized:
        why = "It was trained on 4-bit weights (NF4) and is merged into the unquantized ones, which are not the same"
    elif about.dtype == "float32":
        why = "Nothing but the last digits of float32 differs"
    if about.gap is None:
        return f"{why}; how far it is from the policy was not measured: the run holds no episode with a command."
    gap = about.gap
    return (
        f"{why}: over {gap.tokens:,} tokens of actions in {gap.episodes} of the run's episodes, log-probabilities "
        f"differ from the policy's by {gap.mean:.2g} nats in the mean and {gap.highest:.2g} at most, and the likeliest "
        f"token is the same at {gap.same_choice:,}."
    )


def _code(about: About, form: str, files: Mapping[str, str]) -> str:
    talk, model = about.talk, about.source.recipe.get("model") or {}
    names, lines, load = ["AutoModelForCausalLM", "AutoTokenizer"], [], list[str]()
    folder = "FOLDER"
    if form == ADAPTER:
        options = f'dtype="{model.get("dtype")}"'
        names.append("GenerationConfig")
        if model.get("quantization") == "nf4":
            names.append("BitsAndBytesConfig")
            options += ", quantization_config=four_bit"
            load += [
                'four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",',
                f'    bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="{model.get("dtype")}")',
            ]
        imports, base = about.base_code
        lines += [*imports.splitlines(), "from peft import PeftModel"]
        load += [
            f"model = AutoModelForCausalLM.from_pretrained({base}, {options})",
            "model.generation_config = GenerationConfig.from_pretrained(FOLDER)",
            "model = PeftModel.from_pretrained(model, FOLDER)",
        ]
    else:
        if form == GGUF:
            folder = f"FOLDER, gguf_file={json.dumps(next(iter(files)))}"
        load.append(f"model = AutoModelForCausalLM.from_pretrained({folder})")
    if "date(" in talk.arguments:
        lines.insert(0, "from datetime import date\n")
    lines += [
        f"from transformers import {', '.join(sorted(names))}",
        "",
        'FOLDER = "."  # this folder, or its name on the hub',
        f"tokenizer = AutoTokenizer.from_pretrained({folder})",
        *load,
        "first = (",
        *(f"    {json.dumps(line, ensure_ascii=False)}" for line in _lines(talk.first)),
        ")",
        'messages = [{"role": "user", "content": first}]',
        "prompt = tokenizer.apply_chat_template(",
        f'    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"{talk.arguments}',
        ")",
        "answer = model.generate(**prompt, do_sample=False)",
        'print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    text = "```python\n" + "\n".join(lines) + "\n```"
    return f"{text}\n\nWith llama.cpp: `llama-cli -m {next(iter(files))} --jinja`." if form == GGUF else text


def _conversation(talk: Talk) -> list[str]:
    reply = "the command and nothing else" if talk.plain else "text that holds `<action>command</action>`"
    first = "the first observation" if talk.plain else "the rules and the first observation"
    again = "The chat template, given the whole conversation each turn, renders exactly the tokens of training."
    pieces = []
    if talk.pieces is not None:
        again = (
            "The chat template renders a conversation with other tokens than in training. For those of training, "
            "keep the text so far, and encode all of it without adding special tokens: `head`, observation, `tail`; "
            "after each reply, its end included, `between`, observation, `tail_next`."
        )
        pieces = [f"```json\n{json.dumps(talk.pieces, indent=1, ensure_ascii=False)}\n```"]
    return [
        f"The user's first message is {first}, every later one the answer of the environment; the model's reply is "
        f"{reply}, ended by `{talk.stop}`, at most {talk.turn_tokens} tokens. {again} In training, replies were "
        f"sampled at temperature {talk.temperature:g} from the whole distribution, as `generation_config.json` says; "
        "`do_sample=False` is greedy.",
        *pieces,
        f"````text\n{talk.rendered}\n````",
    ]


def _curves(about: About) -> list[str]:
    if not about.curves:
        return [f"The run holds no evaluation of this checkpoint; `bmrl eval RUN --checkpoint {about.step}` makes one."]
    parts = []
    for after, before in about.curves:
        head = after.head
        seeds = len(head["seeds"])
        how = f"{head['tasks']} tasks of `{head['split']}`, {seeds} play{'s' if seeds > 1 else ''} of each"
        temperature = (head["sampling"] or {}).get("temperature")
        how += ", greedy" if temperature == 0 else f", sampled at temperature {temperature:g}" if temperature else ""
        how += f"; told of the budget: {head['announce']}; games `{head['split_hash'][:16]}`. Intervals are 95 %."
        was = {row["budget"]: row["success"] for row in before.head["budgets"]} if before else {}
        rows = [
            (
                str(row["budget"]),
                *((percent(was[row["budget"]]),) if before else ()),
                percent(row["success"]),
                f"{percent(row['low'])} to {percent(row['high'])}",
                *(percent(row.get(key)) for key in ("ceiling", "search_reference")),
            )
            for row in head["budgets"]
        ]
        titles = ("budget", *(("before training",) if before else ()), f"step {about.step}")
        parts += [how, _table((*titles, "interval", "ceiling", "search reference"), rows)]
        if not before:
            parts.append("No evaluation of before training, made alike, is stored in the run.")
    if about.best:
        parts.append("This checkpoint was chosen for its curve among others, so its own curve flatters it.")
    parts.append(
        "The ceiling is what a shortest plan with full knowledge solves within the budget; the search reference, what "
        "an exploring expert solves."
    )
    return parts


def _training(about: About) -> list[str]:
    metrics = about.source.metrics
    rows = [("steps", f"{about.step:,}")]
    if metrics and (turns := metrics[-1].get("env_turns")):
        rows.append(("turns played", f"{turns:,.0f}"))
    for title, found in facts(about.source):
        rows += [(f"{title.lower()}: {label}", value) for label, value in found]
    return [_table(("", ""), rows)]


def _limits(about: About, form: str) -> str:
    recipe = about.source.recipe
    env = recipe.get("env") or {}
    lines = [
        f"Trained and measured in `{env.get('name')}` alone. Figures are of the tasks named with them and speak of "
        "tasks like those; nothing was measured elsewhere, and nothing about safety.",
        "Other words around the observations than those above are not what it was trained on.",
        f"Longest conversation in training: {(recipe.get('model') or {}).get('context_tokens')} tokens.",
    ]
    if form == GGUF:
        lines.append("The file was converted by another program, and not compared with the policy.")
    if about.base is not None:
        lines.append(f"The licence is that of `{about.base}`.")
    return "\n".join(f"- {line}" for line in lines)


def _lines(text: str) -> list[str]:
    """The lines of a text, each with its end."""
    return [line for line in re.split(r"(?<=\n)", text) if line] or [""]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', ' ') for cell in line)} |" for line in lines)
