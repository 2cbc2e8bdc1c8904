"""What `evaluate` says of a plan: the step, its stages, its devices, its links."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from hexisolve.cost.pipeline import PipelineTimes
from hexisolve.data.cluster import Edge
from hexisolve.data.instance import Instance
from hexisolve.plan.layer_price import Phase
from hexisolve.plan.plan import Plan
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import StagePrice, useful_flop
from hexisolve.plan.step_memory import MemoryItems, stage_memory
from hexisolve.plan.synchronise import StepEnd
from hexisolve.plan.tokens import chunk_shape

_NUM_BUSIEST = 8
_EDGE_BOUND = 1e-3
_ROUNDING = 1.0 + 1e-12
_MOVING = (2, 3, 5)
"""Parts of a `Phase` in which bytes move: exchanges, ring, gathers."""
_RING = 3


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
        Seconds in which the stage runs an operation, waits for shared edges included.
    """

    replica_idx: int
    stage_idx: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    prices: tuple[StagePrice, ...]
    busy_s: float

    @property
    def edge_wait_s(self) -> float:
        """Part of `busy_s` that is there because other stages use the same edges."""
        operations_s = sum(self.forward_s) + sum(self.backward_s)
        return self.busy_s - operations_s if self.busy_s > operations_s * _ROUNDING else 0.0

    def breakdown(self) -> Phase:
        """Seconds of the whole step by cause: dense, attention, exchanges, ring, overhead, gather.

        The output projection counts as dense. Waits for shared edges are spread over what moves.
        """
        parts = [0.0] * 6
        for price in self.prices:
            for layer in price.layers:
                for phase in (layer.forward, layer.backward):
                    for idx, seconds in enumerate(phase):
                        parts[idx] += seconds
            parts[0] += price.head_forward_s + price.head_backward_s
            parts[5] += price.gather_forward_s + price.gather_backward_s
        if self.edge_wait_s:
            exposed_s = sum(parts[idx] for idx in _MOVING)
            for idx in _MOVING:
                share = parts[idx] / exposed_s if exposed_s else float(idx == _RING)
                parts[idx] += share * self.edge_wait_s
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
    edge_wait_s
        Part of it that is there because stages or replicas share edges.
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
    edge_wait_s: float
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
        """Whether edges that stages or replicas share lengthen the step by 0.1% or more."""
        operations_s = self.pipeline_s - self.edge_wait_s
        alone_s = operations_s + self.synchronisation_s + self.optimizer_s
        return self.step_time_s > alone_s * (1.0 + _EDGE_BOUND)

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
            exchange_s += evaluation.edge_wait_s
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
                        peak_flop_share=flop[idx] / self.step_time_s / device.dense_peak_flop_per_s,
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
