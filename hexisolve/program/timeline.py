"""What happened when: the clock's answer, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from hexisolve.program.layer_plays import LayerRun
from hexisolve.program.played import Span

_LOSS_KINDS = {"loss": "F", "loss_backward": "B"}


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's own spans; those inside of layers are in the layer runs of its stage.

    Parameters
    ----------
    stage_number
        The stage, counted over all replicas.
    end_s
        When its program ends.
    """

    rank: int
    device: str
    replica: int
    stage: int
    stage_number: int
    end_s: float
    own_spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """How one device spends a step.

    Parameters
    ----------
    busy_s
        It computes.
    exchange_s
        It waits for bytes that are on their way.
    idle_s
        It waits for other ranks, or has ended.
    """

    device: str
    rank: int
    busy_s: float
    exchange_s: float
    idle_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step of a plan as the clock played it.

    Parameters
    ----------
    step_time_s
        When the last rank ends.
    ranks
        Every rank, in the order of numbers.
    runs
        Every layer of every stage, in the order they ran; empty after a flat play.
    num_plays
        Layers that had to be played; the other runs repeat them.
    """

    step_time_s: float
    ranks: tuple[RankTimes, ...]
    runs: tuple[LayerRun, ...]
    num_plays: int

    def spans(self, rank: int) -> Iterator[Span]:
        """What a rank did, in order of time."""
        times = self.ranks[rank]
        found = list(times.own_spans)
        for run in self._stage_runs[times.stage_number]:
            shift_s = run.start_s
            found += [
                Span(s.start_s + shift_s, s.end_s + shift_s, s.kind, run.chunk, run.layer)
                for s in run.play.spans[rank]
            ]
        yield from sorted(found, key=lambda span: span.start_s)

    @cached_property
    def _stage_runs(self) -> list[list[LayerRun]]:
        runs: list[list[LayerRun]] = [[] for _ in range(self.num_stages)]
        for run in self.runs:
            runs[run.stage].append(run)
        return runs

    @property
    def num_stages(self) -> int:
        """Stages of all replicas."""
        return 1 + max(times.stage_number for times in self.ranks)

    def stage_runs(self, stage_number: int) -> list[LayerRun]:
        """Layers of one stage, in the order they ran."""
        return self._stage_runs[stage_number]

    @cached_property
    def devices(self) -> tuple[DeviceTimes, ...]:
        """Seconds that every device computes, exchanges and idles; they sum to the step."""
        result = []
        per_play: dict[int, dict[int, tuple[float, float]]] = {}
        for times in self.ranks:
            busy_s, exchange_s = _sums(times.own_spans)
            for run in self._stage_runs[times.stage_number]:
                known = per_play.setdefault(id(run.play), {})
                if times.rank not in known:
                    known[times.rank] = _sums(run.play.spans[times.rank])
                busy_s += known[times.rank][0]
                exchange_s += known[times.rank][1]
            idle_s = max(self.step_time_s - busy_s - exchange_s, 0.0)
            result.append(DeviceTimes(times.device, times.rank, busy_s, exchange_s, idle_s))
        return tuple(result)

    @cached_property
    def bubble_share(self) -> float:
        """Share of the pipelines' time in which stages run no layer, averaged over the stages."""
        busy_s = total_s = 0.0
        for replica in {times.replica for times in self.ranks}:
            numbers = sorted({t.stage_number for t in self.ranks if t.replica == replica})
            operations = [entry for number in numbers for entry in self.operations(number)]
            total_s += max((end_s for _, end_s, _, _ in operations), default=0.0) * len(numbers)
            busy_s += sum(end_s - start_s for start_s, end_s, _, _ in operations)
        return 1.0 - busy_s / total_s if total_s else 0.0

    def operations(self, stage_number: int) -> list[tuple[float, float, str, int]]:
        """(start, end, ``F`` or ``B``, chunk) of a stage, loss included, in order of time."""
        parts = [
            (run.start_s, run.end_s, "F" if run.phase == "forward" else "B", run.chunk)
            for run in self._stage_runs[stage_number]
        ]
        for times in self.ranks:
            if times.stage_number == stage_number:
                parts += [
                    (span.start_s, span.end_s, _LOSS_KINDS[span.kind], span.chunk)
                    for span in times.own_spans
                    if span.kind in _LOSS_KINDS
                ]
        found: dict[tuple[str, int], tuple[float, float]] = {}
        for start_s, end_s, kind, chunk in parts:
            first_s, last_s = found.get((kind, chunk), (start_s, end_s))
            found[kind, chunk] = min(first_s, start_s), max(last_s, end_s)
        return sorted((*times_s, *operation) for operation, times_s in found.items())

    def text(self, width: int = 100) -> str:
        """A picture in text: one line per stage, forward of chunk 3 as ``3``, backward as ``d``."""
        from hexisolve.program.trace import text_timeline

        return text_timeline(self, width)

    def write_trace(
        self, path: str | Path, *, detail: Literal["layer", "instruction"] = "layer"
    ) -> None:
        """Write a JSON trace that https://ui.perfetto.dev opens: a row per rank, by stage."""
        from hexisolve.program.trace import write_trace

        write_trace(self, Path(path), detail)


def _sums(spans: Iterable[Span]) -> tuple[float, float]:
    """Seconds of computing and of waiting for bytes."""
    busy_s = exchange_s = 0.0
    for span in spans:
        if span.kind == "exchange":
            exchange_s += span.end_s - span.start_s
        elif span.kind != "wait":
            busy_s += span.end_s - span.start_s
    return busy_s, exchange_s
