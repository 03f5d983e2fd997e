"""The training loop of a run: resume, step, evaluate, save, stop."""

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bmrl import checkpoint, results, run_folder
from bmrl.atomic import write_bytes
from bmrl.budgets import Moment, largest, learned, probabilities
from bmrl.check import refuse_missing
from bmrl.credit import Credit, Prices
from bmrl.envs import judge
from bmrl.envs.base import Task
from bmrl.envs.pool import Pool
from bmrl.episodes import write_episodes
from bmrl.errors import BmrlError, Interrupted, UsageError
from bmrl.guards import Guards, holding, watch
from bmrl.memory import in_flight
from bmrl.metrics import MetricsFile, evaluation_metrics
from bmrl.optimizer import learning_rate, make_optimizer, set_learning_rate
from bmrl.policy import Policy
from bmrl.process import progress, rules
from bmrl.recipe import Algorithm, Gigpo, Recipe, ReinforcePP, TrainBudget, TrainSection, resolved
from bmrl.run.compose import chat_for, make_player, make_pool, refuse_card, rows_at_once, say, starting_policy
from bmrl.run.evaluate import evaluate_policy, evaluated
from bmrl.run.interrupt import interruptible
from bmrl.run.progress import Progress
from bmrl.system import resident_gb, return_large_blocks
from bmrl.target import best_step
from bmrl.trackers import Trackers
from bmrl.trainer import Player, Refill, Update, observations, plan_step, success_rates, train_step
from bmrl.types import EndReason, Episode, Play


@dataclass(slots=True)
class Loop:
    """State of the loop that a checkpoint carries.

    Attributes:
        rows: episodes that play at once, chosen when the run began; 0 before that.
        groups: groups drawn so far, the place in the order of tasks.
        guards: bad steps in a row, by guard.
        good: step of the newest checkpoint that was saved while no guard counted; 0 if there is none.
        learnability: of each budget, as text, when budgets are adaptive; see ``budgets.learned``.
    """

    step: int = 0
    env_turns: int = 0
    elapsed_s: float = 0.0
    rows: int = 0
    groups: int = 0
    guards: dict[str, int] = field(default_factory=dict)
    good: int = 0
    learnability: dict[str, float] = field(default_factory=dict)


def train(recipe: Recipe, *, source: Path, run_dir: Path | None, resume: bool) -> Path:
    """Trains by reinforcement learning; returns the run folder.

    Args:
        source: the recipe file, copied into the run.
        run_dir: folder of the run; ``runs/<name>`` when None, numbered when taken.
        resume: go on with an interrupted run.

    Raises:
        UsageError: the recipe has no ``train`` section, or is not that of the run.
        BmrlError: the run cannot go on; what has been saved stays.
        Interrupted: Ctrl-C or SIGTERM, after saving.
    """
    if recipe.train is None:
        raise UsageError("the recipe has no `train` section; a supervised one runs with: bmrl sft RECIPE")
    refuse_missing(recipe)
    refuse_card(recipe)
    return_large_blocks()
    if resume:
        run_dir = run_folder.to_resume(Path("runs"), resolved(recipe), run_dir)
    with (
        interruptible() as poll,
        make_pool(recipe, slots=in_flight(recipe)) as pool,
    ):
        tasks = pool.tasks(recipe.env.train_split)
        _refuse_unplanned(recipe, tasks)
        policy = starting_policy(recipe, run_dir if resume else None)
        chat_for(recipe, policy.tokenizer)  # a template that cannot be spoken with leaves no run folder either
        poll()  # who stops it this early wants no run folder
        games = {name: pool.split_hash(name) for name in (recipe.env.train_split, recipe.env.eval_split)}
        for name in games:
            for note in pool.notes(name):
                say(f"{name}: {note}")
        folder = open_run(recipe, source=source, run_dir=run_dir, resume=resume, backend=policy.backend, games=games)
        with run_folder.lock(folder):
            _loop(recipe, folder, policy, pool, tasks, poll)
    return folder


def open_run(
    recipe: Recipe,
    *,
    source: Path,
    run_dir: Path | None,
    resume: bool,
    backend: str,
    games: Mapping[str, str] | None = None,
) -> Path:
    """The folder to work in: a new one, or the interrupted one that the recipe belongs to.

    Args:
        backend: what loaded the model, kept with the run.
        games: split -> hash of what the run plays, which may not change under it.
    """
    if not resume:
        text = source.read_text(encoding="utf-8")
        system = {**run_folder.system_info(), "backend": backend, "games": dict(games or {})}
        return run_folder.create(Path("runs"), text, resolved(recipe), system, run_dir)
    folder = run_folder.to_resume(Path("runs"), resolved(recipe), run_dir)
    run_folder.refuse_other_games(folder, games or {})
    return folder


