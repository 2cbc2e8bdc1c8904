"""A training run on the screen: one line per step, and what it proved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hexisolve.commands.shell import Shell
from hexisolve.units import format_seconds

if TYPE_CHECKING:
    from hexisolve.runtime.records import StepRecord, TrainingSummary

MAX_LOSS_DIFFERENCE = 1e-4
"""Relative, at every step, in float32: the sums of ranks are rounded in another order."""
MAX_GRADIENT_DIFFERENCE = 1e-10
"""Absolute, in float64, first step."""


def one_thread_per_process() -> None:
    """Keep torch to one thread unless OMP_NUM_THREADS says otherwise; before torch is imported.

    Ranks are processes and miniatures are small: on several threads both are many times slower.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class StepPrinter:
    """Prints every step as it is done; give it to `train(on_step=...)`."""

    def __init__(self, shell: Shell, predicted_step_time_s: float, verifies: bool) -> None:
        self.shell = shell
        self.predicted_step_time_s = predicted_step_time_s
        self.verifies = verifies
        self.num_printed = 0

    def __call__(self, record: StepRecord) -> None:
        """Print one step."""
        if self.shell.is_json:
            from hexisolve.runtime.records import step_document

            document = step_document(record, self.predicted_step_time_s)
            self.shell.write_json(document, indent=None)
            return
        if self.num_printed == 0:
            beside = f"{'one process':>12}{'difference':>12}" if self.verifies else ""
            self._line(f"{'step':>5}{'loss':>12}{beside}{'tokens/s':>12}{'step time':>12}")
        self.num_printed += 1
        beside = ""
        if record.reference_loss is not None and record.relative_difference is not None:
            beside = f"{record.reference_loss:>12.6f}{record.relative_difference:>12.1e}"
        self._line(
            f"{record.step:>5}{record.loss:>12.6f}{beside}{record.tokens_per_s:>12,.0f}"
            f"{format_seconds(record.step_time_s):>12}"
        )

    def close(self, summary: TrainingSummary) -> None:
        """Print what the run did."""
        from hexisolve.runtime.records import summary_document

        if self.shell.is_json:
            document = summary_document(summary, self.predicted_step_time_s)
            self.shell.write_json({"summary": True} | document, indent=None)
        else:
            self.shell.show(*summary_lines(summary, self.predicted_step_time_s))

    def _line(self, text: str) -> None:
        self.shell.out.write(text + "\n")
        self.shell.out.flush()


def is_exact(summary: TrainingSummary, max_loss_difference: float = MAX_LOSS_DIFFERENCE) -> bool:
    """Whether every loss and the first gradients are those of one process."""
    # One by one: what is not a number must not hide in a maximum.
    return (
        all(
            record.relative_difference is not None
            and record.relative_difference <= max_loss_difference
            for record in summary.steps
        )
        and summary.gradients is not None
        and summary.gradients.ok(MAX_GRADIENT_DIFFERENCE)
    )


def summary_lines(summary: TrainingSummary, predicted_step_time_s: float) -> list[str]:
    """What the run did and, if verified, how far it is from one process."""
    lines = [
        f"{summary.num_steps} steps of {summary.num_parameters:,} parameters on"
        f" {summary.num_ranks} processes: loss {summary.first_loss:.4f} to"
        f" {summary.last_loss:.4f}, {summary.tokens_per_s:,.0f} tokens/s",
        f"step time {format_seconds(summary.mean_step_time_s)}; the cost model says"
        f" {format_seconds(predicted_step_time_s)} on the cluster of the plan",
    ]
    if summary.max_relative_difference is not None:
        lines.append(
            f"largest loss difference from one process  {summary.max_relative_difference:.1e}"
            " relative"
        )
    if summary.gradients is not None:
        lines.append(
            f"largest gradient difference, float64       "
            f"{summary.gradients.max_gradient_difference:.1e} absolute"
            f" ({summary.gradients.worst_parameter})"
        )
    return lines
