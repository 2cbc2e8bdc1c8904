"""Prove a plan: its programs against one device, loss and every gradient."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hexisolve.data.instance import Instance
from hexisolve.errors import RuntimeMismatchError
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import DEFAULT_RING_BLOCKS, compile_plan
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.corpus import Batch, random_batch
from hexisolve.runtime.flat import unit_spans
from hexisolve.runtime.interpreter import RunSettings, WeightRange
from hexisolve.runtime.processes import Job, run_local
from hexisolve.runtime.reference import reference_gradients
from hexisolve.runtime.virtual import VirtualRun
from hexisolve.runtime.weights import Style, initial_weights

DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Verification:
    """How far a plan's programs are from one process.

    Parameters
    ----------
    loss, reference_loss
        Mean over the supervised tokens, of the programs and of one process.
    max_loss_difference, max_gradient_difference
        Largest absolute differences; infinite when a value is not a number.
    worst_parameter
        Global name of the parameter with the largest gradient difference.
    num_parameters
        Parameters whose gradient was compared, tied ones once.
    executor
        Who ran the programs.
    """

    loss: float
    reference_loss: float
    max_loss_difference: float
    max_gradient_difference: float
    worst_parameter: str
    num_ranks: int
    num_parameters: int
    executor: Literal["virtual", "processes"]
    wall_s: float

    def ok(self, tolerance: float = 1e-10) -> bool:
        """Whether loss and every gradient lie within `tolerance` of one process."""
        return max(self.max_loss_difference, self.max_gradient_difference) <= tolerance


@dataclass(frozen=True)
class FixedBatch:
    """The same sequences in every step."""

    sequences: Batch

    def batch(self, step: int) -> Batch:
        """The batch, whatever the step."""
        return self.sequences


def verify_virtual(
    instance: Instance,
    plan: Plan,
    *,
    seed: int = 0,
    dtype: str = "float64",
    rank_order_seed: int | None = None,
    ring_blocks: int = DEFAULT_RING_BLOCKS,
) -> Verification:
    """Run one step of a plan with all ranks in this process and compare with one device.

    The plan is run as it is; give a `miniature` when it is large.

    Parameters
    ----------
    seed
        Of weights and tokens.
    dtype
        ``float64``, ``float32`` or ``bfloat16``.
    rank_order_seed
        Random order of ranks; None for the fixed one.
    ring_blocks
        Blocks of KV aimed at per ring.

    Raises
    ------
    UnsupportedPlanError
        When the model or the plan uses a part that is not executed.
    RuntimeMismatchError
        When the programs deadlock or do not fit together.
    """
    begun_s = time.perf_counter()
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks)
    architecture = Architecture.of(instance.model)
    batch = random_batch(programs.sequence_lengths, architecture.vocab_size, seed)
    settings = RunSettings(dtype=DTYPES[dtype], seed=seed, style="probe", keeps_gradients=True)
    with _one_thread():
        run = VirtualRun(programs, settings, rank_order_seed=rank_order_seed)
        loss = run.step(batch)
        gradients = [rank.step_gradients for rank in run.ranks]
        return _compare(programs, batch, settings, loss, gradients, "virtual", begun_s)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile, unless OMP_NUM_THREADS says otherwise.

    Tensors of a miniature are small: on several threads it takes many times as long.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def verify_processes(
    instance: Instance,
    plan: Plan,
    *,
    seed: int = 0,
    timeout_s: float = 60.0,
    batch: Batch | None = None,
    style: Style = "probe",
    ring_blocks: int = DEFAULT_RING_BLOCKS,
) -> Verification:
    """Run one float64 step of a plan with one gloo process per rank and compare.

    Parameters
    ----------
    batch
        Sequences of the plan's lengths; random ones by default.
    style
        Of the initial weights.

    Raises
    ------
    UnsupportedPlanError, RuntimeMismatchError
        As `verify_virtual`; also when a process is lost.
    """
    begun_s = time.perf_counter()
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks)
    architecture = Architecture.of(instance.model)
    if batch is None:
        batch = random_batch(programs.sequence_lengths, architecture.vocab_size, seed)
    settings = RunSettings(dtype=torch.float64, seed=seed, style=style, keeps_gradients=True)
    losses: list[float] = []
    job = Job(
        programs=programs, settings=settings, batches=FixedBatch(batch), num_steps=1,
        timeout_s=timeout_s,
    )  # fmt: skip
    ranks = run_local(job, lambda step: losses.append(step.loss))
    gradients = [
        {part: torch.from_numpy(array) for part, array in rank.gradients.items()} for rank in ranks
    ]
    return _compare(programs, batch, settings, losses[0], gradients, "processes", begun_s)


def _compare(
    programs: Programs, batch: Batch, settings: RunSettings, loss: float,
    gradients: Iterable[Mapping[WeightRange, Tensor]],
    executor: Literal["virtual", "processes"], begun_s: float,
) -> Verification:  # fmt: skip
    architecture = Architecture.of(programs.instance.model)
    weights = initial_weights(
        architecture, architecture.shapes(range(architecture.num_layers)),
        settings.seed, settings.style,
    )  # fmt: skip
    # Rounded as the ranks round them, then exact: the reference is always in float64.
    weights = {name: weight.to(settings.dtype).double() for name, weight in weights.items()}
    reference_loss, reference = reference_gradients(
        architecture, weights, batch.tokens, batch.targets,
        is_causal=programs.instance.workload.attention == "causal",
    )  # fmt: skip
    worst, worst_parameter, num_compared = compare_gradients(architecture, reference, gradients)
    return Verification(
        loss=loss,
        reference_loss=reference_loss,
        max_loss_difference=_distance(loss - reference_loss),
        max_gradient_difference=worst,
        worst_parameter=worst_parameter,
        num_ranks=len(programs.ranks),
        num_parameters=num_compared,
        executor=executor,
        wall_s=time.perf_counter() - begun_s,
    )


def compare_gradients(
    architecture: Architecture,
    reference: Mapping[str, Tensor],
    gradients: Iterable[Mapping[WeightRange, Tensor]],
) -> tuple[float, str, int]:
    """(largest absolute difference, its parameter, parameters compared) over all ranks.

    Raises
    ------
    RuntimeMismatchError
        When some parameter was stepped by no rank.
    """
    seen = {name: torch.zeros(value.numel(), dtype=torch.bool) for name, value in reference.items()}
    worst, worst_parameter = 0.0, ""
    for rank in gradients:
        for (unit, start, stop), gradient in rank.items():
            for span in unit_spans(architecture, unit):
                first, last = max(start, span.start), min(stop, span.stop)
                if first >= last:
                    continue
                own = slice(first - span.start, last - span.start)
                expected = reference[span.name].reshape(-1)[own]
                found = gradient[first - start : last - start].double()
                difference = _distance(float((found - expected).abs().max()))
                if difference >= worst:
                    worst, worst_parameter = difference, span.name
                seen[span.name][own] = True
    missing = [name for name, mask in seen.items() if not bool(mask.all())]
    if missing:
        raise RuntimeMismatchError(
            f"no rank updates all of {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        )
    return worst, worst_parameter, sum(mask.numel() for mask in seen.values())


def _distance(difference: float) -> float:
    """Absolute value; infinite for what is not a number, so that it can never pass."""
    return math.inf if math.isnan(difference) else abs(difference)