def _refuse_unplanned(recipe: Recipe, tasks: Sequence[Task]) -> None:
    unplanned = [task.task_id for task in tasks if not task.plan]
    if recipe.budget.train.kind == "relative" and unplanned:
        raise UsageError(
            f"budget.train: relative, but {len(unplanned)} of {len(tasks)} tasks of {recipe.env.train_split} have no "
            f"plan, such as {unplanned[0]}; choose another kind, or games with plans"
        )


def _loop(
    recipe: Recipe, folder: Path, policy: Policy, pool: Pool, tasks: Sequence[Task], poll: Callable[[], None]
) -> None:
    assert recipe.train is not None
    settings = recipe.train
    names = list(policy.trainable)
    optimizer = make_optimizer(
        recipe.optimizer.name,
        policy.trainable.values(),
        learning_rate=recipe.optimizer.learning_rate,
        weight_decay=recipe.optimizer.weight_decay,
        beta2=recipe.optimizer.beta2,
    )
    loop = restore(folder, policy, optimizer, names)
    loop.rows = loop.rows or rows_at_once(recipe, policy)
    # A checkpoint of a version without refills does not tell: each step drew as many.
    loop.groups = loop.groups or loop.step * recipe.rollout.tasks_per_step
    player = make_player(recipe, policy, pool, rows=loop.rows)
    metrics = MetricsFile(folder / "metrics.jsonl")
    metrics.truncate_after(loop.step)
    trackers = Trackers(recipe.tracking, folder, resolved(recipe), loop.step, say)
    update = update_settings(recipe)
    process = process_rewards(recipe)
    guards = Guards(**recipe.guards.model_dump())
    began = time.monotonic() - loop.elapsed_s
    groups = f"{recipe.rollout.tasks_per_step} groups of {recipe.rollout.group_size}"
    say(
        f"{folder}: {settings.steps} steps, {groups}, budgets up to {largest(recipe.budget.train)}, "
        f"{loop.rows} episodes at once, on {policy.device}"
    )
    saved, budget = loop.step, recipe.budget.train
    with Progress(settings.steps, loop.step).shown() as progress:
        try:
            while True:
                if _evaluation_due(settings, loop) and not evaluated(folder, loop.step):
                    answer = _evaluate(recipe, folder, player, loop.step, progress, poll)
                    trackers.log(evaluation_metrics(answer), loop.step)
                if _done(settings, loop):
                    if loop.step < settings.steps:
                        progress.say(
                            f"train.env_turns {settings.env_turns} is reached at step {loop.step}, "
                            f"with {loop.env_turns} turns played; saved"
                        )
                    break
                if settings.max_hours is not None and loop.elapsed_s >= settings.max_hours * 3600:
                    progress.say(
                        f"train.max_hours {settings.max_hours:g} is over at step {loop.step}; saved. "
                        "Go on with a larger --set train.max_hours=H and --resume"
                    )
                    break
                step = loop.step + 1
                rate = _rate(recipe, step)
                set_learning_rate(optimizer, rate)
                plan = partial(
                    plan_step,
                    step,
                    tasks=tasks,
                    split=recipe.env.train_split,
                    seed=recipe.seed,
                    first=loop.groups,
                    group_size=recipe.rollout.group_size,
                    budget=budget,
                    learnability=loop.learnability,
                )
                progress.inner("episodes", recipe.rollout.tasks_per_step * recipe.rollout.group_size)
                episodes, values = train_step(
                    plan(groups=recipe.rollout.tasks_per_step),
                    player,
                    optimizer,
                    update,
                    max_error_share=recipe.env.max_error_share,
                    on_episode=lambda _: progress.advance(),
                    poll=poll,
                    refill=_refill(recipe, plan),
                    success_range=recipe.rollout.success_range,
                    process=process,
                )
                write_episodes(folder, step, episodes)
                loop.step = step
                loop.groups += int(values["groups_played"])
                loop.guards, problem = watch(guards, loop.guards, values)
                loop.env_turns += int(values["step_turns"])
                loop.elapsed_s = time.monotonic() - began
                record = {
                    "step": step,
                    **values,
                    **loop.guards,
                    **_chances(budget, step, loop.learnability),
                    "learning_rate": rate,
                    "env_turns": loop.env_turns,
                    "elapsed_s": loop.elapsed_s,
                    "peak_memory_gb": peak_memory_gb(),
                }
                if budget.kind == "adaptive":
                    rates = success_rates(episodes, recipe.rollout.group_size)
                    loop.learnability = learned(loop.learnability, rates, memory=budget.memory)
                metrics.append(record)
                trackers.log(record, step)
                progress.step(_line(values))
                if problem is not None:
                    raise BmrlError(_given_up(problem, folder, loop))
                hours_over = settings.max_hours is not None and loop.elapsed_s >= settings.max_hours * 3600
                regular = step % settings.checkpoint_every == 0 and not holding(loop.guards)
                if regular or _done(settings, loop) or hours_over:
                    save(folder, policy, optimizer, names, loop, keep=settings.keep_checkpoints)
                    saved = step
        except Interrupted as stop:
            if loop.step > saved:
                save(folder, policy, optimizer, names, loop, keep=settings.keep_checkpoints)
            raise stopped(stop, folder, loop) from None
        finally:
            trackers.close()
    save_adapter(folder)


