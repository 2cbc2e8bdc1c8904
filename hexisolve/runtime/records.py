"""What a training run tells: one record per step, a summary, and both as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hexisolve.runtime.verify import Verification


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    Parameters
    ----------
    step
        From 0.
    loss, reference_loss
        Mean over supervised tokens; of the single process when it runs beside, else None.
    tokens_per_s
        Of the whole job.
    """

    step: int
    loss: float
    reference_loss: float | None
    tokens: int
    tokens_per_s: float
    step_time_s: float

    @property
    def relative_difference(self) -> float | None:
        """``|loss - reference| / |reference|``."""
        if self.reference_loss is None:
            return None
        return abs(self.loss - self.reference_loss) / max(abs(self.reference_loss), 1e-30)


@dataclass(frozen=True)
class TrainingSummary:
    """What a training run did.

    Parameters
    ----------
    steps
        One record per step.
    num_parameters
        Of the model, tied ones once.
    gradients
        First-step gradients in float64 against one process, when verified.
    """

    steps: tuple[StepRecord, ...]
    num_ranks: int
    num_parameters: int
    wall_s: float
    gradients: Verification | None = None

    @property
    def num_steps(self) -> int:
        """Steps made."""
        return len(self.steps)

    @property
    def first_loss(self) -> float:
        """Loss of the first step."""
        return self.steps[0].loss

    @property
    def last_loss(self) -> float:
        """Loss of the last step."""
        return self.steps[-1].loss

    @property
    def mean_step_time_s(self) -> float:
        """Mean over the steps but the first, which warms up (over all if there is only one)."""
        counted = self.steps[1:] or self.steps
        return sum(record.step_time_s for record in counted) / len(counted)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of a step over `mean_step_time_s`."""
        return self.steps[-1].tokens / self.mean_step_time_s

    @property
    def max_relative_difference(self) -> float | None:
        """Largest difference of any step's loss from the single process; None if not verified."""
        found = [
            record.relative_difference
            for record in self.steps
            if record.relative_difference is not None
        ]
        return max(found) if found else None


def step_document(record: StepRecord, predicted_step_time_s: float) -> dict[str, Any]:
    """JSON form of one step."""
    return asdict(record) | {
        "relative_difference": record.relative_difference,
        "predicted_step_time_s": predicted_step_time_s,
    }


def summary_document(summary: TrainingSummary, predicted_step_time_s: float) -> dict[str, Any]:
    """JSON form of a finished run; differences are null when it was not verified."""
    gradients = summary.gradients
    return {
        "num_steps": summary.num_steps,
        "num_ranks": summary.num_ranks,
        "num_parameters": summary.num_parameters,
        "losses": [record.loss for record in summary.steps],
        "reference_losses": [record.reference_loss for record in summary.steps],
        "first_loss": summary.first_loss,
        "last_loss": summary.last_loss,
        "tokens_per_s": summary.tokens_per_s,
        "mean_step_time_s": summary.mean_step_time_s,
        "predicted_step_time_s": predicted_step_time_s,
        "wall_s": summary.wall_s,
        "max_relative_loss_difference": summary.max_relative_difference,
        "max_gradient_difference": None if gradients is None else gradients.max_gradient_difference,
        "worst_parameter": None if gradients is None else gradients.worst_parameter,
    }
