"""Hypothesis draws of instances small enough to price every plan of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

from hexisolve.data.cluster import Cluster
from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.data.workload import Workload
from hexisolve.plan.price_book import price_book
from hexisolve.plan.step_memory import stage_memory
from tests.oracle.brute_force import Sizes, plan_of, stage_options

# Modes allowed, and how many options of a stage they are (ZeRO-3 reduces per step or per chunk).
ZERO_CHOICES = {(0,): 1, (1,): 1, (0, 1): 2, (3,): 2, (1, 3): 3, (0, 1, 3): 4}
FREE = CostConstants(
    link_efficiency=1.0, launch_overhead_s=0.0, reserve_bytes=0, peer_buffer_bytes=0,
    usable_fraction=1.0,
)  # fmt: skip
CHARGED = CostConstants(
    launch_overhead_s=2e-5, reserve_bytes=20_000, peer_buffer_bytes=5_000, logits_tile_tokens=4
)
# Memory of a device as a multiple of what one device alone needs for everything.
SCARCE = (0.15, 0.25, 0.35, 0.5, 0.7, 0.9, 1.1, 1.5)
AMPLE = 100.0
DEVICES = (1, 2, 2, 2, 2, 3, 3, 3, 4)
SPEEDS = (1.0, 1.5, 2.0, 3.0, 6.0)
EFFICIENCIES = (0.3, 0.5, 0.8)
BANDS = ("0.1 GB/s", "0.5 GB/s", "2 GB/s", "10 GB/s", "100 GB/s")
LATENCIES = ("0 s", "2 us", "50 us")


@lru_cache(maxsize=8)
def all_sizes(most_plans: int) -> dict[int, list[Sizes]]:
    """Sizes with at most so many plans, by the number of devices."""
    found: dict[int, list[Sizes]] = {}
    ranges = (range(1, 5), range(1, 7), range(1, 5), range(1, 5))
    for devices, layers, heads, blocks in product(*ranges):
        for num_zero in sorted(set(ZERO_CHOICES.values())):
            sizes = Sizes(devices, layers, heads, blocks, num_zero)
            if sizes.num_plans <= most_plans:
                found.setdefault(devices, []).append(sizes)
    return found


@st.composite
def tiny_instances(
    draw: st.DrawFn, most_plans: int = 3_000, devices: tuple[int, ...] = DEVICES
) -> Instance:
    """An instance whose plan space has at most `most_plans` plans.

    Unlike speeds, memories (ample, tight, too small) and links; 1-3 hosts; with and without
    overheads. All parts of the price are of one order, so that none rules alone. One number is
    drawn and seeds the rest: Hypothesis would repeat choices, and few instances should differ much.
    """
    rng = Random(draw(st.integers(0, 2**32 - 1), label="seed"))
    return random_instance(rng, most_plans, devices)


def random_instance(
    rng: Random, most_plans: int = 3_000, devices: tuple[int, ...] = DEVICES
) -> Instance:
    """One draw of `tiny_instances`; the number of devices is one of `devices`."""
    sizes = _random_sizes(rng, most_plans, devices)
    block = rng.choice([1, 64, 256, 1024, 1024])
    workload = Workload(
        context_tokens=sizes.num_blocks * block,
        batch_sequences=rng.randint(1, 3),
        dtype=rng.choice(["bf16", "fp32"]),
        zero=rng.choice([z for z, n in ZERO_CHOICES.items() if n == sizes.num_zero]),
        attention=rng.choice(["causal", "causal", "full"]),
        block_tokens=block,
    )
    model = _model(rng, sizes)
    cost = rng.choice([FREE, CHARGED])
    document = _cluster_document(rng, sizes.num_devices)
    factors = [AMPLE] * sizes.num_devices
    if rng.random() < 0.6:
        factors = [rng.choice([*SCARCE, AMPLE]) for _ in factors]
    roomy = Instance(_cluster(document, [10**12] * sizes.num_devices), model, workload, cost)
    need = _needed_bytes(roomy)
    memory = [int((need * factor) / cost.usable_fraction) + 60_000 for factor in factors]
    return replace(roomy, cluster=_cluster(document, memory))


def _random_sizes(rng: Random, most_plans: int, devices: tuple[int, ...]) -> Sizes:
    """Sizes of small and large spaces: a limit is drawn first, then sizes below it."""
    table = all_sizes(most_plans)
    choices = table[rng.choice([count for count in devices if count in table])]
    fewest = min(sizes.num_plans for sizes in choices)
    most = most_plans * rng.random()
    return rng.choice([sizes for sizes in choices if sizes.num_plans <= max(most, fewest)])


def _model(rng: Random, sizes: Sizes) -> ModelSpec:
    heads = sizes.num_heads
    return llama_like(
        "tiny",
        hidden_size=16 * heads * rng.choice([1, 2]),
        num_layers=sizes.num_layers,
        num_q_heads=heads,
        num_kv_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
        intermediate_size=rng.choice([32, 128]),
        vocab_size=rng.choice([16, 256]),
        head_dim=rng.choice([8, 32, 128]),
        tied_embeddings=rng.random() < 0.5,
    )


def _cluster_document(rng: Random, num_devices: int) -> dict[str, Any]:
    """A cluster file of 1-3 hosts; the memory of its devices is filled in later."""
    kinds = [
        {
            "dense_peak": f"{rng.choice(SPEEDS) * 1e10!r} FLOP/s",
            "memory_bandwidth": f"{rng.choice(SPEEDS) * 1e10!r} B/s",
            "dense_efficiency": rng.choice(EFFICIENCIES),
            "attention_forward_efficiency": rng.choice(EFFICIENCIES),
            "attention_backward_efficiency": rng.choice(EFFICIENCIES),
        }
        for _ in range(rng.randint(1, min(3, num_devices)))
    ]
    types = {f"type{idx}": rng.choice(kinds) | {"memory": "1 GiB"} for idx in range(num_devices)}
    num_hosts = rng.randint(1, min(3, num_devices))
    homes = [*range(num_hosts)]
    homes += [rng.randrange(num_hosts) for _ in range(num_devices - num_hosts)]
    hosts = {
        f"host{host}": {
            "devices": [{"type": f"type{idx}"} for idx in range(num_devices) if homes[idx] == host],
            "inside": {
                "kind": rng.choice(["nvswitch", "pcie", "host"]),
                "bandwidth": rng.choice(BANDS),
                "latency": rng.choice(LATENCIES),
            },
            "nics": {"bandwidth": rng.choice(BANDS), "fabric": "net"},
        }
        for host in range(num_hosts)
    }
    fabrics = {"net": {"latency": rng.choice(LATENCIES)}}
    return {"name": "tiny", "device_types": types, "fabrics": fabrics, "hosts": hosts}


def _cluster(document: dict[str, Any], memory: Sequence[int]) -> Cluster:
    types = {
        name: figures | {"memory": f"{num_bytes} B"}
        for (name, figures), num_bytes in zip(document["device_types"].items(), memory, strict=True)
    }
    return Cluster.from_dict(document | {"device_types": types})


def _needed_bytes(instance: Instance) -> int:
    """What the first device needs to run everything alone without recompute."""
    device = instance.cluster.devices[0].id
    layers = (0, instance.model.num_layers)
    option = next(
        option
        for option in stage_options(instance, [device], layers)
        if option.policies == (("none", instance.model.num_layers),)
    )
    plan = plan_of(instance, [option])
    pipelines = plan.batch.replicas[0].pipelines
    items = stage_memory(price_book(instance), plan.layout, 0, 0, pipelines)
    return items[0].needed_bytes
