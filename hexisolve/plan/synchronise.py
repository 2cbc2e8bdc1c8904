"""The end of a step: gradients summed, weights updated, weights gathered (equation 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hexisolve.cost.collectives import (
    all_reduce_bytes,
    gather_bytes,
    optimizer_s,
    reduce_scatter_bytes,
    ring_traffic,
    shares_of,
)
from hexisolve.plan.plan import Layout, Stage
from hexisolve.plan.price_book import Exchange, PriceBook
from hexisolve.plan.stage_price import stage_blocks

Pairs = dict[tuple[str, str], float]


class StepEnd(NamedTuple):
    """What follows the pipeline.

    Parameters
    ----------
    gradients
        Sums inside every stage, all stages at once.
    copies
        Sums over replicas and over the two copies of tied embeddings.
    weights
        Gathers of the updated weights (ZeRO-1).
    optimizer_s
        The slowest rank's optimizer step.
    """

    gradients: Exchange
    copies: Exchange
    weights: Exchange
    optimizer_s: float

    @property
    def synchronisation_s(self) -> float:
        """Seconds of communication."""
        return self.gradients.seconds + self.copies.seconds + self.weights.seconds


def step_end(book: PriceBook, layout: Layout) -> StepEnd:
    """Price gradient synchronisation and optimizer of a whole layout."""
    cost = book.instance.cost
    gradients: Pairs = {}
    weights: Pairs = {}
    slowest_s = 0.0
    for replica_idx, stage_idx, stage in layout.stages():
        num_stages = len(layout.replicas[replica_idx].stages)
        parameters = stage_parameters(book, stage, stage_idx, num_stages)
        shares = shares_of([rank.state_share for rank in stage.ranks])
        devices = [rank.device for rank in stage.ranks]
        num_ranks = len(devices)
        if stage.zero == 0:
            received = [all_reduce_bytes(num_ranks, parameters, cost.gradient_bytes)] * num_ranks
            gradients |= ring_traffic(devices, received)
        elif stage.zero == 1 or stage.zero3_gradients == "step":
            received = [reduce_scatter_bytes(s, parameters, cost.gradient_bytes) for s in shares]
            gradients |= ring_traffic(devices, received)
        if stage.zero == 1:
            received = [gather_bytes(share, parameters, book.e) for share in shares]
            weights |= ring_traffic(devices, received)
        for share, device in zip(shares, devices, strict=True):
            own = parameters if stage.zero == 0 else share * parameters
            rate = book.instance.cluster.device(device).memory_bytes_per_s
            slowest_s = max(slowest_s, optimizer_s(own, rate, cost.optimizer_traffic_bytes))
    return StepEnd(
        book.exchange(gradients),
        book.exchange(_copies(book, layout)),
        book.exchange(weights),
        slowest_s,
    )


def stage_parameters(book: PriceBook, stage: Stage, stage_idx: int, num_stages: int) -> int:
    """All parameters a stage holds, those of its ends included."""
    key = ("parameters", stage.layers, stage_idx == 0, stage_idx == num_stages - 1)
    known: int | None = book.entries.get(key)
    if known is None:
        blocks = stage_blocks(book.instance, stage, stage_idx, num_stages)
        known = book.entries[key] = sum(block.parameters for block in blocks)
    return known


def _copies(book: PriceBook, layout: Layout) -> Pairs:
    """Gradients of parameters that several stages hold: a ring over the holders.

    Every holder receives ``2 (R - 1) / R W 4`` bytes from the one before it; owners of the same
    part of the parameters (by their state shares) talk to each other.
    """
    if len(layout.replicas) < 2 and not book.instance.model.tied_embeddings:
        return {}
    traffic: Pairs = {}
    for holders, parameters in _shared_blocks(book, layout):
        num_bytes = all_reduce_bytes(len(holders), parameters, book.instance.cost.gradient_bytes)
        owners = [_owners(stage) for stage in holders]
        for position, receivers in enumerate(owners):
            for source, target, share in _overlaps(owners[position - 1], receivers):
                if share > 0:
                    pair = (source, target)
                    traffic[pair] = traffic.get(pair, 0.0) + share * num_bytes
    return traffic


def _shared_blocks(book: PriceBook, layout: Layout) -> Iterator[tuple[list[Stage], int]]:
    """(stages that hold it, parameters) of everything that more than one stage holds."""
    model = book.instance.model
    starts: set[int] = set()
    for _, _, stage in layout.stages():
        starts |= set(stage.layers)
    cuts = sorted(starts)
    for first, stop in pairwise(cuts):
        holders = [s for _, _, s in layout.stages() if s.layers[0] <= first < s.layers[1]]
        if len(holders) > 1:
            yield holders, sum(layer.parameters for layer in model.layers[first:stop])
    firsts = [replica.stages[0] for replica in layout.replicas]
    lasts = [replica.stages[-1] for replica in layout.replicas]
    table = model.hidden_size * model.vocab_size if model.tied_embeddings else 0
    if table:
        apart = [r.stages[-1] for r in layout.replicas if len(r.stages) > 1]
        if len(firsts) + len(apart) > 1:
            yield firsts + apart, table
    if len(firsts) > 1:
        yield firsts, model.embedding_parameters - table
        yield lasts, model.head_parameters + model.final_norm_parameters


def _owners(stage: Stage) -> list[tuple[float, float, str]]:
    """(start, stop, device): the part of every parameter block that each rank sums."""
    weights = [1 if stage.zero == 0 else rank.state_share for rank in stage.ranks]
    owners, start = [], 0.0
    for rank, share in zip(stage.ranks, shares_of(weights), strict=True):
        owners.append((start, start + share, rank.device))
        start += share
    return owners


def _overlaps(
    senders: Sequence[tuple[float, float, str]], receivers: Sequence[tuple[float, float, str]]
) -> Iterator[tuple[str, str, float]]:
    for low, high, source in senders:
        for first, stop, target in receivers:
            yield source, target, min(high, stop) - max(low, first)
