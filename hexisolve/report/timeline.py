"""What the clock played, beside what `evaluate` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hexisolve.report.tables import make_table, percent
from hexisolve.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from hexisolve.plan.evaluate import Evaluation
    from hexisolve.program.timeline import Timeline

_MOST_DEVICES = 64


def timeline_document(timeline: Timeline, evaluation: Evaluation) -> dict[str, Any]:
    """JSON form: step times, seconds of every device, the operations of every stage."""
    return {
        "step_time_s": timeline.step_time_s,
        "evaluated_step_time_s": evaluation.step_time_s,
        "relative_difference": timeline.step_time_s / evaluation.step_time_s - 1,
        "tokens_per_s": evaluation.instance.workload.num_tokens / timeline.step_time_s,
        "bubble_share": timeline.bubble_share,
        "devices": [
            {
                "device": entry.device,
                "rank": entry.rank,
                "compute_s": entry.busy_s,
                "exchange_s": entry.exchange_s,
                "idle_s": entry.idle_s,
            }
            for entry in timeline.devices
        ],
        "stages": [
            {
                "stage": number,
                "operations": [
                    {"operation": f"{kind}{chunk}", "start_s": start_s, "end_s": end_s}
                    for start_s, end_s, kind, chunk in timeline.operations(number)
                ],
            }
            for number in range(timeline.num_stages)
        ],
    }


def timeline_parts(
    timeline: Timeline, evaluation: Evaluation, width: int = 100
) -> list[RenderableType]:
    """Step time, the picture, the seconds of every device."""
    return [_step_table(timeline, evaluation), timeline.text(width), "", _device_table(timeline)]


def _step_table(timeline: Timeline, evaluation: Evaluation) -> Table:
    table = make_table("one step", ["", ">", ""])
    table.show_header = False
    tokens_per_s = evaluation.instance.workload.num_tokens / timeline.step_time_s
    difference = timeline.step_time_s / evaluation.step_time_s - 1
    table.add_row("clock", format_seconds(timeline.step_time_s), f"{tokens_per_s:,.0f} tokens/s")
    table.add_row(
        "evaluate", format_seconds(evaluation.step_time_s), f"the clock is {difference:+.1%} off"
    )
    return table


def _device_table(timeline: Timeline) -> Table:
    table = make_table(
        "devices over the step", ["rank>", "device", "compute>", "exchange>", "idle>"]
    )
    step_s = timeline.step_time_s
    for entry in timeline.devices[:_MOST_DEVICES]:
        table.add_row(
            str(entry.rank), entry.device,
            *(percent(seconds / step_s)
              for seconds in (entry.busy_s, entry.exchange_s, entry.idle_s)),
        )  # fmt: skip
    left_out = len(timeline.devices) - _MOST_DEVICES
    if left_out > 0:
        table.caption = f"{left_out} more ranks; --json has them all"
    return table
