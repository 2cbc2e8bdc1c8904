"""The distributed executor: one process per rank over torch.distributed.

Every channel of the programs is a process group of its own (NCCL ignores tags), created on all
ranks in one order and with our time-out. gloo is tested; NCCL is written and untested.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError, UnsupportedPlanError
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.corpus import Batch
from hexisolve.runtime.interpreter import Interpreter, RunSettings
from hexisolve.runtime.requests import (
    AllGather,
    AllToAll,
    Collective,
    Complete,
    Message,
    Post,
    Request,
    Sum,
    ranges,
)


def refuse_unsupported(programs: Programs) -> None:
    """Name what only the virtual executor runs.

    Raises
    ------
    UnsupportedPlanError
        For ZeRO-3.
    """
    stages = sorted(
        {(program.replica, program.stage) for program in programs.ranks if program.zero == 3}
    )
    if stages:
        where = ", ".join(f"stage {stage} of replica {replica}" for replica, stage in stages)
        raise UnsupportedPlanError(
            f"ZeRO-3 ({where}) is not run by the distributed executor; "
            "plan with `zero: [0, 1]`, or prove the plan with `hexisolve verify`"
        )


def check_world_size(programs: Programs, num_processes: int) -> None:
    """Refuse a job with other than one process per rank.

    Raises
    ------
    RuntimeMismatchError
        With both numbers and the way to start the right one.
    """
    needed = len(programs.ranks)
    if num_processes != needed:
        raise RuntimeMismatchError(
            f"the plan has {needed} ranks, {num_processes} "
            f"{'process was' if num_processes == 1 else 'processes were'} started; "
            f"start one per rank (torchrun --nproc-per-node {needed} on one host)"
        )


class Communicator:
    """The process groups of all channels, and how requests become torch.distributed calls.

    The default process group must exist; every rank constructs this at the same time.
    """

    def __init__(self, programs: Programs, rank: int, timeout_s: float) -> None:
        self.rank = rank
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._works: dict[str, list[dist.Work]] = {}
        for channel in programs.channels:
            # All ranks create all groups in one order; local creation was seen to hang.
            group = dist.new_group(
                ranks=list(channel.members), timeout=timedelta(seconds=timeout_s)
            )
            if rank in channel.members:
                self._groups[channel.name] = group
                self._members[channel.name] = channel.members

    def serve(self, stream: Iterable[Request]) -> None:
        """Carry out the requests of a step in order."""
        for request in stream:
            if isinstance(request, Post):
                self._post(request)
            elif isinstance(request, Complete):
                # Dropping the handle of an isend would cancel it: they are kept until here.
                for work in self._works.pop(request.handle):
                    work.wait()
            else:
                self.run_collective(request)

    def run_collective(self, request: Collective) -> None:
        """Carry out one collective and wait for it."""
        group = self._groups[request.channel]
        if isinstance(request, AllToAll):
            dist.all_to_all_single(
                request.receive, request.send, list(request.receive_elements),
                list(request.send_elements), group=group,
            )  # fmt: skip
        elif isinstance(request, Sum):
            if request.op == "all_reduce":
                dist.all_reduce(request.tensor, group=group)
            else:
                self._reduce_scatter(request, group)
        else:
            self._all_gather(request, group)

    def _post(self, request: Post) -> None:
        by_channel: dict[str, list[Message]] = {}
        for message in request.messages:
            # A message without elements is known to be empty at both ends.
            if message.payload.numel():
                by_channel.setdefault(message.channel, []).append(message)
        works: list[dist.Work] = []
        for channel, messages in by_channel.items():
            group = self._groups[channel]
            works += dist.batch_isend_irecv(
                [
                    dist.P2POp(
                        dist.isend if message.is_send else dist.irecv,
                        message.payload, message.peer, group,
                    )
                    for message in messages
                ]
            )  # fmt: skip
        self._works[request.handle] = works

    def _reduce_scatter(self, request: Sum, group: dist.ProcessGroup) -> None:
        """Uneven reduce-scatter: exchange the ranges, add them in member order."""
        member_idx = request.members.index(self.rank)
        own = ranges(request.counts)[member_idx]
        num_own = request.counts[member_idx]
        received = request.tensor.new_empty(num_own * len(request.members))
        dist.all_to_all_single(
            received, request.tensor, [num_own] * len(request.members), list(request.counts),
            group=group,
        )  # fmt: skip
        total = request.tensor.new_zeros(num_own)
        for part in received.view(len(request.members), num_own):
            total += part
        request.tensor[own] = total

    def _all_gather(self, request: AllGather, group: dist.ProcessGroup) -> None:
        """Uneven all-gather as one broadcast per member (gloo has no uneven one)."""
        for member, place in zip(request.members, ranges(request.counts), strict=True):
            part = request.tensor[place]
            if part.numel():
                dist.broadcast(part, src=member, group=group)

    def compare_digest(self, digest: str) -> None:
        """All ranks must hold the same programs.

        Raises
        ------
        RuntimeMismatchError
            Naming the ranks that differ from rank 0.
        """
        own = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8, device=self._device)
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own)
        others = [rank for rank, tensor in enumerate(found) if not torch.equal(tensor, found[0])]
        if others:
            raise RuntimeMismatchError(
                f"rank {', '.join(map(str, others))} compiled other programs than rank 0: "
                "all ranks need the same plan file and the same version of hexisolve"
            )

    def self_test(self) -> None:
        """Run the collectives on known answers before anything depends on them.

        Raises
        ------
        RuntimeMismatchError
            Naming the collective and the channel.
        """
        world = tuple(range(dist.get_world_size()))
        for channel, members in self._members.items():
            self._test_all_to_all(channel, members)
            self._test_sum(channel, members)
        self._test_point_to_point(world)

    @property
    def _device(self) -> torch.device:
        is_nccl = dist.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    def _test_all_to_all(self, channel: str, members: tuple[int, ...]) -> None:
        """Member i sends ``(i + 2 j) % 3`` elements of value ``100 i + j`` to member j."""
        own_idx, indices = members.index(self.rank), range(len(members))
        send_elements = tuple((own_idx + 2 * other) % 3 for other in indices)
        receive_elements = tuple((other + 2 * own_idx) % 3 for other in indices)
        send = _repeated([100 * own_idx + other for other in indices], send_elements)
        expected = _repeated([100 * other + own_idx for other in indices], receive_elements)
        received = torch.full_like(expected, -1.0)
        send, received = send.to(self._device), received.to(self._device)
        self.run_collective(
            AllToAll(channel, members, send, send_elements, received, receive_elements)
        )
        _expect("all_to_all_single", channel, received, expected)

    def _test_sum(self, channel: str, members: tuple[int, ...]) -> None:
        tensor = torch.tensor([self.rank + 1.0, 1.0], dtype=torch.float64, device=self._device)
        self.run_collective(Sum(channel, members, "all_reduce", tensor, (2,)))
        expected = torch.tensor([sum(members) + len(members), len(members)], dtype=torch.float64)
        _expect("all_reduce", channel, tensor, expected)

    def _test_point_to_point(self, world: tuple[int, ...]) -> None:
        """Everyone passes its number to the next rank."""
        if len(world) < 2:
            return
        after, before = (self.rank + 1) % len(world), (self.rank - 1) % len(world)
        send = torch.full((3,), float(self.rank), device=self._device)
        received = torch.full((3,), -1.0, device=self._device)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, send, after), dist.P2POp(dist.irecv, received, before)]
        )
        for work in works:
            work.wait()
        _expect("send and receive", "all ranks", received, torch.full((3,), float(before)))


def _repeated(values: list[int], counts: tuple[int, ...]) -> Tensor:
    return torch.tensor(
        [float(value) for value, count in zip(values, counts, strict=True) for _ in range(count)],
        dtype=torch.float64,
    )


def _expect(what: str, channel: str, found: Tensor, expected: Tensor) -> None:
    if not torch.equal(found.cpu(), expected):
        raise RuntimeMismatchError(
            f"self-test of {what} on {channel}: got {found.tolist()}, expected "
            f"{expected.tolist()}; the communication backend cannot be trusted"
        )


class DistributedRun:
    """One rank of a plan in this process, across steps.

    Raises
    ------
    UnsupportedPlanError
        When the plan needs what this executor does not run.
    RuntimeMismatchError
        When ranks disagree, or a collective fails its known answers.
    """

    def __init__(
        self, programs: Programs, rank: int, settings: RunSettings, timeout_s: float
    ) -> None:
        refuse_unsupported(programs)
        check_world_size(programs, dist.get_world_size())
        self.interpreter = Interpreter(programs, rank, settings)
        self.communicator = Communicator(programs, rank, timeout_s)
        self.communicator.compare_digest(programs.digest)
        self.communicator.self_test()

    def step(self, batch: Batch) -> float:
        """One optimizer step; the global mean loss."""
        self.communicator.serve(self.interpreter.run_step(batch))
        return self.interpreter.loss
