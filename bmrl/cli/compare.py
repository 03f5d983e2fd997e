"""`bmrl compare`."""

import json
from string import ascii_uppercase

import click

from bmrl.cli.clicks import Command
from bmrl.cli.options import JSON
from bmrl.errors import UsageError


@click.command(cls=Command, epilog="Example: bmrl compare runs/quickstart@0 runs/quickstart")
@click.argument("evaluations", metavar="A B [C]...", nargs=-1, required=True)
@click.option(
    "--with",
    "siblings",
    multiple=True,
    metavar="B=EVALUATION",
    help="A further training run of the same recipe, pooled with A, B, … Repeatable.",
)
@JSON
def compare(evaluations: tuple[str, ...], siblings: tuple[str, ...], as_json: bool) -> None:
    """Compare evaluations, paired by task: B minus A at each budget, then C minus A, and so on.

    Each is a file that `bmrl eval` wrote, or a run folder: its newest evaluation that can be compared
    with A's. RUN@STEP takes those of a step (RUN@0: before training), RUN@best of the best one.
    """
    if not 2 <= len(evaluations) <= len(ascii_uppercase):
        raise UsageError("compare two evaluations or more: bmrl compare A B; see bmrl compare --help")
    groups = {letter: [name] for letter, name in zip(ascii_uppercase, evaluations, strict=False)}
    for text in siblings:
        letter, equals, name = text.partition("=")
        if not (equals and name and letter in groups):
            raise UsageError(f"--with: {text!r} is not of the form {'|'.join(groups)}=EVALUATION")
        groups[letter].append(name)

    from bmrl import compare as compares
    from bmrl.evaluations import named

    names = [(letter, place, name) for letter, members in groups.items() for place, name in enumerate(members)]
    chosen = compares.choose([named(name) for _, _, name in names], [place > 0 for _, place, _ in names])
    members = {letter: [one for key, one in zip(names, chosen, strict=True) if key[0] == letter] for letter in groups}
    for found in members.values():
        for sibling in found[1:]:
            compares.refuse_other_recipe(found[0], sibling)
    sides = [compares.load(letter, found) for letter, found in members.items()]
    results = [compares.compare(sides[0], other) for other in sides[1:]]
    if as_json:
        click.echo(json.dumps({**results[0], "others": results[1:]}))
        return
    click.echo("\n\n".join(compares.table(result) for result in results))
