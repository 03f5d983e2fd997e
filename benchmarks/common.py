"""What the benchmarks of rollout and update share: options, models, figures on the screen."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from competitors import Competitor
from rich.console import Console
from rich.table import Table

from bmrl.errors import BmrlError
from bmrl.models import find
from bmrl.policy.read import folder
from bmrl.system import system_info


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says.

    Attributes:
        models: names of the models.
        episodes: numbers of episodes, each measured.
        group: episodes of a group.
        least, most: budgets, in turns.
        turn_tokens: most tokens of an action.
        dtype: of a model that is not the pocket policy, which is always float32.
        lora: rank of the adapter.
        checkpointing: whether updates recompute activations.
        micro_batch_tokens: most tokens of a micro-batch, padding included.
        repeats: how often each competitor runs.
        trl, vllm: interpreters of their environments, if there are any.
    """

    models: tuple[str, ...]
    episodes: tuple[int, ...]
    group: int
    least: int
    most: int
    turn_tokens: int
    dtype: str
    lora: int
    checkpointing: bool
    micro_batch_tokens: int
    repeats: int
    seed: int
    trl: str | None
    vllm: str | None

    def play(self, episodes: int) -> dict[str, int]:
        """What to play, as the jobs of ``ours.Ours`` want it."""
        return {"episodes": episodes, "group": self.group, "least": self.least, "most": self.most, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Model:
    """A model to measure with.

    Attributes:
        name: how the results call it.
        family: of its chat template, for `trl_peer`.
        setup: for the competitors' processes.
    """

    name: str
    family: str
    setup: dict[str, Any]

    def competitor(self, name: str, script: str, python: str = sys.executable, **changes: Any) -> Competitor:
        """A process with this model."""
        return Competitor(name, script, {**self.setup, "family": self.family, **changes}, python)


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def options(
    *, episodes: Sequence[int], turns: tuple[int, int], quick_episodes: Sequence[int] = (8,)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command line of a benchmark; the function gets (settings, as_json)."""
    declared = [
        click.option("--model", "models", multiple=True, default=("smollm2", "pocket"), show_default=True),
        click.option("--episodes", type=click.IntRange(min=1), multiple=True, default=episodes, show_default=True),
        click.option("--group", type=click.IntRange(min=1), default=8, show_default=True, help="Episodes of a group."),
        click.option("--turns", type=(int, int), default=turns, show_default=True, help="Least and largest budget."),
        click.option("--turn-tokens", type=click.IntRange(min=2), default=16, show_default=True),
        click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True),
        click.option("--lora", type=click.IntRange(min=0), default=16, show_default=True, help="Rank; 0: none."),
        click.option("--checkpointing/--no-checkpointing", default=True, show_default=True),
        click.option("--micro-batch-tokens", type=click.IntRange(min=1), default=8192, show_default=True),
        click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
        click.option("--trl-python", "trl", help="Interpreter of an environment with TRL."),
        click.option("--vllm-python", "vllm", help="Interpreter of an environment with vLLM."),
        click.option("--quick", is_flag=True, help="Pocket policy, a few short episodes, once: whether it runs."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(quick: bool, as_json: bool, turns: tuple[int, int], **given: Any) -> None:
            settings = Settings(least=turns[0], most=turns[1], **given)
            if quick:
                settings = replace(
                    settings,
                    models=("pocket",),
                    episodes=tuple(quick_episodes),
                    group=4,
                    least=2,
                    most=4,
                    turn_tokens=4,
                    repeats=1,
                )
            try:
                function(settings, as_json)
            except BmrlError as error:
                raise click.ClickException(str(error)) from error

        command.__doc__ = function.__doc__
        for option in reversed(declared):
            command = option(command)
        return click.command()(command)

    return decorate


def models(settings: Settings, missing: list[str]) -> list[Model]:
    """Those of the settings that are there; the others are a line each in ``missing``."""
    found = []
    for name in settings.models:
        try:
            where = str(folder(find("smollm2-135m" if name == "smollm2" else name)))
        except BmrlError as error:
            missing.append(str(error))
            say(missing[-1])
            continue
        small = name == "pocket"
        setup = {
            "model": where,
            "dtype": "float32" if small else settings.dtype,
            "lora": settings.lora,
            "checkpointing": settings.checkpointing,
            "turn_tokens": settings.turn_tokens,
            "context_tokens": 2048 if small else 8192,
            "micro_batch_tokens": settings.micro_batch_tokens,
        }
        found.append(Model(name, "plain" if small else "chatml", setup))
    if not found:
        raise click.ClickException("no model: " + "; ".join(missing))
    return found


def load() -> float | None:
    """Processes that ran or waited to run, mean of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def conduct(
    run: Callable[[Model, int, Settings, list[str]], Mapping[str, Any]],
    settings: Settings,
    keys: Sequence[str],
    shown: Callable[[Any], Table],
    as_json: bool,
    *,
    what: str = "episodes",
) -> None:
    """Runs each model with each number of episodes, or whatever they are called, and prints what came out.

    Args:
        run: of (model, episodes, settings, missing); it adds a line to ``missing`` for whatever was not to be had.
    """
    missing: list[str] = []
    runs = []
    for model in models(settings, missing):
        for episodes in settings.episodes:
            say(f"{model.name}: {episodes} {what}")
            runs.append(run(model, episodes, settings, missing))
    conclude(runs, missing, keys, shown, as_json)


def conclude(
    runs: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
    keys: Sequence[str],
    shown: Callable[[Any], Table],
    as_json: bool,
) -> None:
    """Prints one JSON object; or a table for each run, the headline figures ``keys``, what is missing.

    A headline figure is that of the first run that has it: of the first model, with the fewest episodes.
    """
    headline = {key: next((run[key] for run in runs if run[key] is not None), None) for key in keys}
    missing = list(dict.fromkeys(missing))
    if as_json:
        threads = os.environ.get("OMP_NUM_THREADS")
        system = {**system_info(), "omp_num_threads": threads, "load": load()}
        click.echo(json.dumps({**headline, "runs": runs, "missing": missing, "system": system}))
        return
    console = Console(width=max(120, Console().width))
    for run in runs:
        console.print(shown(run))
    for key, value in headline.items():
        console.print(f"{key}: {number(value)}")
    for line in missing:
        console.print(f"missing: {line}", markup=False)


def table(title: str, *columns: str) -> Table:
    """Names on the left, numbers on the right."""
    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made


def number(value: float | None, digits: int = 3) -> str:
    """For people."""
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def seconds(spread: Mapping[str, float]) -> str:
    """Median, and from least to most."""
    return f"{number(spread['median'])} ({number(spread['least'])} .. {number(spread['most'])})"
