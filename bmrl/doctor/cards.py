"""NVIDIA cards: what the driver says of them, and what torch makes of it."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bmrl.doctor.finding import Finding, note, ok, problem
from bmrl.doctor.packages import range_of

# Oldest Linux driver for each major version of CUDA: the table of minor version compatibility in NVIDIA's CUDA
# Compatibility guide.
DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
BUILDS = ((11, 8), (12, 1), (12, 4), (12, 6), (12, 8), (13, 0))  # versions of CUDA that torch has been built for
BFLOAT16 = (8, 0)  # compute capability from which cards multiply bfloat16
SMALL_GB = 10.0  # what recipes for a card of 24 GB will not fit into as they are
GIB_IN_MIB = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the driver tells; memory in GiB."""

    name: str
    total_gb: float
    free_gb: float
    capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Driver:
    """What nvidia-smi says.

    Attributes:
        version: of the driver.
        cuda: the newest CUDA it serves.
        processes, held_gb: programs that compute on the cards, and what they hold.
        fault: why it says nothing; empty if it does.
    """

    version: str = ""
    cuda: tuple[int, int] | None = None
    cards: tuple[Card, ...] = ()
    processes: int = 0
    held_gb: float = 0.0
    fault: str = ""


def driver() -> Driver | None:
    """The driver's own account; None where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    fields = "driver_version,memory.total,memory.free,name"
    try:
        try:
            rows = _query("gpu", f"{fields},compute_cap")
        except RuntimeError:
            rows = _query("gpu", fields)  # before 510 it does not tell the compute capability
        cuda = re.search(r"CUDA[\w ]*Version\s*:\s*(\d+)\.(\d+)", _smi())
        used = _query("compute-apps", "pid,used_memory")
    except RuntimeError as error:
        return Driver(fault=str(error))
    return Driver(
        version=rows[0][0] if rows else "",
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        cards=tuple(_card(row) for row in rows),
        processes=len(used),
        held_gb=sum(_number(row[-1]) for row in used) / GIB_IN_MIB,
    )


def undisturbed(torch: Mapping[str, Any], found: Driver | None) -> dict[str, Any]:
    """The same of torch, with what was free before the probes began: each takes some of a card for itself.

    Args:
        found: from before that. Of several cards of a name nothing tells which is which.
    """
    free: dict[str, list[float]] = {}
    for card in found.cards if found else ():
        free.setdefault(card.name, []).append(card.free_gb * 2**30)
    cards = [
        {**card, "free": free[card["name"]][0]} if len(free.get(card["name"], ())) == 1 else card
        for card in torch.get("cards", ())
    ]
    return {**torch, "cards": cards}


def examine_cards(
    torch: Mapping[str, Any], found: Driver | None, *, needed: bool, bfloat16: bool = False
) -> Iterator[Finding]:
    """Torch, the driver and the cards.

    Args:
        torch: what the probe of that name found.
        found: what ``driver`` found.
        needed: whether a recipe is asked about that needs a card.
        bfloat16: whether its model is of that type.
    """
    if "error" in torch:
        yield problem("torch", torch["error"], f"reinstall it: pip install '{range_of('torch')}'", blocks=True)
        return
    build = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "built for CPUs"
    yield ok("torch", f"{torch['version']}, {build}")
    cards = found.cards if found else ()
    if found is not None and found.fault:
        yield problem("driver", f"nvidia-smi fails: {found.fault}", "reinstall the driver, or reboot", blocks=needed)
    elif found is not None and cards:
        serves = f", serves CUDA up to {_dotted(found.cuda)}" if found.cuda else ""
        yield ok("driver", f"{found.version}{serves}")
    if torch["available"]:
        yield from _seen_by_torch(torch["cards"], needed, bfloat16)
    elif cards and found is not None:
        yield _unused(torch, found, needed)
        yield from (ok("card", f"{_told(card)}, which torch does not use") for card in cards)
    else:  # a recipe that needs one is told so by what ``check`` misses
        yield note("card", "no NVIDIA GPU is visible; the embedded policy needs none")
    if found is not None and found.processes:
        text = f"{found.processes} program{'s' * (found.processes > 1)} hold {found.held_gb:.1f} GiB of the cards"
        yield note("card", f"{text}; nvidia-smi lists them")


def _seen_by_torch(cards: list[dict[str, Any]], needed: bool, bfloat16: bool) -> Iterator[Finding]:
    for each in cards:
        card = Card(each["name"], each["total"] / 2**30, each["free"] / 2**30, tuple(each["capability"]))
        if each["error"]:
            yield problem(
                "card",
                f"{card.name}: torch cannot compute on it: {each['error']}",
                f"take a torch build that knows this card: pip install '{range_of('torch')}'; or reboot",
                blocks=needed,
            )
            continue
        yield ok("card", _told(card))
        if card.capability is not None and card.capability < BFLOAT16:
            text = f"{card.name} has no bfloat16, which needs compute capability 8.0"
            if bfloat16:
                yield problem("card", text, "set model.dtype=float32, or take a newer card", blocks=needed)
            else:
                yield note("card", f"{text}; recipes that say so need model.dtype=float32")
        if card.total_gb < SMALL_GB:
            size = round(card.total_gb)
            yield note("card", f"{card.name}: {size} GB; bmrl check RECIPE --vram {size} says what to change")


def _unused(torch: Mapping[str, Any], found: Driver, needed: bool) -> Finding:
    """Why torch does not use the cards that there are."""
    if not torch["cuda"]:
        build = max((b for b in BUILDS if found.cuda is None or b <= found.cuda), default=None)
        take = f"the build for CUDA {_dotted(build)}" if build else "a newer driver, and a build for CUDA"
        text = "a build for CPUs, though there is a card"
        return problem("torch", text, f"take {take} from pytorch.org/get-started", blocks=needed)
    major = int(str(torch["cuda"]).partition(".")[0])
    least = DRIVERS.get(major, DRIVERS[max(DRIVERS)])
    if _parts(found.version) < _parts(least):
        older = max(
            (b for b in BUILDS if b[0] < major and _parts(DRIVERS[b[0]]) <= _parts(found.version)), default=None
        )
        other = f", or the torch build for CUDA {_dotted(older)}" if older else ""
        text = f"{found.version} is too old for torch's CUDA {torch['cuda']}"
        return problem("driver", text, f"install driver {least} or newer{other}", blocks=needed)
    told = f" ({torch['warning']})" if torch["warning"] else ""
    return problem(
        "torch", f"it sees no card{told}", "unset CUDA_VISIBLE_DEVICES if it hides the card, or reboot", blocks=needed
    )


def _told(card: Card) -> str:
    capability = f"compute capability {_dotted(card.capability)}, " if card.capability else ""
    return f"{card.name}: {capability}{card.free_gb:.1f} of {card.total_gb:.1f} GiB are free"


def _card(row: list[str]) -> Card:
    _, total, free, name, *more = row
    capability = _parts(more[0])[:2] if more else ()
    found = (capability[0], capability[1]) if len(capability) == 2 else None
    return Card(name, _number(total) / GIB_IN_MIB, _number(free) / GIB_IN_MIB, found)


def _query(what: str, fields: str) -> list[list[str]]:
    text = _smi(f"--query-{what}={fields}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if any(len(row) < len(fields.split(",")) for row in rows):
        raise RuntimeError(f"it answers with {' '.join(text.split())[:80]!r}")
    return rows


def _smi(*arguments: str) -> str:
    """What nvidia-smi prints; RuntimeError with one line where it fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=15, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise RuntimeError("no answer within 15 s") from error
    except OSError as error:
        raise RuntimeError((error.strerror or "it cannot be run").lower()) from error
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise RuntimeError(said[:160] or f"it ended with code {done.returncode}")
    return done.stdout


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0  # "[N/A]" where it does not know


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _dotted(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version)) if version else "?"
