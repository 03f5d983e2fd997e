"""Charts of training: what each step logged."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from bmrl.report.charts import WINDOW, Chart, Record, column, share_axis, smoothed, step_axis
from bmrl.report.figure import COLOURS, DASHES, INK
from bmrl.report.read import Evaluation, Source
from bmrl.types import EndReason

LINES = 5  # most lines that a chart of budgets has; more are put together
HATCHES = {
    EndReason.SUCCESS: "",
    EndReason.BUDGET: "//",
    EndReason.FAILURE: "xx",
    EndReason.CONTEXT: "..",
    EndReason.TIMEOUT: "++",
    EndReason.ENV_ERROR: "\\\\",
}


def charts(source: Source) -> list[Chart]:
    """Those that the run logged the numbers of."""
    steps = [record for record in source.metrics if record.get("success") is not None]
    losses = [record for record in source.metrics if record.get("action_loss") is not None]
    made = [success_chart(source.found, steps), _learning_chart(steps), _ends_chart(steps), _turns_chart(steps)]
    return [*(made if steps else []), *([_loss_chart(losses)] if losses else [])]


def success_chart(found: Sequence[Evaluation], steps: Sequence[Record]) -> Chart:
    """Success of the training episodes, and the mean over budgets of the evaluations."""

    def draw(axes: Any) -> None:
        numbers, success = column(steps, "success")
        label = "training episodes"
        axes.plot(numbers, success, color=COLOURS[0], marker=".", markersize=3, linewidth=0.7, label=label)
        places = [(one.step, one.result["area"]) for one in found if one.step is not None]
        if places:
            at, areas = zip(*places, strict=True)
            axes.plot(at, areas, color=COLOURS[1], marker="s", label="evaluations")
        step_axis(axes)
        share_axis(axes, "success")

    return Chart(
        "success_over_training",
        "Success over training",
        "Training episodes of each step, whose budgets differ from step to step, and the area under the curve over "
        "budgets at each evaluation. Judge the policy by its evaluations.",
        draw,
    )


def _learning_chart(steps: Sequence[Record]) -> Chart:
    groups = budget_groups(
        sorted({int(key[11:]) for record in steps for key in record if key.startswith("success_at_")})
    )

    def draw(axes: Any) -> None:
        for n, group in enumerate(groups):
            points = [(record["step"], _mean(record, group)) for record in steps]
            numbers, values = smoothed([(at, value) for at, value in points if at is not None and value is not None])
            label = f"{group[0]} turns" if len(group) == 1 else f"{group[0]} to {group[-1]} turns"
            axes.plot(numbers, values, color=COLOURS[n], linestyle=DASHES[n], label=label)
        step_axis(axes)
        share_axis(axes, "success")

    return Chart(
        "learning_by_budget",
        "Learning curves by budget",
        f"Success of the training episodes of each budget, mean of the last {WINDOW} steps that drew it. Healthy: "
        "small budgets rise, too; if only large ones do, the policy learns to last longer, not to act better.",
        draw,
    )


def budget_groups(budgets: Sequence[int]) -> list[list[int]]:
    """At most `LINES` groups of neighbouring budgets, as equal in number as can be."""
    count = min(LINES, len(budgets))
    bounds = [round(n * len(budgets) / count) for n in range(count + 1)] if count else []
    return [list(budgets[low:high]) for low, high in pairwise(bounds)]


def _mean(record: Record, budgets: Sequence[int]) -> float | None:
    known = [value for budget in budgets if (value := record.get(f"success_at_{budget}")) is not None]
    return fmean(known) if known else None


def _ends_chart(steps: Sequence[Record]) -> Chart:
    reasons = [reason for reason in HATCHES if any(record.get(f"end_{reason}") for record in steps)]

    def draw(axes: Any) -> None:
        numbers = [record["step"] or 0 for record in steps]
        layers = [
            smoothed([(at, record.get(f"end_{reason}") or 0.0) for at, record in zip(numbers, steps, strict=True)])[1]
            for reason in reasons
        ]
        colours = {reason: COLOURS[place] for reason, place in zip(HATCHES, (2, 4, 3, 0, 1, 5), strict=True)}
        bands = axes.stackplot(
            numbers, layers, colors=[colours[reason] for reason in reasons], labels=reasons, alpha=0.75
        )
        for band, reason in zip(bands, reasons, strict=True):
            band.set_hatch(HATCHES[reason])
            band.set_edgecolor(INK)
            band.set_linewidth(0.4)
        step_axis(axes)
        share_axis(axes, "episodes")

    return Chart(
        "end_reasons",
        "Why episodes ended",
        f"Shares of the training episodes, mean of the last {WINDOW} steps. Success should grow at the cost of "
        "used-up budgets; a full context, time-outs and environment errors should stay near nothing.",
        draw,
    )


def _turns_chart(steps: Sequence[Record]) -> Chart:
    def draw(axes: Any) -> None:
        numbers, turns = column(steps, "turns_mean")
        axes.plot(numbers, turns, color=COLOURS[0], marker=".", markersize=3, linewidth=0.7, label="mean of the step")
        axes.plot(*smoothed(list(zip(numbers, turns, strict=True))), color=COLOURS[1], label=f"of the last {WINDOW}")
        step_axis(axes)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("turns an episode")

    return Chart(
        "turns_over_training",
        "Turns used in training",
        "Mean turns that a training episode used, whatever its budget. Falls as tasks are solved sooner.",
        draw,
    )


def _loss_chart(losses: Sequence[Record]) -> Chart:
    def draw(axes: Any) -> None:
        numbers, values = column(losses, "action_loss")
        axes.plot(numbers, values, color=COLOURS[0], linewidth=0.7, label="step")
        axes.plot(*smoothed(list(zip(numbers, values, strict=True))), color=COLOURS[1], label=f"mean of {WINDOW} steps")
        step_axis(axes)
        if min(values) > 0:
            axes.set_yscale("log")
        axes.set_ylabel("nats a token")

    return Chart(
        "loss_over_training",
        "Loss on demonstrations",
        "Mean cross-entropy of the demonstrated actions. Falls; near 0 the demonstrations are memorised.",
        draw,
    )
