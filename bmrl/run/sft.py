"""Supervised learning as a run: demonstrations, steps, checkpoints, the finished adapter or model."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from bmrl import run_folder
from bmrl.budgets import draw
from bmrl.chat import Chat, make_chat
from bmrl.check import refuse_missing
from bmrl.demonstrations import from_file, from_run
from bmrl.envs import demonstrations, instructions
from bmrl.envs.base import Shown
from bmrl.errors import Interrupted, UsageError
from bmrl.metrics import MetricsFile
from bmrl.optimizer import learning_rate, make_optimizer, set_learning_rate
from bmrl.pocket import build_tokenizer
from bmrl.policy import Policy, new_model, save_model, seeded
from bmrl.recipe import Recipe, resolved
from bmrl.run.compose import refuse_card, say, starting_policy, tell_of_another_world
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.run.train import open_run, peak_memory_gb, restore, save, save_adapter, stopped
from bmrl.seeds import python_stream, stream
from bmrl.sft import Example, batches, example, sft_step
from bmrl.system import return_large_blocks
from bmrl.trackers import Trackers

# Checkpoints of a supervised run: every so many steps, and how many stay.
CHECKPOINT_EVERY, KEEP = 50, 2
WORDS = 600  # most words in the vocabulary of a new model


def sft(recipe: Recipe, *, source: Path, run_dir: Path | None, resume: bool) -> Path:
    """Trains on demonstrations; returns the run folder. Arguments and errors as in ``train``."""
    if recipe.sft is None:
        raise UsageError("the recipe has no `sft` section; a reinforcement learning one runs with: bmrl train RECIPE")
    refuse_missing(recipe)
    refuse_card(recipe)
    return_large_blocks()
    if resume:
        run_dir = run_folder.to_resume(Path("runs"), resolved(recipe), run_dir)
    with interruptible() as poll:
        shown = _shown(recipe, poll)
        policy = _policy(recipe, shown, run_dir if resume else None)
        chat = make_chat(
            policy.tokenizer,
            think=recipe.chat.think,
            system=recipe.chat.system,
            instructions=instructions(recipe.env.name),
        )
        rows = _examples(recipe, shown, chat)
        folder = open_run(recipe, source=source, run_dir=run_dir, resume=resume, backend=policy.backend)
        with run_folder.lock(folder):
            _loop(recipe, folder, policy, rows, poll)
            if recipe.lora is None:
                save_model(policy, folder / "model", dtype=recipe.model.dtype)
            else:
                save_adapter(folder)
    return folder


def _shown(recipe: Recipe, poll: Callable[[], None]) -> list[list[Shown]]:
    """The demonstrations, from where the recipe says."""
    assert recipe.sft is not None
    sft = recipe.sft
    if sft.path is None:
        say(f"{sft.episodes} demonstrations by the expert")
        shown = demonstrations(
            recipe.env.name,
            count=sft.episodes,
            seed=recipe.seed,
            noise=sft.noise,
            max_turns=sft.max_turns,
            args=recipe.env.args,
            poll=poll,
        )
        return [list(turns) for turns in shown]
    if sft.source == "run":
        found = from_run(Path(sft.path), env=recipe.env.name, most=sft.episodes, seed=recipe.seed)
    else:
        found = from_file(Path(sft.path), most=sft.episodes)
    say(f"{len(found)} demonstrations from {sft.path}")
    return [turns[: sft.max_turns] for turns in found]


def _policy(recipe: Recipe, shown: Sequence[Sequence[Shown]], folder: Path | None) -> Policy:
    new = recipe.model.new
    if new is None:
        policy = starting_policy(recipe, folder)
        tell_of_another_world(recipe, policy)
        return policy
    texts = (text for turns in shown for turn in turns for text in (turn.observation, f" {turn.action}", turn.action))
    announced = ["\nTurns left: 1.\nTurn left: 1.\nYou have 1 turns.\nYou have 1 turn."] * 1000
    if (wording := recipe.budget.wording) is not None:  # its words need a place in the vocabulary, too
        announced += ["\n" + wording.replace("{turns}", "1")] * 1000
    tokenizer = build_tokenizer(
        (*texts, *announced), words=WORDS, context_tokens=recipe.model.context_tokens, world=recipe.env.name
    )
    return new_model(
        tokenizer,
        layers=new.layers,
        hidden=new.hidden,
        heads=new.heads,
        kv_heads=new.kv_heads,
        intermediate=new.intermediate,
        context_tokens=recipe.model.context_tokens,
        seed=int(stream(recipe.seed, "weights").integers(2**31)),
        name=recipe.model.name,
    )


def _examples(recipe: Recipe, shown: Sequence[Sequence[Shown]], chat: Chat) -> list[Example]:
    """Demonstrations as rows; each is told a budget of the training distribution in one of the recipe's forms."""
    assert recipe.sft is not None
    rows = []
    for index, turns in enumerate(shown):
        rng = python_stream(recipe.seed, "announce", index)
        announce = rng.choice(recipe.sft.announce)
        # One that is told its budget ends there; one that is told nothing is shown whole. Budgets that suffice are
        # preferred: a demonstration that is cut off shows little of what follows the search.
        drawn = [draw(recipe.budget.train, rng) for _ in range(8)] if announce != "none" else [len(turns)]
        budget = next((turn for turn in drawn if turn >= len(turns)), drawn[0])
        rows.append(
            example(
                turns,
                chat,
                announce=announce,
                wording=recipe.budget.wording,
                budget=budget,
                observation_weight=recipe.sft.observation_weight,
                context_tokens=recipe.model.context_tokens,
            )
        )
    return [row for row in rows if any(row.weights)]


