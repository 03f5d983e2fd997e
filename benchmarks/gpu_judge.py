"""Figures of ``gpu_check.py`` against what they should be: a table of pass, fail and not run."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from gpu_models import Shape, has_bitsandbytes
from gpu_play import Sizes

MOST_GAP = 0.05  # nats; the default of rollout.max_logprob_gap, above which a run stops
MOST_GAP_FP32 = 1e-5
# Of a step's length. Attention's gradients are sums in no fixed order on a card, and Adam makes much of little.
MOST_STEP_DIFFERENCE = 0.1
CACHE_GB = 10  # rollout.kv_cache_gb of the recipes for a card


class Line(NamedTuple):
    """A line of the table."""

    model: str
    check: str
    result: str  # pass, fail, or "not run"
    figure: str


def planned(shape: Shape, sizes: Sizes, cap_gb: float) -> dict[str, Any]:
    """Rows of the worst rollout, and the estimate's memory for it and for the update, GiB.

    The estimate reads a recipe, which takes packages that a bare machine may lack; then ``missing`` says so.
    """
    try:
        from bmrl import memory, packaged
        from bmrl.recipe import load

        overrides = {
            "model.context_tokens": sizes.context,
            "lora.rank": sizes.rank,
            "rollout.turn_tokens": sizes.turn_tokens,
            "train.micro_batch_tokens": sizes.context,
            "model.adapter": "null",
        }
        if not has_bitsandbytes():
            overrides["optimizer.name"] = "adamw"
        recipe = load(packaged.find(shape.recipe), tuple(f"{key}={value}" for key, value in overrides.items()))
        found = memory.estimate(recipe, memory.figures(recipe), vram_gb=cap_gb)
    except ImportError as error:
        return {"missing": f"the estimate needs {error.name}", "rows": _rows(shape, sizes)}
    return {
        "rows": found.rows,
        "rollout_gb": found.phase("rollout"),
        "update_gb": found.phase("update"),
        "parts": [[part.name, part.gb, part.phase] for part in found.parts],
    }


def _rows(shape: Shape, sizes: Sizes) -> int:
    """As many as the cache of the recipes has room for."""
    s = shape.sizes
    width = s["hidden_size"] // s["num_attention_heads"]
    token = 2 * s["num_hidden_layers"] * s["num_key_value_heads"] * width * 2  # keys and values, 16 bit
    return int(CACHE_GB * 2**30 / (token * sizes.context))


def judged(found: Mapping[str, Any]) -> list[Line]:
    """Every check of every model."""
    lines = []
    for name, model in found["models"].items():
        if "missing" in model:
            lines.append(Line(name, "all", "not run", model["missing"]))
            continue
        for check, result, figure in _checks(model, found["rehearsal"]):
            lines.append(Line(name, check, result, figure))
    return lines


def _checks(model: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    parts = {
        "made": _made,
        "rollout": _rollout,
        "update": _update,
        "graphs": _graphs,
        "agreement": _agreement,
        "agreement_long": _agreement,
        "resume": _resume,
        "growth": _growth,
    }
    for name, judge in parts.items():
        figures = model.get(name)
        title = name.replace("_", " ")
        if figures is None:
            yield title, "not run", "what it needs was not there"
        elif "error" in figures:
            yield title, "fail", figures["error"]
        elif "not_run" in figures:
            yield title, "not run", figures["not_run"]
        else:
            for check, result, figure in judge(figures, rehearsal):
                yield (check if name != "agreement_long" else f"{check}, full rows"), result, figure
            if name in ("rollout", "update"):
                yield _memory(name, figures, model.get("estimate"), rehearsal)


def _passes(good: bool) -> str:
    return "pass" if good else "fail"


def _made(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    yield "made", "pass", f"{figures['part_s']:.1f} s, at most {figures['peak_allocated_gb']:.2f} GiB"


def _rollout(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    told = (
        f"{figures['rows']} rows x {figures['context_tokens']:,} tokens: {figures['prefill_tokens_per_s']:,.0f} read, "
        f"{figures['decode_tokens_per_s']:,.0f} decoded a second"
    )
    if not rehearsal and not figures["captured"]:
        told += "; without graphs"
    if figures["complete"]:
        yield "rollout", "pass", told
    else:
        yield "rollout", "not run", f"time; after {figures['tokens_read']:,} tokens read: {told}"


def _update(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    told = f"{figures['tokens']:,} tokens, {figures['optimizer']}: {figures['tokens_per_s']:,.0f} a second"
    yield "update", _passes(figures["packs"]), told + ("" if figures["packs"] else "; episodes cannot share a row")


def _memory(
    phase: str, figures: Mapping[str, Any], estimate: Mapping[str, Any] | None, cpu: bool
) -> tuple[str, str, str]:
    check = f"{phase} memory"
    reserved = figures["peak_reserved_gb"]
    if cpu:
        return check, "not run", f"rehearsal: resident {reserved:.2f} GiB; only a card's memory is compared here"
    most = reserved + figures["outside_gb"]
    told = f"{figures['peak_allocated_gb']:.2f} GiB allocated, {most:.2f} with what torch and CUDA keep"
    if estimate is None or "missing" in estimate:
        return check, "not run", f"{(estimate or {}).get('missing', 'no estimate')}; {told}"
    expected = estimate[f"{phase}_gb"]
    return (
        check,
        _passes(most <= expected),
        f"{told}; estimate {expected:.2f}, measured / estimate {most / expected:.2f}",
    )


def _graphs(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    cases = figures["cases"]
    if not cases:
        yield "graphs", "not run", "time"
        return
    if rehearsal:
        yield "graphs captured", "not run", "rehearsal: there is nothing to capture on a CPU"
        same = all(case["share_as_free"] == 1 for case in cases)
        yield "graphs: same tokens", _passes(same), "rehearsal: fixed shapes, not captured, against rows"
        ratios = [case["token_s"]["free"] / case["token_s"]["fixed"] for case in cases]
        yield "graphs: speed", "not run", f"rehearsal: fixed shapes {median(ratios):.2f} times as fast as rows"
        return
    empty = [case for case in cases if not case["captured"]]
    shapes = sum(len(case["captured"]) for case in cases)
    seconds = median(case["capture_s"] / max(len(case["captured"]), 1) for case in cases)
    captured = not empty and not figures["warnings"]
    told = f"{shapes} shapes, {seconds:.2f} s each" if captured else (figures["warnings"] or ["nothing captured"])[0]
    yield "graphs captured", _passes(captured), told
    same = [case["same_as_fixed"] for case in cases]
    share = sum(case["share_as_free"] for case in cases) / len(cases)
    told = f"{sum(same)} of {len(same)} cases as uncaptured; {share:.0%} of the tokens as without fixed shapes"
    yield "graphs: same tokens", _passes(captured and all(same)), told
    ratios = [case["token_s"]["free"] / case["token_s"]["graphs"] for case in cases]
    best = max(cases, key=lambda case: case["token_s"]["free"] / case["token_s"]["graphs"])
    told = (
        f"{median(ratios):.2f} times as fast as eager ({min(ratios):.2f} .. {max(ratios):.2f}); "
        f"{best['rows']} rows of {best['held']:,}: {1000 * best['token_s']['graphs']:.1f} ms a token, "
        f"eager {1000 * best['token_s']['free']:.1f}"
    )
    yield "graphs: speed", _passes(captured and median(ratios) >= 1), told
    if not figures["complete"]:
        yield "graphs: the rest", "not run", f"time; after {len(cases)} cases"


def _agreement(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    most = MOST_GAP_FP32 if rehearsal else MOST_GAP
    told = (
        f"mean {figures['mean_gap']:.2g} nats (at most {most:g}), largest {figures['max_gap']:.2g}, of "
        f"{figures['tokens']:,} tokens in {figures['rows']} rows of up to {figures['longest']:,}"
    )
    yield "sampler against update", _passes(figures["mean_gap"] <= most), told


def _resume(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    most = 0 if rehearsal else MOST_STEP_DIFFERENCE
    good = figures["restored"] and figures["step_difference"] <= most
    state = "as saved" if figures["restored"] else "not as saved"
    told = f"{figures['optimizer']}: adapter and optimizer {state}, the next step apart by"
    yield "resume", _passes(good), f"{told} {figures['step_difference']:.2g} of its length (at most {most:g})"


def _growth(figures: Mapping[str, Any], rehearsal: bool) -> Iterator[tuple[str, str, str]]:
    second, last = figures["steps"][1], figures["steps"][-1]
    held = last["held_gb"] - second["held_gb"]
    peak = last["peak_reserved_gb"] - second["peak_reserved_gb"]
    # A computer's allocator gives back when it likes; a card's is counted to the byte, its reserve in blocks.
    most_held, most_peak = (0.05, 0.1) if rehearsal else (0.002, 0.05 * second["peak_reserved_gb"])
    told = f"steps 2 to {len(figures['steps'])}: held {1024 * held:+.1f} MiB, peak {1024 * peak:+.1f} MiB"
    yield "growth", _passes(held <= most_held and peak <= most_peak), f"{told}; {last['seconds']:.1f} s a step"


def table(found: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """For people, and for a README."""
    system = found["system"]
    versions = ", ".join(f"{name} {version}" for name, version in system["versions"].items())
    where = f"{system['card']}, {system['total_gb']:.0f} GiB" if "card" in system else "CPU, a rehearsal"
    header = f"{where}; at most {system['cap_gb']:g} GiB used; CUDA {system['cuda']}; {versions}"
    counts = {result: sum(line.result == result for line in lines) for result in ("pass", "fail", "not run")}
    told = ", ".join(f"{count} {result}" for result, count in counts.items())
    rows = ["| model | check | result | figure |", "|---|---|---|---|"]
    rows += [f"| {line.model} | {line.check} | {line.result} | {line.figure} |" for line in lines]
    return "\n".join([header, "", *rows, "", f"{told}; {found['seconds']:.0f} s"])
