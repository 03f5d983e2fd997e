"""A run of the embedded policy for the tests of its export, made without training; and who plays without bmrl."""

from pathlib import Path
from typing import Any

import tiny
import torch

from bmrl import checkpoint, run_folder
from bmrl.budgets import announcement
from bmrl.envs import make as make_env
from bmrl.evaluate import plan_plays
from bmrl.files import recipes_path
from bmrl.metrics import MetricsFile
from bmrl.policy import Policy
from bmrl.recipe import Recipe, load, resolved
from bmrl.results import write
from bmrl.run.compose import make_player, make_pool, starting_policy
from bmrl.run.evaluate import evaluate_policy, load_policy, play
from bmrl.target import find
from bmrl.types import Episode

SMALL = ["budget.train={kind: fixed, turns: 4}", "budget.eval=[2, 4]", "rollout.temperature=0.5", "train.steps=4"]


def make(base: Path, *overrides: str, steps: tuple[int, ...] = (2, 4), tasks: int = 3) -> Path:
    """A run with checkpoints of these steps, each moved on from the one before, and evaluations of 0 and the last.

    Args:
        tasks: of an evaluation; with one there is none of step 0.
    """
    recipe = load(recipes_path("quickstart.yaml"), [*SMALL, *overrides])
    folder = run_folder.create(base, "", resolved(recipe), {**run_folder.system_info(), "games": {"train": "a" * 64}})
    policy = starting_policy(recipe)
    if tasks > 1:
        evaluated(recipe, policy, folder, 0, tasks)
    metrics = MetricsFile(folder / "metrics.jsonl")
    for step in steps:
        tiny.shake(policy, step, 0.02)
        metrics.append({"step": step, "env_turns": 100 * step, "elapsed_s": 60.0 * step, "action_tokens": 500})
        save(policy, folder, step)
    evaluated(recipe, policy, folder, steps[-1], tasks)
    return folder


def save(policy: Policy, folder: Path, step: int) -> None:
    checkpoint.save(
        folder / "checkpoints",
        step,
        adapter=policy.adapter_tensors(),
        adapter_config=policy.adapter_config(),
        optimizer={},
        state={"step": step},
    )


def evaluated(recipe: Recipe, policy: Policy, folder: Path, step: int, tasks: int) -> None:
    with make_pool(recipe, slots=4) as pool:
        episodes, answer = evaluate_policy(
            make_player(recipe, policy, pool, rows=4),
            target=recipe.name,
            checkpoint=f"step-{step:06d}",
            split="valid_seen",
            budgets=[2, 4],
            seeds=[0],
            temperature=0.5,
            limit=tasks,
            on_start=lambda total: None,
            on_episode=lambda episode: None,
            poll=lambda: None,
        )
    write(folder / "eval", f"step-{step:06d}", episodes, answer)


def greedy(run: Path, *, budget: int, tasks: int) -> list[Episode]:
    """The policy's greedy episodes of the first tasks, played by bmrl."""
    target = find(str(run), "last")
    policy, _ = load_policy(target)
    with make_pool(target.recipe, slots=tasks) as pool:
        plays = plan_plays(pool.tasks("valid_seen")[:tasks], "valid_seen", [budget], [0], "none")
        player = make_player(target.recipe, policy, pool, rows=tasks)
        return play(player, plays, temperature=0, on_episode=lambda episode: None, poll=lambda: None)


def plain_greedy(model: Any, tokenizer: Any, recipe: Recipe, *, budget: int, tasks: int, told: str = "") -> list[Any]:
    """The same games with nothing of bmrl but the games: the transcript is rendered by the chat template, and every
    reply is that of ``generate``, which reads all of it again.

    Args:
        told: what stands before the first observation.

    Returns:
        Of each episode its turns, as (ids read, ids said, command).
    """
    env = make_env(recipe.env.name, **recipe.env.args)
    episodes = []
    for task in env.tasks("valid_seen")[:tasks]:
        observation, messages, turns, won = env.reset(task), [], [], False
        while len(turns) < budget and not won:
            shown = told + observation if not messages else observation
            if announced := announcement(recipe.budget.announce, budget, len(turns)):
                shown += f"\n{announced}"
            messages.append({"role": "user", "content": shown})
            prompt = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
            with torch.inference_mode():
                answer = model.generate(**prompt, do_sample=False)[0, prompt["input_ids"].shape[1] :]
            said = tokenizer.decode(answer, skip_special_tokens=True)
            command = said.strip()
            if "<action>" in said:
                command = said.split("<action>")[1].split("</action>")[0].strip()
            elif told:
                command = ""
            messages.append({"role": "assistant", "content": said})
            turns.append((prompt["input_ids"][0].tolist(), answer.tolist(), command))
            step = env.step(command)
            observation, won = step.observation, step.terminated
        episodes.append(turns)
    env.close()
    return episodes


def as_plain(episode: Episode) -> list[Any]:
    """An episode of bmrl in the form of ``plain_greedy``."""
    read: list[int] = []
    turns = []
    for turn in episode.turns:
        read += turn.observation_ids
        turns.append((list(read), list(turn.action_ids), turn.action))
        read += turn.action_ids
    return turns