def stopped(stop: Interrupted, folder: Path, loop: Loop) -> Interrupted:
    """The same, with what was saved and how to go on."""
    state = f"saved after step {loop.step}" if loop.step else "no step is done yet"
    return Interrupted(f"{stop}; {state}. Go on with --resume --run {folder}")


def _given_up(problem: str, folder: Path, loop: Loop) -> str:
    """Why a guard stopped the run, and where it can go on: checkpoints of the time when it counted are gone."""
    if holding(loop.guards):
        checkpoint.forget_after(folder / "checkpoints", loop.good)
    last = max(run_folder.checkpoints(folder / "checkpoints"), default=0)
    place = f"from the checkpoint of step {last}" if last else "from the start, for no checkpoint is good"
    return f"stopped by a guard at step {loop.step}: {problem}. Go on {place} with --resume --run {folder}"


def _refill(recipe: Recipe, plan: Callable[..., list[list[Play]]]) -> Refill | None:
    rollout = recipe.rollout
    if not rollout.dynamic:
        return None
    most = rollout.max_groups or 3 * rollout.tasks_per_step
    return Refill(lambda groups: plan(groups=groups), rollout.tasks_per_step, most)


def update_settings(recipe: Recipe) -> Update:
    """What a recipe says of the update."""
    assert recipe.train is not None
    algorithm = recipe.algorithm
    return Update(
        temperature=recipe.rollout.temperature,
        prices=Prices(recipe.reward.success, recipe.reward.invalid_action, recipe.reward.turn),
        credit=credit_settings(algorithm),
        ratio="sequence" if algorithm.name == "gspo" else "token",
        aggregation=algorithm.aggregation,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        kl_coef=algorithm.kl_coef,
        kl_estimator=algorithm.kl_estimator,
        entropy_coef=algorithm.entropy_coef,
        truncation={EndReason(k): v for k, v in algorithm.truncation.model_dump().items()},
        epochs=recipe.train.epochs_per_step,
        micro_batch_tokens=recipe.train.micro_batch_tokens,
        max_grad_norm=recipe.optimizer.max_grad_norm,
        max_logprob_gap=recipe.rollout.max_logprob_gap,
    )


def process_rewards(recipe: Recipe) -> Callable[[Episode], list[float]] | None:
    """What turns earn by the recipe's process supervision; None without.

    Raises:
        BmrlError: nobody judges the environment's actions.
    """
    weight, budget = recipe.reward.process_weight, recipe.budget
    match recipe.reward.process:
        case "progress":
            return lambda episode: progress([turn.distance for turn in episode.turns], weight=weight)
        case "rules":
            make_judge = judge(recipe.env.name)
            if make_judge is None:
                raise BmrlError(f"reward.process: rules, but nobody judges the actions of {recipe.env.name}; set none")

            def judged(episode: Episode) -> list[float]:
                seen = observations(episode, budget.announce, budget.wording)
                answers = [*seen[1:], episode.final_observation]
                known = make_judge(seen[0]) if seen else None
                pairs = zip(episode.turns, answers, strict=False)  # without a turn there is an answer to none
                return rules([known.judge(turn.action, text) for turn, text in pairs if known], weight=weight)

            return judged
    return None


def credit_settings(algorithm: Algorithm) -> Credit:
    """What a recipe says of advantages."""
    match algorithm:
        case Gigpo():
            return Credit(
                "gigpo", discount=algorithm.discount, step_weight=algorithm.step_weight, scale=algorithm.scale
            )
        case ReinforcePP():
            return Credit(algorithm.name, algorithm.credit, algorithm.discount, baseline=algorithm.baseline)
        case _:
            return Credit(algorithm.name, algorithm.credit, algorithm.discount)


