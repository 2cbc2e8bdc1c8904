"""Weights as flat vectors: who holds which unit, who updates which part, how gradients meet.

A unit is summed first inside every stage that holds it, then between those stages (replicas; the
two copies of tied embeddings), interval by interval, so that every copy gets the same sum. Cost
equation 9 (docs/cost-model.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from hexisolve.data.model_spec import ModelSpec
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import Layout, Stage
from hexisolve.program.instructions import (
    Gather,
    Instruction,
    Interval,
    Norm,
    Reduce,
    Start,
    Step,
    Transfer,
    Wait,
)
from hexisolve.program.rank_program import Unit

WORLD = "world"
SHARED = "shared_weights"


@dataclass(frozen=True)
class Holding:
    """One stage's copy of one unit.

    Parameters
    ----------
    members
        Global rank numbers of the stage.
    counts
        Elements of each member's share (of the sum in ZeRO-0, of the states otherwise).
    """

    unit: str
    size: int
    zero: Literal[0, 1, 3]
    per_chunk: bool
    channel: str
    members: tuple[int, ...]
    counts: tuple[int, ...]

    def interval(self, member_idx: int) -> Interval:
        """Elements of a member's share."""
        stop = sum(self.counts[: member_idx + 1])
        return stop - self.counts[member_idx], stop


def unit_sizes(model: ModelSpec, layers: Interval) -> tuple[tuple[str, int], ...]:
    """List (unit, parameters) of a stage, in flat order."""
    first, stop = layers
    units = [(f"layer:{idx}", model.layers[idx].parameters) for idx in range(first, stop)]
    if first == 0:
        units.insert(0, ("embedding", model.embedding_parameters))
    if stop == model.num_layers:
        units.append(("final_norm", model.final_norm_parameters))
        if model.tied_embeddings and first != 0:
            units.append(("embedding", model.embedding_parameters))
        if model.head_parameters:
            units.append(("head", model.head_parameters))
    return tuple((name, size) for name, size in units if size)


def stage_holdings(
    model: ModelSpec, stage: Stage, members: Sequence[int], channel: str
) -> tuple[Holding, ...]:
    """List what the ranks of a stage hold."""
    shares = [rank.state_share for rank in stage.ranks] if stage.zero else [1] * len(members)
    return tuple(
        Holding(
            name,
            size,
            stage.zero,
            stage.zero == 3 and stage.zero3_gradients == "chunk",
            channel if len(members) > 1 else "",
            tuple(members),
            split_tokens(size, shares),
        )
        for name, size in unit_sizes(model, stage.layers)
    )


def rank_units(holdings: Sequence[Holding], member_idx: int) -> tuple[Unit, ...]:
    """List the same as one rank's program lists them."""
    return tuple(
        Unit(h.unit, h.size, h.interval(member_idx) if h.zero else (0, h.size)) for h in holdings
    )


def gather_weight(holding: Holding, unit: str = "") -> Gather:
    """All-gather of the weights of a unit (`unit` renames it inside a template)."""
    return Gather(
        unit or holding.unit, "weight", holding.channel, holding.members, holding.counts, "weight"
    )


def reduce_scatter(holding: Holding, unit: str = "") -> Reduce:
    """Sum into shares inside the stage."""
    return Reduce(
        unit or holding.unit,
        "reduce_scatter",
        holding.channel,
        holding.members,
        holding.counts,
        holding.per_chunk,
    )


class StepEnd:
    """Writes gradient synchronisation, norm and update for every rank of a layout.

    Parameters
    ----------
    holdings
        Of every stage, in the order of ranks.
    """

    def __init__(self, layout: Layout, holdings: Sequence[tuple[Holding, ...]]) -> None:
        self.world = tuple(range(len(layout.ranks)))
        self.holders: dict[str, list[Holding]] = {}
        for stage in holdings:
            for holding in stage:
                self.holders.setdefault(holding.unit, []).append(holding)

    @property
    def is_sharing(self) -> bool:
        """Some unit lies in more than one stage."""
        return any(len(holders) > 1 for holders in self.holders.values())

    def instructions(self, own: Sequence[Holding], member_idx: int) -> Iterator[Instruction]:
        """Write the end of the step for one rank of the stage that holds `own`."""
        for holding in own:
            is_shared = len(self.holders[holding.unit]) > 1
            if len(holding.members) > 1 and not holding.per_chunk:
                if holding.zero == 0 and not is_shared:
                    yield Reduce(
                        holding.unit,
                        "all_reduce",
                        holding.channel,
                        holding.members,
                        holding.counts,
                    )
                else:
                    yield reduce_scatter(holding)
        rank = own[0].members[member_idx]
        mine = {holding.unit: holding for holding in own}
        for unit, holders in self.holders.items():
            if unit not in mine or len(holders) < 2:
                continue
            transfers = tuple(self._meetings(mine[unit], member_idx))
            if transfers:
                yield Start(f"sum {unit}", transfers)
                yield Wait(f"sum {unit}")
            if mine[unit].zero == 0 and len(mine[unit].members) > 1:
                yield Gather(
                    unit,
                    "gradient",
                    mine[unit].channel,
                    mine[unit].members,
                    mine[unit].counts,
                    "gradient",
                )
        counted = [
            (holding.unit, *holding.interval(member_idx))
            for holding in own
            if rank in self.holders[holding.unit][0].members
        ]
        channel = WORLD if len(self.world) > 1 else ""
        yield Norm(channel, self.world, tuple(part for part in counted if part[1] < part[2]))
        parts = (
            (unit.name, *unit.share) for unit in rank_units(own, member_idx)
        )  # the whole in ZeRO-0
        yield Step(tuple(part for part in parts if part[1] < part[2]))
        for holding in own:
            if holding.zero == 1 and len(holding.members) > 1:
                yield gather_weight(holding)

    def _meetings(self, own: Holding, member_idx: int) -> Iterator[Transfer]:
        """Let sums of the same elements meet: each sends its own and adds the others'."""
        first, stop = own.interval(member_idx)
        for holding in self.holders[own.unit]:
            if holding.members == own.members:
                continue
            edges = (0, *accumulate(holding.counts))
            for peer, low, high in zip(holding.members, edges[:-1], edges[1:], strict=True):
                start, end = max(first, low), min(stop, high)
                if start >= end:
                    continue
                for is_send in (True, False):
                    yield Transfer(
                        channel=SHARED,
                        peer=peer,
                        is_send=is_send,
                        buffer="gradient",
                        num_elements=end - start,
                        dtype="gradient",
                        rows=((start, end),),
                        unit=own.unit,
                        adds=not is_send,
                    )
