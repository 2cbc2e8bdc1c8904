"""The price of a plan: the one authority on step time and memory (docs/cost-model.md).

``step = longest path of the pipelines + gradient synchronisation + optimizer``, and never less
than any edge needs for the bytes of the whole step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hexisolve.cost.pipeline import DeadlockError, PipelineTimes, step_length_s
from hexisolve.data.cluster import Edge
from hexisolve.data.instance import Instance
from hexisolve.errors import PlanError
from hexisolve.plan.boundary import boundary
from hexisolve.plan.layer_price import Phase
from hexisolve.plan.offload import offload_s
from hexisolve.plan.plan import Pipeline, Plan, Replica
from hexisolve.plan.price_book import PriceBook, price_book
from hexisolve.plan.schedule import parse_operation
from hexisolve.plan.stage_price import StagePrice, add_edges, stage_price, useful_flop
from hexisolve.plan.step_memory import MemoryItems, chunk_memories, stage_memory
from hexisolve.plan.synchronise import StepEnd, step_end
from hexisolve.plan.tokens import chunk_shape

_NUM_BUSIEST = 8


@dataclass(frozen=True)
class StageEvaluation:
    """One stage over the chunks of a step, numbered through the replica's pipelines.

    Parameters
    ----------
    replica_idx, stage_idx
        Which stage.
    forward_s, backward_s
        Seconds of F and B, per chunk.
    prices
        What is behind them, per chunk.
    busy_s
        Seconds in which the stage runs an operation.
    """

    replica_idx: int
    stage_idx: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    prices: tuple[StagePrice, ...]
    busy_s: float

    def breakdown(self) -> Phase:
        """Seconds of the whole step by cause: dense, attention, exchanges, ring, overhead, gather.

        The output projection counts as dense.
        """
        parts = [0.0] * 6
        for price in self.prices:
            for layer in price.layers:
                for phase in (layer.forward, layer.backward):
                    for idx, seconds in enumerate(phase):
                        parts[idx] += seconds
            parts[0] += price.head_forward_s + price.head_backward_s
            parts[5] += price.gather_forward_s + price.gather_backward_s
        return Phase(*parts)


@dataclass(frozen=True)
class DeviceEvaluation:
    """One device over a step.

    Parameters
    ----------
    device, rank
        Its id in the cluster and the number of its rank.
    compute_s
        Seconds in which it computes, its optimizer step left out.
    exchange_s
        Seconds in which its stage waits for bytes.
    idle_s
        The rest of the step: waiting for other ranks, other stages, the end of the step.
    memory
        Bytes at its peak, by item.
    peak_bytes, usable_bytes
        What it needs, and what it may use.
    peak_flop_share
        FLOP of the model (nothing repeated) over step time times datasheet peak.
    """

    device: str
    rank: int
    compute_s: float
    exchange_s: float
    idle_s: float
    memory: MemoryItems
    peak_bytes: int
    usable_bytes: int
    peak_flop_share: float


@dataclass(frozen=True)
class BoundaryEvaluation:
    """Transfers between a stage and the next: seconds per chunk."""

    replica_idx: int
    stage_idx: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


@dataclass(frozen=True)
class ReplicaEvaluation:
    """One replica over a step: its stages, boundaries and the times of every operation."""

    stages: tuple[StageEvaluation, ...]
    boundaries: tuple[BoundaryEvaluation, ...]
    times: PipelineTimes


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The price of a plan.

    Parameters
    ----------
    step_time_s
        Seconds of one optimizer step.
    pipeline_s
        The longest path through the operations of the slowest replica.
    synchronisation_s, optimizer_s
        Gradient and weight collectives; the optimizer.
    replicas
        Every replica with its stages.
    end
        The parts of the step after the pipelines.
    """

    instance: Instance
    plan: Plan
    step_time_s: float
    pipeline_s: float
    synchronisation_s: float
    optimizer_s: float
    replicas: tuple[ReplicaEvaluation, ...]
    end: StepEnd
    edges: dict[Edge, float]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the workload per second."""
        return self.instance.workload.num_tokens / self.step_time_s

    @property
    def stages(self) -> tuple[StageEvaluation, ...]:
        """All stages, replica by replica."""
        return tuple(stage for replica in self.replicas for stage in replica.stages)

    @property
    def boundaries(self) -> tuple[BoundaryEvaluation, ...]:
        """All stage boundaries, replica by replica."""
        return tuple(entry for replica in self.replicas for entry in replica.boundaries)

    @property
    def is_edge_bound(self) -> bool:
        """Whether an edge needs more seconds than the operations do."""
        return self.step_time_s > self.pipeline_s + self.synchronisation_s + self.optimizer_s

    @cached_property
    def edge_seconds(self) -> dict[Edge, float]:
        """Seconds the busiest edges need for the bytes of the step, longest first."""
        book = price_book(self.instance)
        seconds = {edge: book.busiest_s({edge: b}) for edge, b in self.edges.items()}
        busiest = sorted(seconds, key=lambda edge: (-seconds[edge], edge))[:_NUM_BUSIEST]
        return {edge: seconds[edge] for edge in busiest}

    @property
    def bubble_share(self) -> float:
        """Share of the pipeline's time in which stages wait, averaged over the stages."""
        total = sum(replica.times.makespan_s * len(replica.stages) for replica in self.replicas)
        busy = sum(stage.busy_s for stage in self.stages)
        return 1.0 - busy / total if total else 0.0

    @cached_property
    def devices(self) -> tuple[DeviceEvaluation, ...]:
        """Every device that the plan uses, in the order of the ranks."""
        result: list[DeviceEvaluation] = []
        cluster = self.instance.cluster
        for evaluation in self.stages:
            memory = self.stage_memory(evaluation.replica_idx, evaluation.stage_idx)
            stage = self.plan.layout.replicas[evaluation.replica_idx].stages[evaluation.stage_idx]
            exchange_s = sum(price.exchange_s for price in evaluation.prices)
            flop = self._useful_flop(evaluation.replica_idx, evaluation.stage_idx)
            for idx, rank in enumerate(stage.ranks):
                device = cluster.device(rank.device)
                compute_s = sum(price.compute_s[idx] for price in evaluation.prices)
                items = memory[idx]
                result.append(
                    DeviceEvaluation(
                        device=rank.device,
                        rank=len(result),
                        compute_s=compute_s,
                        exchange_s=exchange_s,
                        idle_s=max(self.step_time_s - compute_s - exchange_s, 0.0),
                        memory=items,
                        peak_bytes=items.needed_bytes,
                        usable_bytes=device.memory_bytes - items.reserve,
                        peak_flop_share=flop[idx] / (self.step_time_s * device.dense_peak_flop_per_s),
                    )
                )
        return tuple(result)

    def _useful_flop(self, replica_idx: int, stage_idx: int) -> list[float]:
        """FLOP of the step on every rank of a stage, repeated work left out."""
        book = price_book(self.instance)
        stages = self.plan.layout.replicas[replica_idx].stages
        stage = stages[stage_idx]
        total = [0.0] * len(stage.ranks)
        pipelines = self.plan.batch.replicas[replica_idx].pipelines
        shapes = Counter(chunk_shape(chunk) for p in pipelines for chunk in p.chunks)
        for shape, count in shapes.items():
            flop = useful_flop(book, stage, stage_idx, len(stages), shape)
            total = [a + count * b for a, b in zip(total, flop, strict=True)]
        return total

    def stage_memory(self, replica_idx: int, stage_idx: int) -> tuple[MemoryItems, ...]:
        """Memory of every rank of one stage at its peak."""
        pipelines = self.plan.batch.replicas[replica_idx].pipelines
        book = price_book(self.instance)
        return stage_memory(book, self.plan.layout, replica_idx, stage_idx, pipelines)


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
    replicas = []
    for replica_idx, (replica, batch) in enumerate(
        zip(plan.layout.replicas, plan.batch.replicas, strict=True)
    ):
        replicas.append(_replica(book, replica_idx, replica, batch.pipelines, edges))
    for exchange in (end.gradients, end.copies, end.weights):
        add_edges(edges, exchange)
    pipeline_s = max(replica.times.makespan_s for replica in replicas)
    total_s = pipeline_s + end.synchronisation_s + end.optimizer_s
    return Evaluation(
        instance=instance,
        plan=plan,
        step_time_s=max(total_s, book.busiest_s(edges)),
        pipeline_s=pipeline_s,
        synchronisation_s=end.synchronisation_s,
        optimizer_s=end.optimizer_s,
        replicas=tuple(replicas),
        end=end,
        edges=edges,
    )


def _replica(
    book: PriceBook,
    replica_idx: int,
    replica: Replica,
    pipelines: tuple[Pipeline, ...],
    edges: dict[Edge, float],
) -> ReplicaEvaluation:
    """Price one replica; adds the bytes of its operations to `edges`."""
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
    there = [tuple(row[shape].forward.seconds for shape in shapes) for row in borders]
    back = [tuple(row[shape].backward.seconds for shape in shapes) for row in borders]
    try:
        times = step_length_s(rows, forward_s, backward_s, there, back)
    except DeadlockError as error:
        raise PlanError([f"replica {replica_idx}: {error}"]) from error
    _add_all(edges, prices)
    for row in borders:
        for shape, count in counts.items():
            add_edges(edges, row[shape].forward, count)
            add_edges(edges, row[shape].backward, count)
    return ReplicaEvaluation(
        tuple(
            StageEvaluation(
                replica_idx, p, forward_s[p], backward_s[p], tuple(prices[p]), times.busy_s[p]
            )
            for p in range(num_stages)
        ),
        tuple(BoundaryEvaluation(replica_idx, p, there[p], back[p]) for p in range(num_stages - 1)),
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
