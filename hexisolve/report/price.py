"""The price of a plan and the reasons behind it: where the step's seconds and bytes go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hexisolve.report.tables import make_table, percent, ranges
from hexisolve.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from hexisolve.plan.evaluate import DeviceEvaluation, Evaluation, StageEvaluation
    from hexisolve.plan.plan import Stage

MEMORY_ITEMS = ("states", "activations", "kv", "transient", "buffers", "logits", "reserve")
_ITEM2TITLE = {"kv": "K and V"}


def price_document(evaluation: Evaluation) -> dict[str, Any]:
    """JSON form: step time, its parts, every stage and device, the busiest edges."""
    return {
        "step_time_s": evaluation.step_time_s,
        "tokens_per_s": evaluation.tokens_per_s,
        "pipeline_s": evaluation.pipeline_s,
        "edge_wait_s": evaluation.edge_wait_s,
        "synchronisation_s": evaluation.synchronisation_s,
        "optimizer_s": evaluation.optimizer_s,
        "bubble_share": evaluation.bubble_share,
        "peak_flop_share": peak_shares(evaluation),
        "is_edge_bound": evaluation.is_edge_bound,
        "busiest_edges": [
            {"source": edge[0], "target": edge[1], "busy_s": seconds}
            for edge, seconds in evaluation.edge_seconds.items()
        ],
        "stages": [_stage_document(evaluation, stage) for stage in evaluation.stages],
        "devices": [_device_document(evaluation, entry) for entry in evaluation.devices],
    }


def peak_shares(evaluation: Evaluation) -> dict[str, float]:
    """Share of the datasheet peak that every kind of device reaches, unused devices left out."""
    cluster = evaluation.instance.cluster
    flop: dict[str, float] = {}
    peak: dict[str, float] = {}
    for entry in evaluation.devices:
        device = cluster.device(entry.device)
        peak[device.type] = peak.get(device.type, 0.0) + device.dense_peak_flop_per_s
        flop[device.type] = (
            flop.get(device.type, 0.0) + entry.peak_flop_share * device.dense_peak_flop_per_s
        )
    return {kind: flop[kind] / peak[kind] for kind in flop}


def recomputed(evaluation: Evaluation, stage: StageEvaluation) -> dict[str, tuple[int, int]]:
    """Least and most layers of every recompute policy, over the chunks of a stage."""
    replica = evaluation.plan.batch.replicas[stage.replica_idx]
    choices = [
        choice for pipeline in replica.pipelines for choice in pipeline.recompute[stage.stage_idx]
    ]
    policies = dict.fromkeys(policy for choice in choices for policy in choice if choice[policy])
    return {
        policy: (
            min(choice.get(policy, 0) for choice in choices),
            max(choice.get(policy, 0) for choice in choices),
        )
        for policy in policies
    }


def price_tables(evaluation: Evaluation) -> list[Table]:
    """Step, kinds of devices, stages, devices, memory."""
    return [
        _step_table(evaluation),
        _kind_table(evaluation),
        _stage_table(evaluation),
        _device_table(evaluation),
        _memory_table(evaluation),
    ]


def _stage_document(evaluation: Evaluation, stage: StageEvaluation) -> dict[str, Any]:
    layout = _stage(evaluation, stage)
    return {
        "replica": stage.replica_idx,
        "stage": stage.stage_idx,
        "layers": list(layout.layers),
        "devices": [rank.device for rank in layout.ranks],
        "forward_s": list(stage.forward_s),
        "backward_s": list(stage.backward_s),
        "busy_s": stage.busy_s,
        "breakdown": stage.breakdown()._asdict(),
        "recomputed_layers": {
            policy: list(bounds) for policy, bounds in recomputed(evaluation, stage).items()
        },
    }


def _device_document(evaluation: Evaluation, entry: DeviceEvaluation) -> dict[str, Any]:
    replica_idx, stage_idx, _ = _places(evaluation)[entry.rank]
    return {
        "device": entry.device,
        "type": evaluation.instance.cluster.device(entry.device).type,
        "rank": entry.rank,
        "replica": replica_idx,
        "stage": stage_idx,
        "compute_s": entry.compute_s,
        "exchange_s": entry.exchange_s,
        "idle_s": entry.idle_s,
        "peak_flop_share": entry.peak_flop_share,
        "peak_bytes": entry.peak_bytes,
        "usable_bytes": entry.usable_bytes,
        "memory": asdict(entry.memory),
    }


def _stage(evaluation: Evaluation, stage: StageEvaluation) -> Stage:
    return evaluation.plan.layout.replicas[stage.replica_idx].stages[stage.stage_idx]


def _places(evaluation: Evaluation) -> list[tuple[int, int, Stage]]:
    """(replica, stage, layout of the stage) of every rank."""
    return [
        (replica_idx, stage_idx, stage)
        for replica_idx, stage_idx, stage in evaluation.plan.layout.stages()
        for _ in stage.ranks
    ]


def _step_table(evaluation: Evaluation) -> Table:
    table = make_table("one step", ["", ">", "~"])
    table.show_header = False
    step_s = evaluation.step_time_s
    rows = [
        ("step time", format_seconds(step_s), f"{evaluation.tokens_per_s:,.0f} tokens/s"),
        ("pipeline", format_seconds(evaluation.pipeline_s),
         f"stages wait {percent(evaluation.bubble_share)} of it"),
        ("gradients and weights", format_seconds(evaluation.synchronisation_s), ""),
        ("optimizer", format_seconds(evaluation.optimizer_s), ""),
    ]  # fmt: skip
    if evaluation.is_edge_bound and evaluation.edge_wait_s > 0:
        waiting = format_seconds(evaluation.edge_wait_s)
        rows.insert(2, ("of the pipeline", waiting, "waits for links that stages share"))
    busiest = next(iter(evaluation.edge_seconds.items()), None)
    if busiest is not None and busiest[1] > 0:
        edge, seconds = busiest
        is_full = evaluation.is_edge_bound and not evaluation.edge_wait_s
        bound = ", it sets the step time" if is_full else ""
        rows.append(
            ("busiest link", format_seconds(seconds),
             f"{edge[0]} -> {edge[1]}, busy {percent(seconds / step_s)} of the step{bound}")
        )  # fmt: skip
    for row in rows:
        table.add_row(*row)
    return table


def _kind_table(evaluation: Evaluation) -> Table:
    cluster = evaluation.instance.cluster
    used = {entry.device for entry in evaluation.devices}
    table = make_table(
        "share of peak",
        ["type", "used>", "idle devices>", "share of peak>"],
        caption="FLOP of the model over step time and datasheet peak; nothing repeated counts",
    )
    shares = peak_shares(evaluation)
    for kind in dict.fromkeys(device.type for device in cluster.devices):
        ids = [device.id for device in cluster.devices if device.type == kind]
        num_used = sum(device_id in used for device_id in ids)
        share = percent(shares[kind]) if kind in shares else "-"
        table.add_row(kind, str(num_used), str(len(ids) - num_used), share)
    return table


def _stage_table(evaluation: Evaluation) -> Table:
    table = make_table(
        "stages, seconds of the step by cause",
        ["stage", "layers", "dense>", "attention>", "all-to-all>", "ring>", "overhead>", "gather>",
         "busy>", "recomputed layers~"],
    )  # fmt: skip
    several = len(evaluation.replicas) > 1
    for stage in evaluation.stages:
        first, stop = _stage(evaluation, stage).layers
        kept = recomputed(evaluation, stage)
        choices = [
            f"{policy} {low if low == high else f'{low} to {high}'}"
            for policy, (low, high) in kept.items()
            if policy != "none"
        ]
        name = f"{stage.replica_idx}.{stage.stage_idx}" if several else str(stage.stage_idx)
        table.add_row(
            name, ranges(range(first, stop)) or "none",
            *(_seconds(seconds, evaluation.step_time_s) for seconds in stage.breakdown()),
            percent(stage.busy_s / evaluation.step_time_s), ", ".join(choices) or "none",
        )  # fmt: skip
    return table


def _device_table(evaluation: Evaluation) -> Table:
    table = make_table(
        "devices over the step",
        ["stage", "devices", "type", "tokens>", "query heads>", "compute>", "exchange>", "idle>",
         "memory>", "of usable>"],
        caption="`+ n`: n more devices of the stage with the same figures",
    )  # fmt: skip
    for name, group in _alike(evaluation):
        entry = group[0]
        rank = evaluation.plan.layout.ranks[entry.rank]
        stage = _places(evaluation)[entry.rank][2]
        table.add_row(
            name, _devices([other.device for other in group]),
            evaluation.instance.cluster.device(entry.device).type,
            percent(rank.tokens / stage.tokens), str(rank.num_q_heads),
            *(percent(seconds / evaluation.step_time_s)
              for seconds in (entry.compute_s, entry.exchange_s, entry.idle_s)),
            format_bytes(entry.peak_bytes),
            percent(entry.peak_bytes / entry.usable_bytes) if entry.usable_bytes > 0 else "-",
        )  # fmt: skip
    return table


def _memory_table(evaluation: Evaluation) -> Table:
    titles = [f"{_ITEM2TITLE.get(item, item)}>" for item in MEMORY_ITEMS]
    table = make_table("memory at its peak", ["stage", "devices", *titles, "capacity>"])
    for name, group in _alike(evaluation):
        entry = group[0]
        items = [getattr(entry.memory, item) for item in MEMORY_ITEMS]
        capacity = evaluation.instance.cluster.device(entry.device).memory_bytes
        table.add_row(
            name, _devices([other.device for other in group]),
            *(format_bytes(size) for size in items), format_bytes(capacity),
        )  # fmt: skip
    return table


def _alike(evaluation: Evaluation) -> Iterator[tuple[str, list[DeviceEvaluation]]]:
    """Devices of a stage that differ in nothing the tables show, stage by stage."""
    several = len(evaluation.replicas) > 1
    places = _places(evaluation)
    groups: dict[tuple[Any, ...], list[DeviceEvaluation]] = {}
    for entry in evaluation.devices:
        replica_idx, stage_idx, _ = places[entry.rank]
        rank = evaluation.plan.layout.ranks[entry.rank]
        kind = evaluation.instance.cluster.device(entry.device).type
        name = f"{replica_idx}.{stage_idx}" if several else str(stage_idx)
        shown = tuple(f"{value:.4g}" for value in (entry.compute_s, entry.peak_bytes))
        key = (name, kind, rank.tokens, rank.num_q_heads, shown)
        groups.setdefault(key, []).append(entry)
    for key, group in groups.items():
        yield key[0], group


def _seconds(seconds: float, step_time_s: float) -> str:
    """Seconds, or a dash for what does not show in the step."""
    return format_seconds(seconds) if seconds > 1e-6 * step_time_s else "-"


def _devices(ids: list[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} + {len(ids) - 1}"