def _rate(recipe: Recipe, step: int) -> float:
    assert recipe.train is not None
    o = recipe.optimizer
    return learning_rate(
        step, peak=o.learning_rate, warmup_steps=o.warmup_steps, schedule=o.schedule, steps=recipe.train.steps
    )


def _chances(budget: TrainBudget, step: int, learnability: Mapping[str, float]) -> dict[str, float]:
    """Probability of each budget in this step, to be logged: only those of adaptive ones change by themselves."""
    if budget.kind != "adaptive":
        return {}
    chances = probabilities(budget, Moment(step, learnability=learnability))
    return {f"budget_chance_{turns}": chance for turns, chance in chances.items()}


def _done(settings: TrainSection, loop: Loop) -> bool:
    """Whether the run has ended, by its steps or by its turns."""
    turns_over = settings.env_turns is not None and loop.env_turns >= settings.env_turns
    return loop.step == settings.steps or turns_over


def _evaluation_due(settings: TrainSection, loop: Loop) -> bool:
    return settings.eval_every > 0 and (loop.step % settings.eval_every == 0 or _done(settings, loop))


def _evaluate(
    recipe: Recipe, folder: Path, player: Player, step: int, progress: Progress, poll: Callable[[], None]
) -> dict[str, Any]:
    """Success over budgets at this step, written to ``eval/step-000100``."""
    assert recipe.train is not None
    episodes, result = evaluate_policy(
        player,
        target=recipe.name,
        checkpoint=f"step-{step:06d}",
        split=recipe.env.eval_split,
        budgets=recipe.budget.eval,
        seeds=[recipe.seed],
        temperature=recipe.rollout.temperature,
        limit=recipe.train.eval_tasks,
        on_start=lambda total: progress.inner("evaluation", total),
        on_episode=lambda _: progress.advance(),
        poll=poll,
    )
    results.write(folder / "eval", f"step-{step:06d}", episodes, result)
    curve = ", ".join(f"{point['success']:.0%} at {point['budget']}" for point in result["budgets"])
    progress.say(f"evaluation of step {step}: {curve}")
    return result


def _line(values: dict[str, float]) -> str:
    return (
        f"success {values['success']:.0%}  turns {values['turns_mean']:.1f}  "
        f"invalid {values['invalid_share']:.0%}  {values['rollout_s'] + values['update_s']:.1f} s"
    )


def restore(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, names: Sequence[str]) -> Loop:
    """Puts the newest checkpoint of the run back; a fresh loop if there is none."""
    checkpoint.clean(folder / "checkpoints")
    latest = checkpoint.latest(folder / "checkpoints")
    if latest is None:
        if run_folder.checkpoints(folder / "checkpoints"):
            raise BmrlError(f"{folder}: every checkpoint is damaged; restore one, or start anew without --resume")
        run_folder.forget_after(folder, 0)
        return Loop()
    found = checkpoint.load(latest)
    policy.load_adapter_tensors(found.adapter)
    checkpoint.restore_optimizer(optimizer, names, found.optimizer)
    run_folder.forget_after(folder, found.step)
    loop = Loop(**found.state)
    loop.good = loop.good if holding(loop.guards) else loop.step
    return loop


def save(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, names: Sequence[str], loop: Loop, *, keep: int
) -> None:
    """A checkpoint of the loop as it stands; older ones than the ``keep`` newest go, but not the best and the good."""
    loop.good = loop.good if holding(loop.guards) else loop.step
    checkpoint.save(
        folder / "checkpoints",
        loop.step,
        adapter=policy.adapter_tensors(),
        adapter_config=policy.adapter_config(),
        optimizer=checkpoint.optimizer_tensors(optimizer, names),
        state=asdict(loop),
    )
    best = best_step(folder, sorted(run_folder.checkpoints(folder / "checkpoints")))
    checkpoint.prune(folder / "checkpoints", keep, spare={loop.good} | ({best} if best is not None else set()))


def save_adapter(folder: Path) -> None:
    """``adapter/`` of the run: that of the newest checkpoint, in plain peft format."""
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        raise BmrlError(f"{folder}: no undamaged checkpoint to take the adapter from; resume the run")
    for name in (checkpoint.ADAPTER, checkpoint.CONFIG):
        write_bytes(folder / name, (newest / name).read_bytes())


def peak_memory_gb() -> float:
    """Highest memory use of this process so far, GiB: of the card if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    # Not getrusage, but where there is nothing else: it begins with the peak of the process that started this one.
    told = resident_gb(peak=True)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 if told is None else told
