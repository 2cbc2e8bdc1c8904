"""Seconds of work and bytes of one layer for one whole chunk, before anybody shares it.

Everything a relaxed price needs of a layer, per unit share: a device with the share x of the
tokens has ``dense_s x`` of dense work, and so on (docs/formulation.md, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.cost.exchange import kv_width
from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    query_pairs,
)
from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.plan.plan import Policy

POLICIES: tuple[Policy, ...] = ("none", "layer", "full")
# Per policy: dense, attention, exchange before, exchange after and ring passes run again in
# backward, and its launches as a multiple of a forward's (docs/cost-model.md, recompute).
REPEATS: dict[Policy, tuple[int, int, int, int, int, float]] = {
    "none": (0, 0, 0, 0, 0, 1.0),
    "layer": (1, 0, 1, 1, 0, 1.5),
    "full": (1, 1, 1, 1, 1, 2.0),
}


@dataclass(frozen=True, eq=False)
class LayerLoad:
    """One layer and chunk on a list of devices.

    Parameters
    ----------
    dense_s, attention_forward_s, attention_backward_s
        ``[device]`` seconds if the device did all of it alone, forward.
    query_bytes, kv_bytes, output_bytes
        q, K and V together, and attention output of the whole chunk in an all-to-all.
    ring_forward_bytes
        K and V of the whole chunk in a ring pass.
    ring_backward_bytes
        ``(visiting, returning)``: K, V again, and dK, dV in accumulators.
    query_heads, kv_heads
        H and K.
    is_proportional
        Whether a group's pairs are its share of the tokens (no window).
    """

    dense_s: FloatArray
    attention_forward_s: FloatArray
    attention_backward_s: FloatArray
    query_bytes: float
    kv_bytes: float
    output_bytes: float
    ring_forward_bytes: float
    ring_backward_bytes: tuple[float, float]
    query_heads: int
    kv_heads: int
    is_proportional: bool

    def forward_s(self) -> FloatArray:
        """``[device]`` compute seconds of a forward."""
        return self.dense_s + self.attention_forward_s

    def backward_s(self, policy: Policy) -> FloatArray:
        """``[device]`` compute seconds of a backward with what `policy` repeats."""
        dense, attention, *_ = REPEATS[policy]
        return (
            (2 + dense) * self.dense_s
            + attention * self.attention_forward_s
            + self.attention_backward_s
        )


def layer_load(
    instance: Instance, layer: LayerSpec, num_tokens: int, devices: Sequence[Device]
) -> LayerLoad:
    """The load of one layer for a whole sequence of `num_tokens`."""
    attention = layer.attention
    a_qk, a_v = attention.qk_head_dim, attention.v_head_dim
    is_causal = instance.workload.attention == "causal"
    pairs = query_pairs(0, num_tokens, num_tokens, attention.window_tokens, is_causal)
    heads = attention.num_q_heads
    e, e_acc = instance.workload.element_bytes, instance.cost.accumulator_bytes
    dense = float(dense_forward_flop(layer.matmul_parameters, num_tokens))
    forward = float(attention_forward_flop(a_qk, a_v, heads, pairs))
    backward = float(attention_backward_flop(a_qk, a_v, heads, pairs))
    width = kv_width(attention.num_kv_heads, attention)
    return LayerLoad(
        dense_s=dense / np.array([d.dense_flop_per_s for d in devices]),
        attention_forward_s=forward / np.array([d.attention_forward_flop_per_s for d in devices]),
        attention_backward_s=backward
        / np.array([d.attention_backward_flop_per_s for d in devices]),
        query_bytes=float(num_tokens * heads * a_qk * e),
        kv_bytes=float(num_tokens * attention.num_kv_heads * (a_qk + a_v) * e),
        output_bytes=float(num_tokens * heads * a_v * e),
        ring_forward_bytes=float(num_tokens * width * e),
        ring_backward_bytes=(float(num_tokens * width * e), float(num_tokens * width * e_acc)),
        query_heads=heads,
        kv_heads=attention.num_kv_heads,
        is_proportional=not is_causal
        or attention.window_tokens is None
        or attention.window_tokens >= num_tokens,
    )
