"""Hand-written instances and plans that tests of programs, runtime and costs share.

`CASES` maps a name to a function without arguments that returns (instance, plan).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Rank,
    Replica,
    ReplicaBatch,
    RingKind,
    Slice,
    Stage,
    ZeroMode,
)
from hexisolve.plan.schedule import one_f_one_b

RankSpec = tuple[int, tuple[int, int]]
"""(token weight, query heads) of one rank."""


def cluster(num_devices: int) -> Cluster:
    """Boxes of up to 8 H100 on one fabric."""
    hosts = {
        f"box{idx}": {
            "count": 1,
            "devices": {"type": "H100-SXM-80GB", "count": min(8, num_devices - 8 * idx)},
            "inside": {"kind": "nvswitch", "bandwidth": "450 GB/s", "latency": "3 us"},
            "nics": {"count": 1, "bandwidth": "200 Gbit/s", "fabric": "net"},
        }
        for idx in range(-(-num_devices // 8))
    }
    fabrics = {"net": {"latency": "5 us", "oversubscription": 1}}
    return Cluster.from_dict(
        {"schema_version": 1, "name": f"boxes-{num_devices}", "fabrics": fabrics, "hosts": hosts}
    )


def tiny_model(
    num_layers: int = 4,
    num_q_heads: int = 6,
    num_kv_heads: int = 3,
    *,
    head_dim: int = 4,
    hidden_size: int = 24,
    tied_embeddings: bool = False,
) -> ModelSpec:
    """A Llama small enough for float64 on one core."""
    return llama_like(
        "tiny",
        hidden_size,
        num_layers,
        num_q_heads,
        num_kv_heads,
        2 * hidden_size,
        64,
        head_dim=head_dim,
        tied_embeddings=tied_embeddings,
    )


def stage(
    layers: tuple[int, int],
    groups: Sequence[Sequence[RankSpec]],
    devices: Sequence[str],
    *,
    zero: ZeroMode = 0,
    state_shares: Sequence[int] | None = None,
    ring_kind: RingKind = "kv",
    zero3_gradients: str = "step",
) -> Stage:
    """A stage whose ranks take `devices` in order."""
    names = iter(devices)
    shares = iter(state_shares or [1] * sum(len(group) for group in groups))
    ring = tuple(
        HeadGroup(tuple(Rank(next(names), tokens, heads, next(shares)) for tokens, heads in group))
        for group in groups
    )
    return Stage(layers, ring, ring_kind, zero, zero3_gradients)  # type: ignore[arg-type]


def whole_chunks(lengths: Sequence[int], packs: Sequence[Sequence[int]]) -> tuple[Chunk, ...]:
    """Chunks of whole sequences: `packs` lists the sequence numbers of each."""
    return tuple(Chunk(tuple(Slice(seq, 0, lengths[seq]) for seq in pack)) for pack in packs)


def plan(
    stages: Sequence[Stage],
    chunks: Sequence[Chunk],
    *,
    recompute: Mapping[Policy, int] | Policy = "none",
    schedule: Sequence[Sequence[str]] | None = None,
) -> Plan:
    """One replica, one pipeline, 1F1B; `recompute` is a policy for all layers."""
    rows = schedule or one_f_one_b(len(stages), len(chunks))
    per_stage = tuple(
        tuple(
            {recompute: own.num_layers} if isinstance(recompute, str) else dict(recompute)
            for _ in chunks
        )
        for own in stages
    )
    pipeline = Pipeline(tuple(chunks), tuple(tuple(row) for row in rows), per_stage)
    return Plan(Layout((Replica(tuple(stages)),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def make(
    stages: Sequence[tuple[tuple[int, int], Sequence[Sequence[RankSpec]]]],
    packs: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    model: ModelSpec | None = None,
    recompute: Mapping[Policy, int] | Policy = "none",
    zero: ZeroMode = 0,
    state_shares: Sequence[Sequence[int]] | None = None,
    zero3_gradients: str = "step",
    attention: str = "causal",
    dtype: str = "fp64",
    schedule: Sequence[Sequence[str]] | None = None,
) -> tuple[Instance, Plan]:
    """Instance and plan of one replica: stages as (layers, groups), chunks as sequence numbers."""
    num_ranks = sum(len(group) for _, groups in stages for group in groups)
    net = cluster(num_ranks)
    devices = iter(sorted(net.device_index, key=net.device_index.__getitem__))
    built = []
    for idx, (layers, groups) in enumerate(stages):
        own = [next(devices) for group in groups for _ in group]
        shares = state_shares[idx] if state_shares else None
        built.append(
            stage(
                layers,
                groups,
                own,
                zero=zero,
                state_shares=shares,
                zero3_gradients=zero3_gradients,
            )
        )
    workload = Workload(
        lengths=tuple(lengths),
        dtype=dtype,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
        block_tokens=1,
    )
    instance = Instance(net, model or tiny_model(), workload)
    chunks = whole_chunks(lengths, packs)
    return instance, plan(built, chunks, recompute=recompute, schedule=schedule)


TWO_STAGES: tuple[tuple[tuple[int, int], list[list[RankSpec]]], ...] = (
    ((0, 3), [[(5, (0, 4)), (2, (4, 6))]]),
    ((3, 4), [[(4, (0, 6))], [(3, (0, 6))]]),
)
"""4 ranks: a head group of two (4 + 2 heads, 5 : 2 tokens), then a ring of two (4 : 3)."""

RING_OF_GROUPS: tuple[tuple[tuple[int, int], list[list[RankSpec]]], ...] = (
    ((0, 2), [[(3, (0, 3)), (2, (3, 6))], [(1, (0, 1)), (4, (1, 6))]]),
    ((2, 4), [[(1, (0, 6))]]),
)
"""5 ranks: a ring of two head groups whose ranges split KV heads differently, then one rank."""


def two_stages(**options: object) -> tuple[Instance, Plan]:
    """4 ranks in 2 stages, uneven shards and heads, 3 chunks of different sizes."""
    return make(TWO_STAGES, [[0], [1], [2]], [37, 23, 41], **options)  # type: ignore[arg-type]


def three_feed_two() -> tuple[Instance, Plan]:
    """3 ranks (a ring of a single and a pair) feeding 2."""
    first = ((0, 2), [[(3, (0, 6))], [(2, (0, 4)), (1, (4, 6))]])
    last = ((2, 4), [[(3, (0, 1)), (1, (1, 6))]])
    return make([first, last], [[0], [1]], [29, 31])


def tiny_shards() -> tuple[Instance, Plan]:
    """A one-token shard, an empty shard and an empty group."""
    first = ((0, 2), [[(5, (0, 3)), (1, (3, 6))], [(0, (0, 6))], [(5, (0, 6))]])
    last = ((2, 4), [[(10, (0, 6)), (0, (6, 6))]])
    return make([first, last], [[0], [1]], [11, 11])


def split_kv_group() -> tuple[Instance, Plan]:
    """6 query, 3 KV heads as 3 + 3: KV head 1 lies on both ranks of each group of a ring."""
    first = ((0, 4), [[(2, (0, 3)), (3, (3, 6))], [(2, (0, 1)), (1, (1, 6))]])
    return make([first], [[0], [1]], [26, 17])


def idle_rank() -> tuple[Instance, Plan]:
    """A rank with neither tokens nor heads in a group, and one alone in the ring."""
    first = ((0, 2), [[(4, (0, 5)), (0, (0, 0)), (3, (5, 6))], [(5, (0, 6))]])
    last = ((2, 4), [[(1, (0, 6))], [(0, (0, 6))]])
    return make([first, last], [[0], [1]], [19, 24])


def packed_documents() -> tuple[Instance, Plan]:
    """Chunks of several documents: some whole, some cut over a ring of three."""
    first = ((0, 2), [[(3, (0, 6))], [(2, (0, 2)), (2, (2, 6))], [(2, (0, 6))]])
    last = ((2, 4), [[(1, (0, 3)), (1, (3, 6))]])
    return make([first, last], [[0, 1, 2], [3, 4, 5, 6]], [20, 7, 9, 1, 2, 30, 3])


def chunk_count(num_chunks: int) -> Callable[[], tuple[Instance, Plan]]:
    """2 stages and the given number of chunks, all of different sizes."""
    lengths = [13 + 5 * idx for idx in range(num_chunks)]
    return lambda: make(TWO_STAGES, [[idx] for idx in range(num_chunks)], lengths)


def tied(**options: object) -> tuple[Instance, Plan]:
    """Tied embeddings over two stages."""
    return two_stages(model=tiny_model(tied_embeddings=True), **options)


def ring_of_groups(**options: object) -> tuple[Instance, Plan]:
    """Ring of two head groups whose head ranges do not line up."""
    packs, lengths = [[0], [1, 2]], [33, 18, 21]
    return make(RING_OF_GROUPS, packs, lengths, **options)  # type: ignore[arg-type]


def one_rank() -> tuple[Instance, Plan]:
    """A single device."""
    return make([((0, 4), [[(1, (0, 6))]])], [[0], [1]], [9, 14])


def three_stages() -> tuple[Instance, Plan]:
    """3 stages with head degrees 4, 1, 2 and 4 chunks."""
    first = ((0, 1), [[(2, (0, 2)), (1, (2, 3)), (1, (3, 5)), (3, (5, 6))]])
    middle = ((1, 3), [[(1, (0, 6))]])
    last = ((3, 4), [[(2, (0, 4)), (1, (4, 6))]])
    return make([first, middle, last], [[0], [1], [2], [3]], [12, 17, 8, 21])


def large(
    num_ranks: int = 128,
    num_stages: int = 4,
    num_layers: int = 40,
    num_chunks: int = 8,
    num_groups: int = 4,
    *,
    context_tokens: int = 65_536,
    num_heads: int = 40,
    zero: ZeroMode = 1,
) -> tuple[Instance, Plan]:
    """A plan of many ranks: every stage a ring of head groups with uneven shards and heads.

    A few layers of each stage recompute fully, the others the default way.
    """
    num_groups = min(num_groups, num_ranks // num_stages)
    group_size = num_ranks // num_stages // num_groups
    edges = [num_layers * idx // num_stages for idx in range(num_stages + 1)]
    stages = []
    for idx in range(num_stages):
        groups = []
        for group_idx in range(num_groups):
            cuts = [num_heads * rank // group_size for rank in range(group_size + 1)]
            groups.append(
                [
                    (97 + 13 * group_idx + 5 * rank, (cuts[rank], cuts[rank + 1]))
                    for rank in range(group_size)
                ]
            )
        stages.append(((edges[idx], edges[idx + 1]), groups))
    model = llama_like(
        "large", 128 * num_heads, num_layers, num_heads, num_heads, 13_824, 32_000, head_dim=128
    )
    instance, whole = make(
        stages,
        [[idx] for idx in range(num_chunks)],
        [context_tokens] * num_chunks,
        model=model,
        zero=zero,
        dtype="bf16",
    )
    (batch,) = whole.batch.replicas
    (pipeline,) = batch.pipelines
    recompute: tuple[tuple[dict[Policy, int], ...], ...] = tuple(
        tuple({"full": 1, "layer": own.num_layers - 1} for _ in range(num_chunks))
        for own in whole.layout.replicas[0].stages
    )
    mixed = replace(pipeline, recompute=recompute)
    return instance, replace(whole, batch=BatchPlan((ReplicaBatch((mixed,)),)))


CASES: Mapping[str, Callable[[], tuple[Instance, Plan]]] = {
    "one_rank": one_rank,
    "two_stages": two_stages,
    "three_feed_two": three_feed_two,
    "tiny_shards": tiny_shards,
    "split_kv_group": split_kv_group,
    "idle_rank": idle_rank,
    "packed_documents": packed_documents,
    "ring_of_groups": ring_of_groups,
    "three_stages": three_stages,
    "chunks_1": chunk_count(1),
    "chunks_2": chunk_count(2),
    "chunks_3": chunk_count(3),
    "tied": tied,
    "recompute_layer": lambda: ring_of_groups(recompute="layer"),
    "recompute_full": lambda: ring_of_groups(recompute="full"),
    "recompute_mlp": lambda: ring_of_groups(recompute="mlp"),
    "zero_1": lambda: ring_of_groups(zero=1, state_shares=[[3, 1, 0, 2], [1]]),
    "zero_1_tied": lambda: tied(zero=1, state_shares=[[1, 2], [5, 3]]),
    "zero_3": lambda: ring_of_groups(zero=3, state_shares=[[3, 1, 1, 2], [1]]),
    "zero_3_chunk": lambda: ring_of_groups(zero=3, zero3_gradients="chunk"),
}
