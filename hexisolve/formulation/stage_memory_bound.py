"""Least bytes a stage needs whatever its internals are, and what recompute that forces.

Shares of activations add up to one chunk over the devices of a stage, so the sum over devices is
a constant of the layers and their policies (M1 of docs/formulation.md). Model states are shared
evenly in this plan space, so they bind device by device (M2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    kept_bytes,
    states_bytes,
    usable_bytes,
)
from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.pipeline_table import FloatArray, IntArray
from hexisolve.formulation.work import POLICIES


class StateMode(NamedTuple):
    """How a stage holds its model states."""

    zero: Literal[0, 1, 3]
    gradients: Literal["step", "chunk"]


def state_modes(instance: Instance, num_devices: int) -> tuple[StateMode, ...]:
    """The modes worth a column: allowed ones; a single device gains nothing by sharding."""
    modes = [StateMode(0, "step")] if 0 in instance.workload.zero else []
    if 1 in instance.workload.zero:
        modes.append(StateMode(1, "step"))
    if 3 in instance.workload.zero:
        modes += [StateMode(3, "step"), StateMode(3, "chunk")]
    return tuple(modes[:1]) if num_devices == 1 else tuple(modes)


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """Bytes of one layer per token of a chunk, summed over the devices of a stage.

    Parameters
    ----------
    kept
        ``[policy]`` between forward and backward.
    transient
        ``[policy]`` during the layer's backward.
    """

    kept: FloatArray
    transient: FloatArray


def layer_memory(instance: Instance, layer: LayerSpec) -> LayerMemory:
    """Bytes per token; exact for even splits, never too large for any."""
    hidden, e = instance.model.hidden_size, instance.workload.element_bytes
    e_acc = instance.cost.accumulator_bytes
    attention = layer.attention
    # A thousand tokens on one device that has everything: every item is linear in the tokens,
    # and K, V are held at least once.
    share = RankShare(1000, 1000, attention.num_q_heads, attention.num_kv_heads)
    kept = [kept_bytes(policy, share, layer, hidden, e) / 1000 for policy in POLICIES]
    transient = [
        backward_transient_bytes(policy, share, layer, hidden, e, e_acc) / 1000
        for policy in POLICIES
    ]
    return LayerMemory(np.array(kept), np.array(transient))


def state_bytes_per_device(
    instance: Instance, mode: StateMode, parameters: FloatArray, num_devices: int
) -> FloatArray:
    """Model states on each device of a stage; `parameters` is an array of stage sizes."""
    per_parameter = states_bytes(
        1, 1.0 / num_devices, mode.zero, mode.gradients, instance.workload.element_bytes,
        instance.cost,
    )  # fmt: skip
    return parameters * per_parameter


def gathered_bytes(instance: Instance, mode: StateMode, pair: FloatArray, largest: FloatArray,
                   num_devices: int) -> FloatArray:  # fmt: skip
    """ZeRO-3: the block that runs and the next one, and a whole gradient when kept sharded."""
    if mode.zero != 3 or num_devices < 2:
        return np.zeros_like(pair)
    total = pair * instance.workload.element_bytes
    if mode.gradients == "chunk":
        total = total + largest * instance.cost.gradient_bytes
    return total


def usable_of(instance: Instance, devices: Sequence[Device], num_neighbours: int) -> IntArray:
    """Usable bytes of each device with its own stage and at least `num_neighbours` as peers."""
    peers = len(devices) - 1 + num_neighbours
    return np.array([usable_bytes(d.memory_bytes, peers, instance.cost) for d in devices])


def least_recompute_mixed_s(
    steps: Sequence[tuple[FloatArray, FloatArray]],
    excess_bytes: FloatArray,
) -> FloatArray:
    """Least seconds of recompute for unlike layers: a fractional knapsack, never above the truth.

    Parameters
    ----------
    steps
        (bytes saved, seconds lost) of every step of recompute for all layers of one kind, as
        arrays over stages; steps of one kind have rising seconds per byte.
    excess_bytes
        Bytes over the room when nothing is recomputed (at most 0: everything fits).
    """
    need = np.maximum(excess_bytes, 0.0).copy()
    total = np.zeros_like(need)
    prices = np.array([np.where(saved > 0, lost / np.maximum(saved, 1e-30), np.inf)
                       for saved, lost in steps])  # fmt: skip
    for rank in range(len(steps)):
        order = np.argsort(prices, axis=0, kind="stable")[rank]
        saved = np.choose(order, [step[0] for step in steps])
        price = np.choose(order, list(prices))
        used = np.minimum(saved, need)
        total += np.where(used > 0, used * np.where(np.isfinite(price), price, 0.0), 0.0)
        need -= used
    return np.where(need > 1e-6 * np.maximum(excess_bytes, 1.0), np.inf, total)
