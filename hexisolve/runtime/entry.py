"""One rank of a job that another launcher started, as torchrun does: one process per rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from hexisolve.data.instance import Instance
from hexisolve.errors import RuntimeMismatchError
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import compile_plan
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.distributed import DistributedRun, check_world_size, refuse_unsupported
from hexisolve.runtime.interpreter import RunSettings
from hexisolve.runtime.launch import CorpusBatches, num_parameters, ring_blocks_for
from hexisolve.runtime.optimizer import AdamWSettings
from hexisolve.runtime.processes import join_group
from hexisolve.runtime.records import StepRecord, TrainingSummary
from hexisolve.runtime.verify import DTYPES


def train_rank(
    instance: Instance,
    plan: Plan,
    *,
    data: Path | None = None,
    num_steps: int,
    dtype: str = "float32",
    learning_rate: float = 3e-4,
    max_gradient_norm: float | None = 1.0,
    seed: int = 0,
    timeout_s: float = 120.0,
    device: Literal["cpu", "cuda"] = "cpu",
    on_step: Callable[[StepRecord], None] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> TrainingSummary:
    """Train as the rank that the environment names; `train` does the same with local processes.

    Parameters
    ----------
    data, num_steps, dtype, learning_rate, max_gradient_norm, seed, timeout_s
        As for `hexisolve.runtime.launch.train`.
    device
        ``cuda`` uses NCCL and the device ``LOCAL_RANK``; it is untested.
    on_step
        Called after every step, on rank 0 only.
    environment
        Holds ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.

    Raises
    ------
    InstanceError
        When the data cannot be used.
    UnsupportedPlanError
        When the plan or the model uses a part that is not executed.
    RuntimeMismatchError
        When the job does not fit the plan, or a peer is lost.
    """
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks_for(instance))
    check_world_size(programs, world_size)
    refuse_unsupported(programs)
    architecture = Architecture.of(instance.model)
    batches = CorpusBatches(data, programs.sequence_lengths, architecture.vocab_size, seed)
    batches.batch(0)  # unusable data is told before anybody waits for a peer
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    settings = RunSettings(
        dtype=DTYPES[dtype],
        device=torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu"),
        seed=seed,
        optimizer=AdamWSettings(learning_rate=learning_rate, max_gradient_norm=max_gradient_norm),
    )
    begun_s = time.perf_counter()
    records: list[StepRecord] = []

    def record(entry: StepRecord) -> None:
        records.append(entry)
        if on_step is not None and rank == 0:
            on_step(entry)

    try:
        join_group(rank, world_size, None, settings.device, timeout_s)
        _train(programs, rank, settings, batches, num_steps, timeout_s, record)
        dist.destroy_process_group()
    except RuntimeError as error:
        # torch.distributed reports a lost or silent peer this way.
        reason = str(error).strip().split("\n")[0]
        raise RuntimeMismatchError(f"rank {rank}: lost contact to a peer: {reason}") from error
    return TrainingSummary(
        steps=tuple(records),
        num_ranks=world_size,
        num_parameters=num_parameters(architecture),
        wall_s=time.perf_counter() - begun_s,
    )


def _train(
    programs: Programs,
    rank: int,
    settings: RunSettings,
    batches: CorpusBatches,
    num_steps: int,
    timeout_s: float,
    record: Callable[[StepRecord], None],
) -> None:
    run = DistributedRun(programs, rank, settings, timeout_s)
    for step in range(num_steps):
        batch = batches.batch(step)
        begun_s = time.perf_counter()
        loss = run.step(batch)
        step_time_s = time.perf_counter() - begun_s
        tokens_per_s = batch.num_tokens / step_time_s
        record(StepRecord(step, loss, None, batch.num_tokens, tokens_per_s, step_time_s))
