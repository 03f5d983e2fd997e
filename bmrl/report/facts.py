"""What a report says of a run in words and numbers: what it is, how it went, what it cost."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bmrl.redact import redacted
from bmrl.report.charts import percent, points
from bmrl.report.read import Source

Rows = Sequence[tuple[str, str]]


class Tile(NamedTuple):
    """A number that a reader looks for first."""

    label: str
    value: str
    more: str = ""


def lead(source: Source) -> str:
    """The run in one sentence."""
    model, env = (redacted(source.recipe.get(part) or {}) for part in ("model", "env"))
    how = "supervised learning" if source.recipe.get("sft") else "reinforcement learning"
    budget = (source.recipe.get("budget") or {}).get("train") or {}
    drawn = budget.get("turns", f"{budget.get('low')} to {budget.get('high')}")
    drawn = ", ".join(map(str, drawn)) if isinstance(drawn, list) else str(drawn)
    over = "" if source.recipe.get("sft") else f", budgets of {drawn} turns"
    return f"{model.get('name')} in {env.get('name')}: {how} on the split {env.get('train_split', 'train')}{over}."


def tiles(source: Source) -> list[Tile]:
    """What a reader looks for first."""
    made = []
    if source.found:
        first, last = source.found[0].result, source.found[-1].result
        row, largest = last["budgets"][-1], last["budgets"][-1]["budget"]
        interval = f"95 % {percent(row['low'])} to {percent(row['high'])}"
        was = "" if last is first else f"before {percent(first['budgets'][-1]['success'])}, "
        made.append(Tile(f"Success in {largest} turns", percent(row["success"]), was + interval))
        was = "" if last is first else f"before {percent(first['area'])}, "
        made.append(Tile("Area over budgets", percent(last["area"]), f"{was}{last['tasks']} tasks"))
    if source.gains:
        area = source.gains["area"]
        interval = f"95 % {points(area['low'])} to {points(area['high'])}"
        made.append(Tile("Gain of area, points", points(area["difference"]), interval))
    if source.metrics:
        newest = source.metrics[-1]
        made.append(Tile("Training steps", f"{newest['step'] or 0:,.0f}", duration(newest.get("elapsed_s"))))
        if turns := newest.get("env_turns"):
            made.append(Tile("Turns played", f"{turns:,.0f}", "in training"))
        if memory := newest.get("peak_memory_gb"):
            made.append(
                Tile(
                    "Peak memory",
                    f"{memory:.1f} GiB",
                    "of the GPU" if source.system.get("gpus") else "",
                )
            )
    return made


def facts(source: Source) -> list[tuple[str, Rows]]:
    """Tables by title: time, tokens and memory, machine, versions."""
    return [
        ("Time", _time(source.metrics)),
        ("Tokens and memory", _tokens(source.metrics)),
        ("Machine", _machine(source.system)),
        ("Versions", _versions(source.system)),
    ]


def _time(metrics: Sequence[Mapping[str, float | None]]) -> Rows:
    if not metrics:
        return []
    whole = metrics[-1].get("elapsed_s")
    rows = [("all, evaluations included", duration(whole))]
    for key, label in (
        ("rollout_s", "rollout"),
        ("prefill_s", "– reading"),
        ("decode_s", "– sampling"),
        ("env_s", "– environments"),
        ("update_s", "update"),
    ):
        if (total := _sum(metrics, key)) is not None:
            rows.append((label, f"{duration(total)}{_of(total, whole)}"))
    return rows


def _tokens(metrics: Sequence[Mapping[str, float | None]]) -> Rows:
    rows = []
    for key, label in (
        ("action_tokens", "sampled"),
        ("observation_tokens", "of observations"),
        ("prefill_tokens", "read by the sampler"),
        ("update_tokens", "read by the update"),
        ("dropped_tokens", "sampled, but taught nothing"),
        ("tokens", "of demonstrations"),
    ):
        if (total := _sum(metrics, key)) is not None:
            rows.append((label, f"{total:,.0f}"))
    sampled, rollout = _sum(metrics, "action_tokens"), _sum(metrics, "rollout_s")
    if sampled and rollout:
        rows.append(("sampled a second", f"{sampled / rollout:,.0f}"))
    if metrics and metrics[-1].get("peak_memory_gb") is not None:
        rows.append(("peak memory", f"{metrics[-1]['peak_memory_gb']:.2f} GiB"))
    return rows


def _machine(system: Mapping[str, Any]) -> Rows:
    gpus = ", ".join(str(gpu) for gpu in system.get("gpus") or []) or "none"
    named = [("GPU", gpus), ("CPU", system.get("cpu")), ("cores", system.get("cores"))]
    memory = system.get("memory_gb")
    named += [("memory", None if memory is None else f"{memory} GiB")]
    named += [("system", f"{system.get('os', '')} {system.get('machine', '')}".strip())]
    return [(label, str(redacted(value))) for label, value in named if value]


def _versions(system: Mapping[str, Any]) -> Rows:
    versions = system.get("versions") or {}
    named = {"bmrl": system.get("bmrl"), "commit": str(system.get("commit") or "")[:12], "Python": system.get("python")}
    return [(name, str(value)) for name, value in {**named, **versions}.items() if value]


def _sum(metrics: Sequence[Mapping[str, float | None]], key: str) -> float | None:
    known = [value for record in metrics if (value := record.get(key)) is not None]
    return sum(known) if known else None


def _of(part: float, whole: float | None) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def duration(seconds: float | None) -> str:
    """Seconds for a reader."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