def _loop(recipe: Recipe, folder: Path, policy: Policy, rows: Sequence[Example], poll: Callable[[], None]) -> None:
    assert recipe.sft is not None
    settings, o = recipe.sft, recipe.optimizer
    plan: list[list[int]] = []
    lengths = [len(row.token_ids) for row in rows]
    epoch = 0
    while epoch < settings.epochs:
        order = batches(lengths, batch_tokens=settings.batch_tokens, rng=stream(recipe.seed, "sft", epoch))
        plan += order[: round(len(order) * min(1.0, settings.epochs - epoch))]
        epoch += 1
    if not plan:
        raise UsageError("sft.epochs: so few demonstrations make not one step; raise sft.epochs or sft.episodes")
    names = list(policy.trainable)
    optimizer = make_optimizer(
        o.name,
        policy.trainable.values(),
        learning_rate=o.learning_rate,
        weight_decay=o.weight_decay,
        beta2=o.beta2,
    )
    loop = restore(folder, policy, optimizer, names)
    metrics = MetricsFile(folder / "metrics.jsonl")
    metrics.truncate_after(loop.step)
    trackers = Trackers(recipe.tracking, folder, resolved(recipe), loop.step, say)
    began, saved = time.monotonic() - loop.elapsed_s, loop.step
    say(f"{folder}: {len(rows)} demonstrations, {sum(lengths)} tokens, {len(plan)} steps, on {policy.device}")
    policy.model.train()
    with Progress(len(plan), loop.step).shown() as progress:
        try:
            while loop.step < len(plan):
                poll()
                step = loop.step + 1
                rate = learning_rate(
                    step,
                    peak=o.learning_rate,
                    warmup_steps=o.warmup_steps,
                    schedule=o.schedule,
                    steps=len(plan),
                )
                set_learning_rate(optimizer, rate)
                # The adapter's dropout draws from torch's global generator: seeded by step, a resumed run draws alike.
                with _precision(recipe, policy), seeded(int(stream(recipe.seed, "dropout", step).integers(2**31))):
                    values = sft_step(
                        policy,
                        optimizer,
                        [rows[i] for i in plan[loop.step]],
                        micro_batch_tokens=settings.micro_batch_tokens,
                        max_grad_norm=o.max_grad_norm,
                    )
                loop.step, loop.elapsed_s = step, time.monotonic() - began
                record = {
                    "step": step,
                    **values,
                    "learning_rate": rate,
                    "elapsed_s": loop.elapsed_s,
                    "peak_memory_gb": peak_memory_gb(),
                }
                metrics.append(record)
                trackers.log(record, step)
                if step % 10 == 0 or step == len(plan):
                    progress.step(f"action loss {values['action_loss']:.3f}", step)
                if step % CHECKPOINT_EVERY == 0 or step == len(plan):
                    save(folder, policy, optimizer, names, loop, keep=KEEP)
                    saved = step
        except Interrupted as stop:
            if loop.step > saved:
                save(folder, policy, optimizer, names, loop, keep=KEEP)
            raise stopped(stop, folder, loop) from None
        finally:
            trackers.close()


def _precision(recipe: Recipe, policy: Policy) -> AbstractContextManager[object]:
    """A new model keeps fp32 weights; its dtype is that of the matrix products."""
    if recipe.model.new is None or recipe.model.dtype == "float32":
        return nullcontext()
    return torch.autocast(policy.device.type, dtype=torch.bfloat16)
