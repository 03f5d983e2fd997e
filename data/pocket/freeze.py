"""Freezes the pocket policy: takes the weights of a finished run, evaluates them, writes the card.

    bmrl sft recipes/pocket_sft.yaml
    python data/pocket/freeze.py runs/pocket_sft valid_seen
    python data/pocket/freeze.py runs/pocket_sft valid_seen valid_unseen

The first is for choosing settings; ``valid_unseen`` is looked at once, for weights that stay.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from bmrl import target
from bmrl.metrics import MetricsFile
from bmrl.run import evaluate

HERE = Path(__file__).parent
BUDGETS, SEEDS = [4, 6, 8, 10, 15, 20, 30, 50], [0, 1, 2, 3]
# What of the recipe the weights follow from.
SETTINGS = ("model", "optimizer", "sft")
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def freeze(run: Path, splits: list[str]) -> dict[str, Any]:
    """Copies the model and measures it; the card's data."""
    for name in (*FILES, "chat_template.jinja"):
        shutil.copyfile(run / "model" / name, HERE / name)
    # The loader compares the weights with the card, so their hash stands there before the evaluation.
    digest = hashlib.sha256((HERE / "model.safetensors").read_bytes()).hexdigest()
    (HERE / "card.json").write_text(json.dumps({"sha256": digest}) + "\n")
    steps = MetricsFile(run / "metrics.jsonl").read()
    last = [step["action_loss"] for step in steps[-50:]]
    system = json.loads((run / "system.json").read_text())
    recipe = json.loads((run / "recipe.resolved.json").read_text())
    curves = [
        evaluate(
            target.find("pocket", "last"),
            budgets=BUDGETS,
            split=split,
            seeds=SEEDS,
            announce="none",
            temperature=1.0,
            tasks=None,
            out=None,
        )
        for split in splits
    ]
    return {
        "recipe": "recipes/pocket_sft.yaml",
        "seed": recipe["seed"],
        "settings": {key: recipe[key] for key in SETTINGS},
        "hardware": f"{system['cpu']}, 1 thread",
        "versions": system["versions"],
        "steps": steps[-1]["step"],
        "tokens": sum(int(step["tokens"] or 0) for step in steps),
        "minutes": round(float(steps[-1]["elapsed_s"] or 0) / 60, 1),
        "action_loss": round(sum(x for x in last if x is not None) / len(last), 4),
        "sha256": digest,
        "curves": curves,
    }


def render(card: dict[str, Any]) -> str:
    """The card as a page."""
    lines = [
        "# The pocket policy",
        "",
        "A Llama-architecture model with a word-level tokenizer (bytes for all other text), trained from nothing on",
        "demonstrations of an expert that explores generated ALFWorld-format games. No game it was trained on is in an",
        "embedded split, and none is in rooms 10, 219, 308, 424. It knows this one world; it is there so that the",
        "whole loop runs on a laptop.",
        "",
        "Loads with `AutoModelForCausalLM` and `AutoTokenizer` of transformers, without bmrl.",
        "",
        "| | |",
        "|---|---|",
        f"| recipe | `{card['recipe']}`, seed {card['seed']} |",
        f"| hardware | {card['hardware']} |",
        f"| training | {card['steps']} steps, {card['tokens']:,} tokens, {card['minutes']} minutes |",
        f"| loss | {card['action_loss']} nats per action token, mean of the last 50 steps |",
        f"| libraries | torch {card['versions']['torch']}, transformers {card['versions']['transformers']} |",
        f"| SHA-256 of `model.safetensors` | `{card['sha256']}` |",
    ]
    for curve in card["curves"]:
        sampling = f"sampled at temperature {curve['sampling']['temperature']:g}, {len(curve['seeds'])} seeds"
        lines += [
            "",
            f"## {curve['split']}",
            "",
            f"{curve['tasks']} tasks, {sampling}; `bmrl eval pocket --split {curve['split']}"
            f"{''.join(f' --seed {seed}' for seed in curve['seeds'])}`. Games: `{curve['split_hash'][:16]}…`",
            "",
            "| budget | success | 95 % interval | ceiling | search reference | context ends |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {p['budget']} | {p['success']:.1%} | {p['low']:.1%} to {p['high']:.1%} | {p['ceiling']:.1%} | "
            f"{p['search_reference']:.1%} | {p['context']:.1%} |"
            for p in curve["budgets"]
        ]
    lines += ["", "Made by `data/pocket/freeze.py` from `card.json`."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        (HERE / "card.json").write_text(json.dumps(freeze(Path(sys.argv[1]), sys.argv[2:]), indent=1) + "\n")
    (HERE / "README.md").write_text(render(json.loads((HERE / "card.json").read_text())))
