"""Tiny instances and plans with every rate written out, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from hexisolve.data.cluster import Cluster
from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Rank,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.schedule import one_f_one_b

FREE = CostConstants(
    link_efficiency=1.0, launch_overhead_s=0.0, reserve_bytes=0, peer_buffer_bytes=0,
    usable_fraction=1.0,
)  # fmt: skip


def cluster_of(
    speeds: Sequence[float] = (1.0, 1.0),
    *,
    peak: float = 1e9,
    efficiencies: tuple[float, float, float] = (1.0, 0.5, 0.4),
    link: float = 1e6,
    latency: float = 1e-3,
    memory: Sequence[int] | None = None,
    dtypes: Sequence[str] = ("bf16", "fp16", "fp32", "fp64"),
) -> Cluster:
    """Devices d0, d1, ... of given relative speeds on one switch; latency is of the whole path."""
    memory = memory or [10**9] * len(speeds)
    nodes: list[dict[str, object]] = [{"id": "switch", "kind": "switch"}]
    edges: list[dict[str, object]] = []
    types = {}
    for idx, (speed, capacity) in enumerate(zip(speeds, memory, strict=True)):
        types[f"type{idx}"] = {
            "dense_peak": f"{peak * speed!r} FLOP/s",
            "memory": f"{capacity} B",
            "memory_bandwidth": "1e9 B/s",
            "dense_efficiency": efficiencies[0],
            "attention_forward_efficiency": efficiencies[1],
            "attention_backward_efficiency": efficiencies[2],
            "dtypes": list(dtypes),
        }
        nodes.append({"id": f"d{idx}", "kind": "device", "type": f"type{idx}"})
        band = f"{link!r} B/s"
        edges += [
            {"source": f"d{idx}", "target": "switch", "bandwidth": band,
             "latency": f"{latency!r} s"},
            {"source": "switch", "target": f"d{idx}", "bandwidth": band, "latency": "0 s"},
        ]  # fmt: skip
    return Cluster.from_dict(
        {"name": "tiny", "device_types": types, "nodes": nodes, "edges": edges}
    )


def two_hosts(link: float) -> Cluster:
    """d0 and d1 on one switch, d2 and d3 on another, a wire between; all links alike."""
    joined = [("d0", "left"), ("d1", "left"), ("d2", "right"), ("d3", "right"), ("left", "right")]
    nodes: list[dict[str, object]] = [{"id": name, "kind": "switch"} for name in ("left", "right")]
    nodes += [{"id": f"d{idx}", "kind": "device", "type": "gpu"} for idx in range(4)]
    return Cluster.from_dict(
        {
            "name": "two-hosts",
            "device_types": {
                "gpu": {
                    "dense_peak": "1e9 FLOP/s",
                    "memory": "1e9 B",
                    "memory_bandwidth": "1e9 B/s",
                    "dense_efficiency": 1.0,
                    "attention_forward_efficiency": 0.5,
                    "attention_backward_efficiency": 0.4,
                    "dtypes": ["bf16"],
                }
            },
            "nodes": nodes,
            "edges": [
                {"source": source, "target": target, "bandwidth": f"{link!r} B/s", "latency": "0 s"}
                for a, b in joined
                for source, target in ((a, b), (b, a))
            ],
        }
    )


def model_of(num_layers: int = 2, **changes: object) -> ModelSpec:
    """A Llama of hidden size 64: 4 query heads, 2 KV heads, P_l = 36864."""
    config: dict[str, object] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": num_layers,
        "vocab_size": 32,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    return ModelSpec.from_config(config | changes, "tiny")


def instance_of(
    cluster: Cluster | None = None,
    model: ModelSpec | None = None,
    *,
    context_tokens: int = 1000,
    batch_sequences: int = 4,
    cost: CostConstants = FREE,
    **workload: object,
) -> Instance:
    """An instance without overheads."""
    sizes: dict[str, object] = {
        "context_tokens": context_tokens,
        "batch_sequences": batch_sequences,
    }
    if "lengths" in workload:
        sizes = {}
    return Instance(
        cluster or cluster_of(),
        model or model_of(),
        Workload(**(sizes | workload)),  # type: ignore[arg-type]
        cost,
    )


def stage_of(
    layers: tuple[int, int],
    *groups: Sequence[tuple[str, int, tuple[int, int]]],
    **changes: object,
) -> Stage:
    """A stage from ``(device, tokens, heads)`` triples, group by group."""
    ring = tuple(HeadGroup(tuple(Rank(*rank) for rank in group)) for group in groups)
    return Stage(layers, ring, **changes)  # type: ignore[arg-type]


def whole_chunks(lengths: Sequence[int]) -> tuple[Chunk, ...]:
    """One chunk per whole sequence."""
    return tuple(Chunk((Slice(idx, 0, length),)) for idx, length in enumerate(lengths))


def plan_of(stages: Sequence[Stage], chunks: Sequence[Chunk], policy: str = "none") -> Plan:
    """One replica, one pipeline, 1F1B, one policy everywhere."""
    recompute = tuple(tuple({policy: stage.num_layers} for _ in chunks) for stage in stages)
    pipeline = Pipeline(
        tuple(chunks),
        one_f_one_b(len(stages), len(chunks)),
        recompute,  # type: ignore[arg-type]
    )
    return Plan(Layout((Replica(tuple(stages)),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def two_stage_plan() -> Plan:
    """d0 and d1 as one head group feed d2 and d3 as a ring; 4 sequences of 1000 tokens."""
    first = stage_of((0, 1), [("d0", 700, (0, 3)), ("d1", 300, (3, 4))])
    second = stage_of((1, 2), [("d2", 600, (0, 4))], [("d3", 400, (0, 4))])
    return plan_of([first, second], whole_chunks([1000] * 4))


def four_device_instance(**changes: object) -> Instance:
    """The instance of `two_stage_plan`."""
    return instance_of(cluster_of((1.0, 0.5, 1.0, 0.7)), **changes)  # type: ignore[arg-type]
