"""The price of a plan: the one authority on step time and memory (docs/cost-model.md).

``step = longest path of the pipelines + gradient synchronisation + optimizer``, where operations
wait for edges that several stages want, and never less than any edge needs for the bytes of the
whole step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from hexisolve.cost.pipeline import DeadlockError, PipelineTimes, step_length_s
from hexisolve.data.cluster import Edge
from hexisolve.data.instance import Instance
from hexisolve.errors import PlanError
from hexisolve.plan.boundary import boundary
from hexisolve.plan.edge_waits import PricedReplica, times_with_waits
from hexisolve.plan.evaluation import (
    BoundaryEvaluation,
    DeviceEvaluation,
    Evaluation,
    ReplicaEvaluation,
    StageEvaluation,
)
from hexisolve.plan.offload import offload_s
from hexisolve.plan.plan import Pipeline, Plan, Replica
from hexisolve.plan.price_book import Exchange, PriceBook, add_edges, price_book
from hexisolve.plan.schedule import parse_operation
from hexisolve.plan.stage_price import StagePrice, stage_price
from hexisolve.plan.step_memory import chunk_memories
from hexisolve.plan.synchronise import step_end
from hexisolve.plan.tokens import chunk_shape

__all__ = [
    "BoundaryEvaluation",
    "DeviceEvaluation",
    "Evaluation",
    "ReplicaEvaluation",
    "StageEvaluation",
    "evaluate",
]


def evaluate(instance: Instance, plan: Plan) -> Evaluation:
    """Price a plan, whoever made it.

    The plan must be well formed (`check_plan`); one that is only too large for memory, or that
    uses what the workload forbids, is priced all the same.

    Raises
    ------
    PlanError
        When the schedule deadlocks.
    """
    book = price_book(instance)
    end = step_end(book, plan.layout)
    edges: dict[Edge, float] = {}
    priced = [
        _priced(book, replica_idx, replica, batch.pipelines, edges)
        for replica_idx, (replica, batch) in enumerate(
            zip(plan.layout.replicas, plan.batch.replicas, strict=True)
        )
    ]
    for exchange in (end.gradients, end.copies, end.weights):
        add_edges(edges, exchange)
    times = times_with_waits(book, priced)
    pipeline_s = max(own.makespan_s for own in times)
    total_s = pipeline_s + end.synchronisation_s + end.optimizer_s
    return Evaluation(
        instance=instance,
        plan=plan,
        step_time_s=max(total_s, book.busiest_s(edges)),
        pipeline_s=pipeline_s,
        edge_wait_s=pipeline_s - max(own.times.makespan_s for own in priced),
        synchronisation_s=end.synchronisation_s,
        optimizer_s=end.optimizer_s,
        replicas=tuple(
            _replica(replica_idx, *both)
            for replica_idx, both in enumerate(zip(priced, times, strict=True))
        ),
        end=end,
        edges=edges,
    )


def _priced(
    book: PriceBook,
    replica_idx: int,
    replica: Replica,
    pipelines: tuple[Pipeline, ...],
    edges: dict[Edge, float],
) -> PricedReplica:
    """Price one replica alone; adds the bytes of its operations to `edges`."""
    num_stages = len(replica.stages)
    shapes = [chunk_shape(chunk) for pipeline in pipelines for chunk in pipeline.chunks]
    counts = Counter(shapes)
    prices: list[list[StagePrice]] = [[] for _ in replica.stages]
    waits: list[list[float]] = [[] for _ in replica.stages]
    rows: list[list[tuple[str, int]]] = [[] for _ in replica.stages]
    first = 0
    for pipeline in pipelines:
        stop = first + len(pipeline.chunks)
        for stage_idx, stage in enumerate(replica.stages):
            known: dict[tuple[object, ...], StagePrice] = {}
            for shape, recompute in zip(
                shapes[first:stop], pipeline.recompute[stage_idx], strict=True
            ):
                key = (shape, *recompute.items())
                price = known.get(key)
                if price is None:
                    price = stage_price(book, stage, stage_idx, num_stages, shape, recompute)
                    known[key] = price
                prices[stage_idx].append(price)
            waits[stage_idx] += _offload_s(book, replica, stage_idx, pipeline)
            for kind, number in _parsed(pipeline.schedule[stage_idx]):
                rows[stage_idx].append((kind, number + first))
        first = stop
    borders = [
        {
            shape: boundary(book, replica.stages[p], replica.stages[p + 1], p, shape)
            for shape in counts
        }
        for p in range(num_stages - 1)
    ]
    forward_s = [
        tuple(max(price.forward_s, wait) for price, wait in zip(*pair, strict=True))
        for pair in zip(prices, waits, strict=True)
    ]
    backward_s = [
        tuple(max(price.backward_s, wait) for price, wait in zip(*pair, strict=True))
        for pair in zip(prices, waits, strict=True)
    ]
    there = [tuple(row[shape].forward for shape in shapes) for row in borders]
    back = [tuple(row[shape].backward for shape in shapes) for row in borders]
    try:
        times = step_length_s(rows, forward_s, backward_s, _seconds(there), _seconds(back))
    except DeadlockError as error:
        raise PlanError([f"replica {replica_idx}: {error}"]) from error
    _add_all(edges, prices)
    for row in borders:
        for shape, count in counts.items():
            add_edges(edges, row[shape].forward, count)
            add_edges(edges, row[shape].backward, count)
    return PricedReplica(rows, prices, forward_s, backward_s, there, back, times)


def _seconds(exchanges: Sequence[Sequence[Exchange]]) -> list[tuple[float, ...]]:
    return [tuple(exchange.seconds for exchange in row) for row in exchanges]


def _replica(replica_idx: int, priced: PricedReplica, times: PipelineTimes) -> ReplicaEvaluation:
    """What there is to say of a priced replica once its times are known."""
    there, back = _seconds(priced.transfers_forward), _seconds(priced.transfers_backward)
    return ReplicaEvaluation(
        tuple(
            StageEvaluation(
                replica_idx,
                p,
                tuple(priced.forward_s[p]),
                tuple(priced.backward_s[p]),
                tuple(prices),
                times.busy_s[p],
            )
            for p, prices in enumerate(priced.prices)
        ),
        tuple(
            BoundaryEvaluation(replica_idx, p, *both)
            for p, both in enumerate(zip(there, back, strict=True))
        ),
        times,
    )


def _offload_s(
    book: PriceBook, replica: Replica, stage_idx: int, pipeline: Pipeline
) -> list[float]:
    """Per chunk, seconds of moving offloaded activations one way."""
    if not pipeline.offload or not any(pipeline.offload[stage_idx]):
        return [0.0] * len(pipeline.chunks)
    stage = replica.stages[stage_idx]
    devices = [rank.device for rank in stage.ranks]
    memories = chunk_memories(book, stage, stage_idx, len(replica.stages), pipeline)
    return [offload_s(book, devices, memory.offloaded) for memory in memories]


@lru_cache(maxsize=4096)
def _parsed(row: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    return tuple(parse_operation(operation) for operation in row)


def _add_all(edges: dict[Edge, float], prices: list[list[StagePrice]]) -> None:
    """Add the bytes of all operations, equal ones in one go."""
    for row in prices:
        counts: dict[int, int] = {}
        for price in row:
            counts[id(price)] = counts.get(id(price), 0) + 1
        for price in {id(price): price for price in row}.values():
            for edge, num_bytes in price.edges.items():
                edges[edge] = edges.get(edge, 0.0) + counts[id(price)] * num_bytes
