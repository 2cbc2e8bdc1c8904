"""A timeline as text, and as a trace file for Perfetto (Chrome's trace-event JSON)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hexisolve.units import format_seconds

if TYPE_CHECKING:
    from hexisolve.program.timeline import Timeline

_MICROSECONDS = 1e6


def text_timeline(timeline: Timeline, width: int = 100) -> str:
    """One line per stage: forward of chunk 3 as ``3``, backward as ``d``, idle as a dot."""
    step_s = timeline.step_time_s
    names = _stage_names(timeline)
    margin = max(map(len, names))
    columns = max(width - margin - 3, 10)
    lines = [f"step {format_seconds(step_s)}, bubbles {timeline.bubble_share:.1%}"]
    for number, name in enumerate(names):
        cells = ["."] * columns
        for start_s, end_s, kind, chunk in timeline.operations(number):
            first = min(int(start_s / step_s * columns), columns - 1)
            last = min(max(int(end_s / step_s * columns), first + 1), columns)
            cell = str(chunk % 10) if kind == "F" else chr(ord("a") + chunk % 26)
            cells[first:last] = cell * (last - first)
        lines.append(f"{name:<{margin}} |{''.join(cells)}|")
    lines.append("forward of chunk n: its last digit; backward: a letter (a is chunk 0)")
    return "\n".join(lines)


def _stage_names(timeline: Timeline) -> list[str]:
    """``replica 0 stage 1`` for every stage."""
    stages = dict.fromkeys((times.replica, times.stage) for times in timeline.ranks)
    has_replicas = len({replica for replica, _ in stages}) > 1
    return [f"replica {r} stage {s}" if has_replicas else f"stage {s}" for r, s in stages]


def write_trace(timeline: Timeline, path: Path, detail: Literal["layer", "instruction"]) -> None:
    """Write the trace; an interrupted write leaves no half file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for idx, event in enumerate(trace_events(timeline, detail)):
                file.write((",\n" if idx else "") + json.dumps(event))
            file.write("\n]}\n")
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def trace_events(
    timeline: Timeline, detail: Literal["layer", "instruction"] = "layer"
) -> Iterator[dict[str, Any]]:
    """Trace events: a process per stage, a thread per rank, a slice per layer or instruction."""
    for number, name in enumerate(_stage_names(timeline)):
        yield _metadata("process_name", number, 0, name)
        yield {"name": "process_sort_index", "ph": "M", "pid": number, "tid": 0,
               "args": {"sort_index": number}}  # fmt: skip
    for times in timeline.ranks:
        pid, tid = times.stage_number, times.rank
        yield _metadata("thread_name", pid, tid, f"rank {times.rank} {times.device}")
        if detail == "instruction":
            for span in timeline.spans(times.rank):
                yield _slice(span.kind, span.start_s, span.end_s, pid, tid,
                             chunk=span.chunk, layer=span.layer)  # fmt: skip
            continue
        for span in times.own_spans:
            yield _slice(span.kind, span.start_s, span.end_s, pid, tid, chunk=span.chunk)
        for run in timeline.stage_runs(pid):
            yield _slice(
                f"{run.phase} {run.chunk}", run.start_s + run.play.entry_s[times.rank],
                run.start_s + run.play.exit_s[times.rank], pid, tid,
                chunk=run.chunk, layer=run.layer,
            )  # fmt: skip


def _metadata(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": {"name": value}}


def _slice(
    name: str, start_s: float, end_s: float, pid: int, tid: int, **args: int
) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "pid": pid, "tid": tid,
        "ts": round(start_s * _MICROSECONDS, 3),
        "dur": round((end_s - start_s) * _MICROSECONDS, 3),
        "args": {key: value for key, value in args.items() if value >= 0},
    }  # fmt: skip
