"""`bmrl export`."""

import json
from pathlib import Path
from typing import Any

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import CHECKPOINT, JSON
from bmrl.errors import UsageError


@click.command(cls=Command, epilog="Example: bmrl export runs/quickstart --out quickstart")
@click.argument("run_name", metavar="[RUN]", required=False)
@CHECKPOINT
@click.option(
    "--format",
    "forms",
    type=click.Choice(["adapter", "merged", "gguf"]),
    multiple=True,
    help="Repeatable; adapter and merged by default.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Type of merged weights. float32 takes twice the space, and rounds nothing away.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to make; exports/<run>-<checkpoint> by default.",
)
@click.option(
    "--llama-cpp",
    metavar="DIR",
    help="Folder of llama.cpp's sources, for --format gguf; $LLAMA_CPP, the PATH or unsloth by default.",
)
@JSON
def export(run_name: str | None, checkpoint: str, as_json: bool, **options: Any) -> None:
    """Write the policy of a run for other programs, with a model card.

    RUN is a run folder or a checkpoint in it, the newest run by default. `adapter` is for PEFT,
    `merged` for transformers and what reads its format, `gguf` for llama.cpp. See docs/export.md.
    """
    from bmrl import run_folder
    from bmrl import target as targets

    if run_name is None:
        newest = run_folder.newest(Path("runs"))
        if newest is None:
            raise UsageError("no run in runs/ to export; train one with: bmrl train recipes/quickstart.yaml")
        run_name = str(newest)
    found = targets.find(run_name, checkpoint)
    if found.kind != "run":
        raise UsageError(f"{run_name} is no run; name a run folder, usually in runs/")

    from bmrl import run  # imports torch: only now that the run is known to be one

    result = run.export(found, **options, best=checkpoint == "best")
    click.echo(json.dumps(result) if as_json else _told(result))


def _told(result: dict[str, Any]) -> str:
    lines = [f"{result['out']}/{form}" for form in result["sha256"]]
    if (gap := result["gap"]) is not None:
        lines.append(
            f"merged against the policy, {gap['tokens']:,} tokens of {gap['episodes']} episodes: log-probabilities "
            f"differ by {gap['mean']:.2g} nats in the mean, {gap['highest']:.2g} at most; likeliest token the same at "
            f"{gap['same_choice']:,}"
        )
    return "\n".join(lines)
