"""Start one process per rank on this machine, watch them, and end all when one fails."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from hexisolve.errors import HexisolveError, RuntimeMismatchError
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.corpus import Batch
from hexisolve.runtime.distributed import DistributedRun, check_world_size, refuse_unsupported
from hexisolve.runtime.interpreter import RunSettings, WeightRange
from hexisolve.runtime.segments import warm_up

StartMethod = Literal["fork", "spawn"]
# After the first failure the others get this long to tell what they saw, then they are ended.
GRACE_S = 2.0
END_S = 3.0


class Batches(Protocol):
    """Where the sequences of a step come from; the same on every rank."""

    def batch(self, step: int) -> Batch:
        """The sequences of step `step` (from 0)."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every rank is told.

    Parameters
    ----------
    timeout_s
        Of every process group: a rank that waits longer for another gives up.
    """

    programs: Programs
    settings: RunSettings
    batches: Batches
    num_steps: int
    timeout_s: float = 120.0


@dataclass(frozen=True)
class StepDone:
    """Told by rank 0 after every step."""

    step: int
    loss: float
    step_time_s: float


@dataclass(frozen=True)
class RankDone:
    """Told by every rank at the end.

    Parameters
    ----------
    gradients
        What the rank's last STEP saw, as numpy arrays, when the job keeps gradients.
    """

    rank: int
    gradients: dict[WeightRange, Any]


@dataclass(frozen=True)
class RankFailed:
    """Told by a rank that cannot go on.

    Parameters
    ----------
    is_own_fault
        False when the rank only noticed that another one was lost.
    """

    rank: int
    message: str
    is_own_fault: bool


def run_local(
    job: Job,
    on_step: Callable[[StepDone], None] | None = None,
    *,
    start_method: StartMethod | None = None,
    num_processes: int | None = None,
) -> tuple[RankDone, ...]:
    """Run a job with one process per rank on this machine.

    Parameters
    ----------
    on_step
        Called in this process after every step.
    start_method
        ``fork`` (0.2 s) on CPU, ``spawn`` (5 s) on CUDA, by default.
    num_processes
        Processes to start; must be the number of ranks, which is the default.

    Raises
    ------
    UnsupportedPlanError
        When the plan uses a part that the distributed executor does not run.
    RuntimeMismatchError
        When a rank fails or is lost; names it. No process is left behind.
    """
    refuse_unsupported(job.programs)
    num_ranks = len(job.programs.ranks)
    check_world_size(job.programs, num_ranks if num_processes is None else num_processes)
    method = start_method or ("spawn" if job.settings.device.type == "cuda" else "fork")
    context = _context(method)
    if method == "fork":
        warm_up()
    watched = _Watched()
    # A file, not a server: a server's threads in this process would make forking unsafe, and a
    # port can be taken by somebody else.
    folder = tempfile.TemporaryDirectory(prefix="hexisolve-")
    store_file = str(Path(folder.name) / "store")
    try:
        for rank in range(num_ranks):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_rank, args=(rank, job, store_file, sending), daemon=True,
                name=f"hexisolve rank {rank}",
            )  # fmt: skip
            process.start()
            sending.close()
            watched.processes.append(process)
            watched.connections[receiving] = rank
        return _watch(job, watched, on_step)
    finally:
        _end(watched.processes)
        for connection in watched.connections:
            connection.close()
        folder.cleanup()


def _context(method: StartMethod) -> SpawnContext | ForkContext:
    # Two calls, so that each has its own type (the common base class has no `Process`).
    if method == "spawn":
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("fork")


@dataclass
class _Watched:
    """The processes of a job and what is known of them.

    Parameters
    ----------
    silent
        Ranks whose connection is closed and read to its end: they will tell nothing more.
    """

    processes: list[BaseProcess] = field(default_factory=list)
    connections: dict[Connection, int] = field(default_factory=dict)
    done: dict[int, RankDone] = field(default_factory=dict)
    failed: dict[int, RankFailed] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def lost(self) -> dict[int, int]:
        """Rank -> exit code of processes that ended without a word."""
        found = {}
        for rank in self.silent - set(self.done) - set(self.failed):
            code = self.processes[rank].exitcode
            if code is not None:
                found[rank] = code
        return found


def _watch(
    job: Job, watched: _Watched, on_step: Callable[[StepDone], None] | None
) -> tuple[RankDone, ...]:
    num_ranks = len(watched.processes)
    open_connections = dict(watched.connections)
    give_up_at: float | None = None
    while len(watched.done) < num_ranks:
        now = time.monotonic()
        if give_up_at is not None and now >= give_up_at:
            break
        left_s = None if give_up_at is None else give_up_at - now
        ready = wait(list(open_connections), timeout=left_s)
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                message = connection.recv()
            except (EOFError, ConnectionResetError):
                # The process is ending; its exit code tells why.
                rank = open_connections.pop(connection)
                watched.silent.add(rank)
                watched.processes[rank].join(END_S)
                continue
            if isinstance(message, StepDone) and on_step is not None:
                on_step(message)
            elif isinstance(message, RankDone):
                watched.done[message.rank] = message
            elif isinstance(message, RankFailed):
                watched.failed[message.rank] = message
        if give_up_at is None and (watched.failed or watched.lost()):
            give_up_at = time.monotonic() + GRACE_S
        if not open_connections:
            break
    if watched.failed or watched.lost():
        raise RuntimeMismatchError(_failure(job, watched))
    return tuple(watched.done[rank] for rank in range(num_ranks))


def _failure(job: Job, watched: _Watched) -> str:
    """Who failed first and how, as far as can be told."""

    def called(rank: int) -> str:
        return f"rank {rank} ({job.programs.ranks[rank].device})"

    lost = watched.lost()
    guilty = [failed for failed in watched.failed.values() if failed.is_own_fault]
    if lost:
        told = [f"{called(rank)} {_exit_text(code)}" for rank, code in sorted(lost.items())]
    elif guilty:
        told = [f"{called(failed.rank)}: {failed.message}" for failed in guilty]
    else:
        silent = [
            rank
            for rank in range(len(watched.processes))
            if rank not in watched.failed and rank not in watched.done
        ]
        told = [f"{called(rank)} did not answer within {job.timeout_s:g} s" for rank in silent]
        if not told:
            told = [
                f"{called(failed.rank)}: {failed.message}" for failed in watched.failed.values()
            ]
    return "; ".join(told) + "; all other ranks were stopped"


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end(processes: list[BaseProcess]) -> None:
    """Leave no process behind: ask, then kill (a stopped process hears only that)."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + END_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _run_rank(rank: int, job: Job, store_file: str, connection: Connection) -> None:
    """Life of one rank's process."""
    # Ctrl-C reaches the whole foreground group; the parent alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _die_with_parent()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    try:
        world_size = len(job.programs.ranks)
        store = FileStore(store_file, world_size)
        join_group(rank, world_size, store, job.settings.device, job.timeout_s)
        run = DistributedRun(job.programs, rank, job.settings, job.timeout_s)
        for step in range(job.num_steps):
            batch = job.batches.batch(step)
            begun_s = time.perf_counter()
            loss = run.step(batch)
            if rank == 0:
                connection.send(StepDone(step, loss, time.perf_counter() - begun_s))
        gradients = {
            part: gradient.cpu().numpy()
            for part, gradient in run.interpreter.step_gradients.items()
        }
        connection.send(RankDone(rank, gradients))
        dist.destroy_process_group()
    except (HexisolveError, RuntimeError, OSError) as error:
        # torch.distributed reports a lost or silent peer as RuntimeError (DistError included).
        is_own_fault = isinstance(error, HexisolveError)
        # Nobody listens any more when the parent is gone.
        with contextlib.suppress(OSError):
            connection.send(RankFailed(rank, str(error).strip().split("\n")[0], is_own_fault))
            connection.close()
        # Destructors of broken process groups may wait for peers that are gone.
        os._exit(1)


def _die_with_parent() -> None:
    """Linux: this process is killed when the one that started it is (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def join_group(
    rank: int, world_size: int, store: Store | None, device: torch.device, timeout_s: float
) -> None:
    """Create the default process group: gloo on CPU, NCCL (untested) on CUDA.

    Parameters
    ----------
    store
        None reads the environment that torchrun sets.
    """
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size,
        init_method=None if store is not None else "env://",
        timeout=timedelta(seconds=timeout_s),
    )  # fmt: skip
