"""Train under a plan with processes on this machine, beside one process if asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import DEFAULT_RING_BLOCKS, compile_plan
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.corpus import Batch, Corpus
from hexisolve.runtime.distributed import check_world_size, refuse_unsupported
from hexisolve.runtime.interpreter import RunSettings
from hexisolve.runtime.optimizer import AdamWSettings
from hexisolve.runtime.processes import Job, StepDone, run_local
from hexisolve.runtime.records import StepRecord, TrainingSummary
from hexisolve.runtime.reference import reference_gradients
from hexisolve.runtime.verify import DTYPES, verify_processes
from hexisolve.runtime.weights import initial_weights

# A ring block below this many tokens costs more to announce than to move.
MIN_BLOCK_TOKENS = 128


@dataclass(frozen=True)
class CorpusBatches:
    """Batches of sequences of fixed lengths out of a corpus.

    Parameters
    ----------
    data
        Folder of text; None for the Python standard library's source.
    """

    data: Path | None
    lengths: tuple[int, ...]
    vocab_size: int
    seed: int = 0

    @cached_property
    def corpus(self) -> Corpus:
        """The files, read when first needed."""
        return Corpus.open(self.data)

    def batch(self, step: int) -> Batch:
        """The sequences of a step."""
        return self.corpus.batch(self.lengths, self.vocab_size, step, self.seed)


def ring_blocks_for(instance: Instance) -> int:
    """Ring blocks to aim at: as many as the cost model assumes, unless they were tiny."""
    longest = max(instance.workload.sequence_lengths)
    return min(DEFAULT_RING_BLOCKS, max(1, longest // MIN_BLOCK_TOKENS))


def num_parameters(architecture: Architecture) -> int:
    """Parameters of a model, tied ones once."""
    shapes = architecture.shapes(range(architecture.num_layers))
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def train(
    instance: Instance,
    plan: Plan,
    *,
    data: Path | None = None,
    num_steps: int,
    dtype: str = "float32",
    learning_rate: float = 3e-4,
    max_gradient_norm: float | None = 1.0,
    seed: int = 0,
    verify: bool = False,
    timeout_s: float = 120.0,
    num_processes: int | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> TrainingSummary:
    """Train with one gloo process per rank of the plan on this machine.

    Parameters
    ----------
    data
        Folder of text, read as bytes; None for the Python standard library's own source.
    dtype
        ``float32``, ``float64`` or ``bfloat16`` (then with a float32 master copy).
    verify
        Also train in one process on the same data and record its loss beside, and compare the
        first step's gradients in float64.
    timeout_s
        After which a rank gives a silent peer up.
    num_processes
        Processes to start; the number of ranks by default, and nothing else is accepted.
    on_step
        Called after every step.

    Raises
    ------
    InstanceError
        When the data cannot be used.
    UnsupportedPlanError
        When the plan or the model uses a part that is not executed.
    RuntimeMismatchError
        When ranks disagree or one is lost; no process is left behind.
    """
    begun_s = time.perf_counter()
    architecture = Architecture.of(instance.model)
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks_for(instance))
    refuse_unsupported(programs)
    check_world_size(programs, len(programs.ranks) if num_processes is None else num_processes)
    batches = CorpusBatches(data, programs.sequence_lengths, architecture.vocab_size, seed)
    first_batch = batches.batch(0)
    settings = RunSettings(
        dtype=DTYPES[dtype],
        seed=seed,
        optimizer=AdamWSettings(learning_rate=learning_rate, max_gradient_norm=max_gradient_norm),
    )
    is_causal = instance.workload.attention == "causal"
    reference = ReferenceTrainer(architecture, settings, is_causal=is_causal) if verify else None
    records: list[StepRecord] = []

    def record(done: StepDone) -> None:
        reference_loss = None if reference is None else reference.step(batches.batch(done.step))
        entry = StepRecord(
            done.step, done.loss, reference_loss, first_batch.num_tokens,
            first_batch.num_tokens / done.step_time_s, done.step_time_s,
        )  # fmt: skip
        records.append(entry)
        if on_step is not None:
            on_step(entry)

    job = Job(
        programs=programs, settings=settings, batches=batches, num_steps=num_steps,
        timeout_s=timeout_s,
    )  # fmt: skip
    run_local(job, record, num_processes=num_processes)
    gradients = None
    if verify:
        gradients = verify_processes(
            instance, plan, seed=seed, timeout_s=timeout_s, batch=first_batch, style="training",
            ring_blocks=programs.ring_blocks,
        )  # fmt: skip
    return TrainingSummary(
        steps=tuple(records),
        num_ranks=len(programs.ranks),
        num_parameters=num_parameters(architecture),
        wall_s=time.perf_counter() - begun_s,
        gradients=gradients,
    )


@dataclass
class ReferenceTrainer:
    """The same training in one process: the reference model and `torch.optim.AdamW`.

    In float32 or wider: bfloat16 runs are compared with a float32 one.
    """

    architecture: Architecture
    settings: RunSettings
    is_causal: bool = True
    weights: dict[str, Tensor] = field(init=False)
    _optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        dtype = self.settings.dtype
        drawn = initial_weights(
            self.architecture, self.architecture.shapes(range(self.architecture.num_layers)),
            self.settings.seed, self.settings.style,
        )  # fmt: skip
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        self.weights = {
            name: weight.to(dtype).to(wide).requires_grad_() for name, weight in drawn.items()
        }
        optimizer = self.settings.optimizer
        self._optimizer = torch.optim.AdamW(
            list(self.weights.values()), lr=optimizer.learning_rate, betas=optimizer.betas,
            eps=optimizer.eps, weight_decay=optimizer.weight_decay,
        )  # fmt: skip

    def step(self, batch: Batch) -> float:
        """One optimizer step; the mean loss before it."""
        loss, gradients = reference_gradients(
            self.architecture, self.weights, batch.tokens, batch.targets,
            is_causal=self.is_causal,
        )  # fmt: skip
        for name, weight in self.weights.items():
            weight.grad = gradients[name]
        max_norm = self.settings.optimizer.max_gradient_norm
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), max_norm)
        self._optimizer.step()
        return loss
