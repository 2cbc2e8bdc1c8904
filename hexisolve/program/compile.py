"""Compile a plan into one program per rank, with every size known before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Plan
from hexisolve.program.rank_program import Channel, Programs, RankProgram
from hexisolve.program.rank_writer import RankWriter
from hexisolve.program.replica_context import ReplicaContext
from hexisolve.program.supported import refuse_unsupported
from hexisolve.program.weights import SHARED, WORLD, StepEnd

DEFAULT_RING_BLOCKS = 64


def compile_plan(
    instance: Instance, plan: Plan, *, ring_blocks: int = DEFAULT_RING_BLOCKS
) -> Programs:
    """Compile `plan`, which `check_plan` has accepted, for all of its ranks.

    Parameters
    ----------
    ring_blocks
        Blocks of KV aimed at per ring; every group with travelling tokens has at least one.

    Raises
    ------
    UnsupportedPlanError
        When the plan uses a part no program can express yet; names all such parts.
    """
    refuse_unsupported(instance, plan)
    if ring_blocks < 1:
        raise ValueError(f"ring_blocks must be at least 1, got {ring_blocks}")
    lengths = instance.workload.sequence_lengths
    replicas = _replica_contexts(instance, plan, ring_blocks)
    holdings = [own for replica in replicas for own in replica.holdings]
    step_end = StepEnd(plan.layout, holdings)
    ranks = tuple(program for replica in replicas for program in _programs(replica, step_end))
    world = tuple(range(len(ranks)))
    channels = [channel for replica in replicas for channel in replica.channels()]
    if step_end.is_sharing:
        channels.append(Channel(SHARED, world))
    if len(world) > 1:
        channels.append(Channel(WORLD, world))
    return Programs(
        instance,
        plan,
        ranks,
        tuple(channels),
        lengths,
        sum(length - 1 for length in lengths),
        ring_blocks,
    )


def _replica_contexts(
    instance: Instance, plan: Plan, ring_blocks: int
) -> tuple[ReplicaContext, ...]:
    sizes = [sum(len(stage.ranks) for stage in replica.stages) for replica in plan.layout.replicas]
    first_ranks = (0, *accumulate(sizes))
    return tuple(
        ReplicaContext(
            instance, idx, replica.stages, batch.pipelines, first_ranks[idx], ring_blocks
        )
        for idx, (replica, batch) in enumerate(
            zip(plan.layout.replicas, plan.batch.replicas, strict=True)
        )
    )


def _programs(replica: ReplicaContext, step_end: StepEnd) -> Iterator[RankProgram]:
    """Programs of a replica's ranks, in order."""
    for stage_idx, stage in enumerate(replica.stages):
        member_idx = 0
        for group_idx, group in enumerate(stage.ring):
            for idx_in_group in range(len(group.ranks)):
                writer = RankWriter(replica, stage_idx, group_idx, idx_in_group, member_idx)
                yield writer.program(step_end)
                member_idx += 1
