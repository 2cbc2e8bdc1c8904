"""Tiny instances with unequal speeds, memories and links."""

from __future__ import annotations

from typing import Protocol

from hexisolve.data.cluster import Cluster
from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload


class Source(Protocol):
    """What instances are drawn from: `random.Random`, or Hypothesis' managed twin of it."""

    def choice(self, options): ...


# (devices per host, layers, query heads, KV heads, blocks): small enough to enumerate.
SHAPES = (
    ((1,), 3, 2, 1, 2),
    ((1, 1), 2, 2, 2, 2),
    ((2,), 2, 2, 1, 2),
    ((2,), 1, 2, 2, 3),
    ((1, 1), 1, 3, 1, 3),
    ((2,), 1, 4, 2, 4),
    ((2, 1), 1, 1, 1, 2),
    ((1, 1), 3, 1, 1, 2),
)

LARGER_SHAPES = (
    ((2, 1), 2, 1, 1, 1),
    ((1, 1, 1), 1, 2, 1, 2),
    ((2, 1), 3, 1, 1, 1),
    ((2, 2), 1, 1, 1, 1),
    ((2,), 2, 3, 3, 3),
    ((1, 1), 6, 1, 1, 1),
    ((2,), 4, 2, 1, 1),
)


def draw(source: Source, shapes=SHAPES) -> Instance:
    """One instance; every number comes from the source."""
    hosts_sizes, num_layers, q_heads, kv_heads, blocks = source.choice(shapes)
    num_devices = sum(hosts_sizes)
    block = source.choice((32, 64))
    hosts, types = {}, {}
    index = 0
    for host_idx, size in enumerate(hosts_sizes):
        members = []
        for _ in range(size):
            name = f"kind{index}"
            types[name] = {
                "dense_peak": f"{source.choice((20, 40, 60, 100))} GFLOP/s",
                "memory": f"{source.choice((3, 6, 12, 200))} MiB",
                "memory_bandwidth": f"{source.choice((4, 10))} GB/s",
                "dense_efficiency": source.choice((0.5, 0.8)),
                "attention_forward_efficiency": source.choice((0.3, 0.6)),
                "attention_backward_efficiency": source.choice((0.3, 0.5)),
                "dtypes": ["bf16", "fp16", "fp32", "fp64"],
                "source": "drawn",
            }
            members.append({"type": name})
            index += 1
        hosts[f"host{host_idx}"] = {
            "count": 1,
            "devices": members,
            "inside": {
                "kind": "host",
                "bandwidth": f"{source.choice((1, 5, 30))} GB/s",
                "latency": f"{source.choice((1, 20))} us",
            },
            "nics": {"count": 1, "bandwidth": f"{source.choice((0.2, 1, 10))} GB/s", "fabric": "f"},
        }
    cluster = Cluster.from_dict(
        {
            "schema_version": 1,
            "name": f"tiny-{num_devices}",
            "device_types": types,
            "fabrics": {"f": {"latency": f"{source.choice((2, 50))} us"}},
            "hosts": hosts,
        }
    )
    width = source.choice((8, 16))
    model = llama_like(
        "tiny",
        source.choice((32, 64)),
        num_layers,
        q_heads,
        kv_heads,
        source.choice((64, 160)),
        source.choice((64, 512)),
        head_dim=width,
        tied_embeddings=source.choice((False, False, True)),
    )
    zero = source.choice(((0,), (1,), (0, 3)))
    lengths = (blocks * block,) * source.choice((1, 2, 3))
    if source.choice((False, False, True)):
        lengths = (*lengths, max(block // 2, blocks * block // 3))
    workload = Workload(lengths=lengths, zero=zero, block_tokens=block)
    cost = CostConstants(
        reserve_bytes=0,
        peer_buffer_bytes=source.choice((0, 2**18)),
        usable_fraction=0.94,
        logits_tile_tokens=32,
        launch_overhead_s=source.choice((0.0, 15e-6)),
    )
    return Instance(cluster, model, workload, cost)
