"""Run folders for the tests of the report, made without a model."""

import json
from pathlib import Path

from bmrl import run_folder
from bmrl.atomic import write_json, write_text
from bmrl.metrics import MetricsFile

BUDGETS = (4, 8, 30)
RECIPE = {
    "name": "demo",
    "model": {"name": "/home/ann/models/small"},
    "env": {"name": "alfworld", "args": {"source": "embedded"}, "train_split": "train"},
    "budget": {"train": {"kind": "mix", "turns": [4, 8]}},
}
SYSTEM = {"os": "Linux", "cpu": "A Processor", "cores": 2, "memory_gb": 24.0, "gpus": [], "versions": {"torch": "2"}}


def evaluation(step, successes, **other):
    return {
        "target": "demo",
        "checkpoint": None if step is None else f"step-{step:06d}",
        "split": "valid_seen",
        "split_hash": "a hash",
        "sampling": {"temperature": 1.0},
        "seeds": [0],
        "announce": "none",
        "tasks": 120,
        "errors": 0,
        "area": 0.4,
        "budgets": [
            {
                "budget": budget,
                "success": success,
                "low": max(0.0, success - 0.1),
                "high": min(1.0, success + 0.1),
                "ceiling": 0.9,
                "search_reference": None if step is None else 0.8,
            }
            for budget, success in zip(BUDGETS, successes, strict=True)
        ],
        **other,
    }


def episode(task_id, turns, *, step=0, budget=30, reason="budget", split="valid_seen", **other):
    """``turns``: (observation, action) pairs, or whole turns."""
    whole = [
        turn if isinstance(turn, dict) else {"observation": turn[0], "action": turn[1], "valid": True, "reward": 0.0}
        for turn in turns
    ]
    return {
        "step": step,
        "group": 0,
        "episode": 0,
        "task_id": task_id,
        "split": split,
        "seed": 0,
        "budget": budget,
        "end_reason": reason,
        "success": reason == "success",
        "turns": [{"logprob": -0.25, "observation_tokens": 9, "action_tokens": 3, **turn} for turn in whole],
        "final_observation": "the end",
        "error": "",
        **other,
    }


def lines(path, episodes):
    write_text(path, "".join(json.dumps(one) + "\n" for one in episodes))


def make(base: Path, *, steps=10, name="demo") -> Path:
    """A run with three evaluations, ten training steps, and the episodes of two tasks."""
    folder = run_folder.create(base, "", {**RECIPE, "name": name}, SYSTEM)
    for step, successes in ((0, (0.0, 0.2, 0.5)), (5, (0.1, 0.3, 0.6)), (10, (0.1, 0.4, 1.0))):
        write_json(folder / "eval" / f"step-{step:06d}.json", evaluation(step, successes))
        # Before training nothing is solved; afterwards one of two tasks, with its fifth action.
        solved = "success" if step else "budget"
        walk = [(f"place {at}", f"go {at}") for at in range(5)]
        played = [episode("one", walk, reason=solved), episode("two", walk * 6)]
        lines(folder / "eval" / f"step-{step:06d}.jsonl", played)
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        metrics.append(
            {
                "step": step,
                "success": 0.05 * step,
                "success_at_4": 0.02 * step,
                "success_at_8": 0.08 * step,
                "end_success": 0.05 * step,
                "end_budget": 1 - 0.05 * step,
                "turns_mean": 8 - 0.2 * step,
                "env_turns": 100 * step,
                "action_tokens": 300,
                "rollout_s": 2.0,
                "elapsed_s": 3.0 * step,
                "peak_memory_gb": 1.5,
            }
        )
        lines(
            folder / "episodes" / f"step-{step:06d}.jsonl",
            [episode("one", walk[:2], step=step, budget=budget, split="train") for budget in (4, 8)],
        )
    return folder
