"""`bmrl games`: make games, say which there are, replay their plans, check an environment."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bmrl.cli.clicks import Command, Group, Range
from bmrl.cli.options import JSON
from bmrl.envs.base import Env, Task
from bmrl.envs.replay import plan_fault as replay
from bmrl.errors import BmrlError, UsageError

ENV = click.option("--env", "world", default="alfworld", show_default=True, metavar="NAME", help="Environment.")
SOURCE = click.option(
    "--source",
    metavar="SOURCE",
    help="Where games are: `embedded` (default); for ALFWorld also `official`, `auto`, or a folder of games.",
)
ENGINE = click.option(
    "--engine",
    type=click.Choice(["fast", "textworld"]),
    help="Of ALFWorld: plain Python (default), or its own (needs bmrl[alfworld]).",
)
SPLIT = click.option("--split", "names", multiple=True, metavar="NAME", help="Only this split. Repeatable.")


def _arguments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for (name, equals, rest), value in zip(pairs, values, strict=True):
        if not (name and equals and rest):
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE")
    return {name: rest for name, _, rest in pairs}


ARGS = click.option(
    "--arg", "args", multiple=True, metavar="K=V", callback=_arguments, help="Of the environment. Repeatable."
)

LISTED = 10  # games that are left out, by name


@click.group(cls=Group, epilog="Example: bmrl games info")
def games() -> None:
    """Games: the embedded ones are generated in ALFWorld's format, not ALFWorld's own set."""


def _range(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    low, dash, high = value.partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else not high)):
        raise click.BadParameter(f"{value!r} is no range such as 4-6")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise click.BadParameter(f"{value!r} holds no number of turns")
    return bounds


def _kinds(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from bmrl.envs.alfworld.tables import KINDS

    for value in values:
        if value not in KINDS:
            raise click.BadParameter(f"{value!r} is none of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(values)) or KINDS


@games.command(cls=Command, epilog="Example: bmrl games make --split easy --count 60 --receptacles 5 mygames")
@click.argument("folder", metavar="OUT", required=False, type=click.Path(path_type=Path))
@click.option("--split", metavar="NAME", default="train", show_default=True, help="Name of the split.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", default=120, show_default=True, help="How many games."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Of all draws.")
@click.option("--tasks", "kinds", multiple=True, metavar="KIND", callback=_kinds, help="Only this kind. Repeatable.")
@click.option("--unseen", is_flag=True, help="In the rooms that only valid_unseen uses, instead of all others.")
@click.option("--receptacles", type=click.IntRange(min=1), metavar="N", help="How many places there are to look into.")
@click.option("--closed", type=Range(0, 1), metavar="SHARE", help="Share of them closed at the start, 0 to 1.")
@click.option("--copies", type=click.IntRange(min=1), metavar="N", help="How many there are of the object wanted.")
@click.option("--distractors", type=click.IntRange(min=0), metavar="N", help="How many other objects there are.")
@click.option("--plan", callback=_range, metavar="MIN-MAX", help="Turns of a shortest plan.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["both", "compact", "alfworld"]),
    default="compact",
    show_default=True,
    help="What to write: compact files, ALFWorld's own (needs alfworld installed), or both.",
)
@click.option("--embedded", is_flag=True, help="Make the embedded games again instead, bit for bit.")
def make(folder: Path | None, embedded: bool, form: str, unseen: bool, **options: Any) -> None:
    """Generate games in ALFWorld's format: a split, beside those that OUT has already.

    None of them is an embedded game. The same options give the same games. Train and evaluate on
    them with `--set env.args.source=OUT`.
    """
    from bmrl.envs.alfworld import export, generator, splits

    if folder is None:
        raise UsageError("missing argument 'OUT'; see bmrl games make --help")
    if embedded:
        splits.write_embedded(folder)
        click.echo(folder)
        return
    split, count, seed, kinds = (options.pop(name) for name in ("split", "count", "seed", "kinds"))
    splits.refuse_existing(folder, split)
    if form != "compact":
        export.engine_texts()  # what is not installed is told before anything is made
    records = splits.further_games(
        split,
        count=count,
        seed=seed,
        kinds=kinds,
        rooms=generator.UNSEEN_ROOMS if unseen else generator.TRAIN_ROOMS,
        difficulty=generator.Difficulty(**options),
    )
    if form != "compact":
        export.write_split(records, folder / split)
    if form != "alfworld":
        asked = {name: value for name, value in options.items() if value is not None}
        splits.add_split(folder, split, records, {"seed": seed, "kinds": list(kinds), **asked})
    click.echo(folder)


@games.command(cls=Command, epilog="Example: bmrl games info --json")
@ENV
@ARGS
@SOURCE
@SPLIT
@JSON
def info(names: tuple[str, ...], as_json: bool, **where: Any) -> None:
    """Say which games there are, of which kinds, and how long their shortest plans are."""
    env = _environment(**where)
    found = {name: summary(env, name) for name in _splits(env, names)}
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, split in found.items():
        plan = split["plan"]
        lengths = "unknown" if plan is None else f"{plan['min']} to {plan['max']}, mean {plan['mean']:.1f}"
        click.echo(f"{name}: {split['games']} games, shortest plans {lengths}\n    {split['hash']}")
        for kind, count in split["kinds"].items():
            click.echo(f"    {count:>5}  {kind}")
        for note in split.get("notes", ()):
            click.echo(f"    {note}")
        for reason, ids in split.get("left_out", {}).items():
            for task_id in ids[:LISTED]:
                click.echo(f"        {reason}: {task_id}")
            if ids[LISTED:]:
                click.echo(f"        and {len(ids) - LISTED:,} more; --json lists all")


def summary(env: Env, split: str) -> dict[str, Any]:
    """A split: ``games``, ``hash``, ``kinds`` (counts), ``plan`` (min, mean, max; None if unknown).

    Where the environment tells, also ``notes`` and ``left_out``: ids of games that are not played, by the reason.
    """
    tasks = env.tasks(split)
    lengths = [len(task.plan) for task in tasks]
    known = min(lengths, default=0) > 0
    return {
        "games": len(tasks),
        "hash": env.split_hash(split),
        "kinds": dict(sorted(Counter(task.kind for task in tasks).items())),
        "plan": {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)} if known else None,
        **{name: getattr(env, name)(split) for name in ("notes", "left_out") if hasattr(env, name)},
    }


@games.command(cls=Command, epilog="Example: bmrl games verify --split valid_seen")
@ENV
@ARGS
@SOURCE
@ENGINE
@SPLIT
def verify(names: tuple[str, ...], **where: Any) -> None:
    """Play every stored plan; each must win with its last command and not before."""
    env = _environment(**where)
    odd: list[str] = []
    for name in _splits(env, names):
        tasks = env.tasks(name)
        failures = [f"{name}: {task.task_id}: {fault}" for task in tasks if (fault := replay(env, task)) is not None]
        click.echo(f"{name}: {len(tasks) - len(failures)} of {len(tasks)} games won by their plans")
        odd += failures
    if odd:
        raise BmrlError("\n".join([*odd[:20], *([f"and {len(odd) - 20} more"] if odd[20:] else [])]))


@games.command(cls=Command, epilog="Example: bmrl games check alfworld --arg admissible=true")
@click.argument("name")
@ARGS
@SPLIT
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="Largest budget; a limit of its own below that must be stated.",
)
@JSON
def check(name: str, args: dict[str, str], names: tuple[str, ...], turns: int, as_json: bool) -> None:
    """Check that an environment, bmrl's own or an installed one, keeps the protocol.

    It is played: what it answers, whether it answers the same again, and what it disturbs. Every
    failed check is a line; docs/environments.md says what each asks for.
    """
    from bmrl.envs.checking import check as checked

    found = checked(name, _values(name, args), splits=names, turns=turns)
    problems = [f"{test}: {line}" for test, lines in found.items() for line in lines]
    passed = [test for test, lines in found.items() if not lines]
    if as_json:
        click.echo(json.dumps({"name": name, "passed": passed, "problems": problems}))
    else:
        click.echo(f"{name}: {len(passed)} of {len(found)} checks passed: {', '.join(passed) or 'none'}")
    if problems:
        raise BmrlError("\n".join(problems))


def chosen_task(tasks: Sequence[Task], wanted: str, split: str) -> Task:
    """A task of a split, by its number, counted from 1, or its id."""
    if wanted.isdecimal() and 1 <= int(wanted) <= len(tasks):
        return tasks[int(wanted) - 1]
    for task in tasks:
        if task.task_id == wanted:
            return task
    raise UsageError(f"--task: {split} has no game {wanted}; give a number from 1 to {len(tasks)}, or its task_id")


def _environment(world: str, args: Mapping[str, str], source: str | None = None, engine: str | None = None) -> Any:
    from bmrl.envs import make as made

    return made(world, **environment_arguments(world, args, source, engine))


def environment_arguments(
    world: str,
    args: Mapping[str, str],
    source: str | None = None,
    engine: str | None = None,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What an environment is made with: its own arguments, and those of the command line over them."""
    given = {**(own or {}), **_values(world, args)}
    given |= {name: value for name, value in (("source", source), ("engine", engine)) if value is not None}
    if world == "alfworld":
        given.setdefault("source", "embedded")  # not what $ALFWORLD_DATA happens to name
    return given


def _splits(env: Any, names: Sequence[str]) -> list[str]:
    return list(names) or (env.splits() if hasattr(env, "splits") else ["train"])


def _values(world: str, args: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of the command line, as the environment's types, or as what they look like."""
    from bmrl.envs import environment, parameters
    from bmrl.recipe.load import argument_problems

    known = parameters(environment(world))
    values = {name: _value(text, known.get(name)) for name, text in args.items()}
    if problems := [f"--arg {key[-1]}: {problem}" for key, problem in argument_problems(world, values)]:
        raise UsageError("\n".join(problems))
    return values


def _value(text: str, parameter: Any) -> Any:
    if parameter is not None and parameter.annotation is str:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
