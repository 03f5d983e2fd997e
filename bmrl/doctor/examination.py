"""All of it, in the order in which it is told."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

from bmrl.check import INSTEAD, missing, wants_gpu
from bmrl.doctor.ask import asked
from bmrl.doctor.cards import driver, examine_cards, undisturbed
from bmrl.doctor.finding import Finding, ok, problem
from bmrl.doctor.fit import examine_fit
from bmrl.doctor.libraries import examine_bitsandbytes, examine_hub, examine_unsloth, offline
from bmrl.doctor.machine import examine_games, examine_machine, examine_pocket
from bmrl.doctor.packages import examine_packages
from bmrl.models import find
from bmrl.recipe import Recipe
from bmrl.redact import redacted

OPTIONAL = ("bitsandbytes", "unsloth")  # libraries with a probe, where they are installed


def examine(recipe: Recipe, *, named: bool) -> list[Finding]:
    """What there is to say of this machine, and whether a recipe can run on it. No folders of the user's in it.

    Args:
        named: whether the user asked about this recipe; otherwise it is told of only where it cannot run.
    """
    return [
        replace(found, text=redacted(found.text), remedy=redacted(found.remedy)) for found in _examined(recipe, named)
    ]


def _examined(recipe: Recipe, named: bool) -> Iterator[Finding]:
    installed = [name for name in OPTIONAL if find_spec(name) is not None]
    found = driver()  # before the probes, which hold some of a card themselves
    with asked(["torch", *installed, *([] if offline() else ["hub"])]) as probes:
        yield from examine_machine()
        yield from examine_packages()
        yield from examine_pocket()
        yield from examine_games()
        lacking = missing(recipe)
        torch = undisturbed(probes["torch"].answer(), found)
        bfloat16 = recipe.model.dtype == "bfloat16"
        yield from examine_cards(torch, found, needed=bool(wants_gpu(recipe)), bfloat16=bfloat16)
        if "bitsandbytes" in probes:
            eight_bit = recipe.model.quantization == "nf4" or recipe.optimizer.name != "adamw"
            yield from examine_bitsandbytes(probes["bitsandbytes"].answer(), needed=eight_bit)
        if "unsloth" in probes:
            yield from examine_unsloth(probes["unsloth"].answer(), needed=str(recipe.model.backend) == "unsloth")
        yield from examine_hub(probes["hub"].answer() if "hub" in probes else None, model=_hub_model(recipe))
    for line in lacking:
        yield problem(recipe.name, line, _way_out(line), blocks=True)
    yield from examine_fit(recipe, torch, named=named)
    if named and not lacking:
        yield ok(recipe.name, "has what it asks for")


def _hub_model(recipe: Recipe) -> str | None:
    """The recipe's hub model, where it is on this disk."""
    if recipe.model.new is not None:
        return None
    source = find(recipe.model.name)
    return source.name if source.kind == "hub" and source.path is not None else None


def _way_out(line: str) -> str:
    """What to do, where the line does not say it."""
    return f"run it on a machine with one; what can run here: {INSTEAD}" if line.startswith("no NVIDIA GPU") else ""
