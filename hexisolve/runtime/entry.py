"""One rank's process under torchrun: ``torchrun ... -m hexisolve.runtime.entry PLAN``.

Rank 0 writes one JSON line per step to standard output and a closing summary; everything else
goes to standard error. Exit code 0, 2 for bad input or a job that does not fit the plan, 1 when
a peer is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hexisolve.errors import HexisolveError, RuntimeMismatchError
from hexisolve.plan.io import read_plan
from hexisolve.program.compile import compile_plan
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.distributed import DistributedRun, check_world_size, refuse_unsupported
from hexisolve.runtime.interpreter import RunSettings
from hexisolve.runtime.launch import CorpusBatches, ring_blocks_for
from hexisolve.runtime.optimizer import AdamWSettings
from hexisolve.runtime.processes import join_group
from hexisolve.runtime.verify import DTYPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _run(options, os.environ)
    except HexisolveError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except RuntimeError as error:
        # torch.distributed reports a lost or silent peer this way.
        reason = str(error).strip().split("\n")[0]
        sys.stderr.write(f"rank {os.environ.get('RANK')}: lost contact to a peer: {reason}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node N -m hexisolve.runtime.entry",
        description="Train under a plan, one process per rank.",
    )
    parser.add_argument("plan", type=Path, help="plan file, written by hexisolve solve")
    parser.add_argument("--data", type=Path, help="folder of text (default: the standard library)")
    parser.add_argument("--steps", type=int, required=True, help="optimizer steps")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--max-gradient-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a silent peer gets")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cuda uses NCCL and is untested")  # fmt: skip
    return parser


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        raise RuntimeMismatchError(
            "RANK and WORLD_SIZE are not set: start with torchrun, or use `hexisolve run`"
        )
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    stored = read_plan(options.plan, reprice=False)
    if rank == 0:
        for warning in stored.warnings:
            sys.stderr.write(f"{options.plan}: {warning}\n")
    instance, plan = stored.instance, stored.plan
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks_for(instance))
    check_world_size(programs, world_size)
    refuse_unsupported(programs)
    vocab_size = Architecture.of(instance.model).vocab_size
    batches = CorpusBatches(options.data, programs.sequence_lengths, vocab_size, options.seed)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(environment.get("LOCAL_RANK", "0")))
    settings = RunSettings(
        dtype=DTYPES[options.dtype],
        device=device,
        seed=options.seed,
        optimizer=AdamWSettings(
            learning_rate=options.learning_rate, max_gradient_norm=options.max_gradient_norm
        ),
    )
    join_group(rank, world_size, None, device, options.timeout)
    run = DistributedRun(programs, rank, settings, options.timeout)
    begun_s = time.perf_counter()
    loss = float("nan")
    for step in range(options.steps):
        batch = batches.batch(step)
        step_begun_s = time.perf_counter()
        loss = run.step(batch)
        step_time_s = time.perf_counter() - step_begun_s
        if rank == 0:
            _write(
                {
                    "step": step,
                    "loss": loss,
                    "tokens": batch.num_tokens,
                    "tokens_per_s": batch.num_tokens / step_time_s,
                    "step_time_s": step_time_s,
                }
            )
    if rank == 0:
        wall_s = time.perf_counter() - begun_s
        _write({"steps": options.steps, "loss": loss, "num_ranks": world_size, "wall_s": wall_s})
    dist.destroy_process_group()


def _write(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
