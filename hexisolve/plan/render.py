"""A plan as a small tree a person can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hexisolve.plan.plan import POLICY_ORDER, HeadGroup, Pipeline, Plan, Policy, Rank, Stage

_NUM_SHOWN = 6


def render_plan(plan: Plan) -> str:
    """The layout stage by stage, then chunks, order and recompute."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    num_ranks = len(plan.layout.ranks)
    num_replicas = len(plan.layout.replicas)
    yield f"plan: {num_ranks} ranks, {num_replicas} replica{'s' * (num_replicas != 1)}"
    for replica_idx, replica in enumerate(plan.layout.replicas):
        yield f"replica {replica_idx}: {len(replica.stages)} stages"
        for stage_idx, stage in enumerate(replica.stages):
            yield from _stage(stage_idx, stage)
        if replica_idx < len(plan.batch.replicas):
            for pipeline in plan.batch.replicas[replica_idx].pipelines:
                yield from _pipeline(pipeline)


def _stage(stage_idx: int, stage: Stage) -> Iterator[str]:
    first, stop = stage.layers
    travels = f", {stage.ring_kind.upper()} travels" if len(stage.ring) > 1 else ""
    layers = f"layers {first}..{stop - 1} ({stop - first})"
    yield f"  stage {stage_idx}: {layers}, ZeRO-{stage.zero}{travels}"
    total = max(sum(rank.tokens for rank in stage.ranks), 1)
    for first_idx, last_idx in _alike(stage.ring):
        text = _group(stage.ring[first_idx], total)
        if first_idx == last_idx:
            yield f"    group {first_idx}: {text}"
        else:
            last = stage.ring[last_idx].ranks[-1].device
            yield f"    groups {first_idx}..{last_idx}, to {last}, each like {text}"


def _alike(ring: Sequence[HeadGroup]) -> Iterator[tuple[int, int]]:
    """(first, last) of every run of groups that differ in nothing but their devices."""
    first_idx = 0
    for idx in range(1, len(ring) + 1):
        if idx == len(ring) or _sizes(ring[idx]) != _sizes(ring[first_idx]):
            yield first_idx, idx - 1
            first_idx = idx


def _sizes(group: HeadGroup) -> tuple[tuple[int, tuple[int, int]], ...]:
    return tuple((rank.tokens, rank.q_heads) for rank in group.ranks)


def _group(group: HeadGroup, total: int) -> str:
    runs: list[tuple[str, int]] = []
    for rank in group.ranks:
        text = _rank(rank, total)
        if runs and _same_size(runs[-1][0], text):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    shown = [f"{text} and {more - 1} more alike" if more > 1 else text for text, more in runs]
    return "; ".join(shown[:_NUM_SHOWN]) + ("; ..." if len(shown) > _NUM_SHOWN else "")


def _same_size(one: str, other: str) -> bool:
    """Whether two ranks differ in nothing but their device."""
    return one.partition(": ")[2] == other.partition(": ")[2]


def _rank(rank: Rank, total: int) -> str:
    heads = rank.num_q_heads
    return f"{rank.device}: {100 * rank.tokens / total:.1f}% of tokens, {heads} heads"


def _pipeline(pipeline: Pipeline) -> Iterator[str]:
    sizes = Counter(chunk.num_tokens for chunk in pipeline.chunks)
    listed = [f"{count} x {tokens:,} tokens" for tokens, count in list(sizes.items())[:_NUM_SHOWN]]
    more = ", ..." if len(sizes) > _NUM_SHOWN else ""
    yield f"  chunks: {len(pipeline.chunks)} ({', '.join(listed)}{more})"
    for stage_idx, row in enumerate(pipeline.recompute):
        yield f"  recompute of stage {stage_idx}: {_policies(row)}"


def _policies(row: Sequence[Mapping[Policy, int]]) -> str:
    kinds = Counter(
        ", ".join(f"{policy} {counts[policy]}" for policy in POLICY_ORDER if counts.get(policy))
        for counts in row
    )
    if len(kinds) == 1:
        return f"{next(iter(kinds))} layers of every chunk"
    parts = [f"{text} layers of {count} chunks" for text, count in kinds.items()]
    return "; ".join(parts[:_NUM_SHOWN]) + ("; ..." if len(parts) > _NUM_SHOWN else "")
