"""Seconds of single instructions: FLOP over rate, and launch overheads.

``launch_overhead_s`` is charged for every instruction that launches kernels, scaled so that a
layer's forward without ring has `CostConstants.launches_per_layer` of them; the blocks of one ring
hop are one START group, so a ring of G groups is charged G - 1 times, spread over its STARTs.
"""

from __future__ import annotations

from dataclasses import dataclass

from hexisolve.cost.collectives import optimizer_s
from hexisolve.cost.flop import (
    attention_backward_flop,
    attention_forward_flop,
    dense_forward_flop,
    head_forward_flop,
    post_matmul_parameters,
)
from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.errors import UnsupportedPlanError
from hexisolve.program.instructions import (
    AttnBackwardBlock,
    AttnBackwardClose,
    AttnBackwardOpen,
    AttnBlock,
    AttnClose,
    AttnOpen,
    AttnPair,
    Drop,
    Embed,
    EmbedBackward,
    Fetch,
    Instruction,
    Keep,
    Loss,
    LossBackward,
    Offload,
    Post,
    PostBackward,
    Pre,
    PreBackward,
    Step,
)
from hexisolve.program.played import Run, WorkKind

# PRE, EXCHANGE, ATTN_OPEN, ATTN_CLOSE, EXCHANGE, POST; blocks go with OPEN and the ring's hops.
_LAUNCHES_IN_TEMPLATE = 6


def pair_count(pair: AttnPair) -> int:
    """Query-key pairs of a rectangle.

    >>> pair_count(AttnPair(-1, (0, 4), (0, 4), "causal"))
    10
    >>> pair_count(AttnPair(0, (0, 4), (0, 4), "window", 0, 2))
    7
    """
    num_q, num_k = pair.q_rows[1] - pair.q_rows[0], pair.k_rows[1] - pair.k_rows[0]
    if pair.kind == "full":
        return num_q * num_k
    if pair.kind == "causal":
        return num_q * (num_q + 1) // 2
    newest = _clamped_sum(pair.offset + 1, num_q, num_k)
    return newest - _clamped_sum(pair.offset + 1 - pair.window, num_q, num_k)


def _clamped_sum(first: int, count: int, top: int) -> int:
    """Sum of ``min(max(v, 0), top)`` for v = first, first + 1, ... (`count` of them)."""

    def below(stop: int) -> int:
        if stop <= 0:
            return 0
        if stop <= top + 1:
            return stop * (stop - 1) // 2
        return top * (top + 1) // 2 + (stop - 1 - top) * top

    return below(first + count) - below(first)


@dataclass(frozen=True)
class Durations:
    """Seconds of the instructions of one rank.

    Parameters
    ----------
    device
        Where it runs.
    num_q_heads
        Query heads of the rank.
    """

    instance: Instance
    device: Device
    num_q_heads: int

    @property
    def launch_s(self) -> float:
        """Overhead of one instruction that launches kernels."""
        cost = self.instance.cost
        return cost.launch_overhead_s * cost.launches_per_layer / _LAUNCHES_IN_TEMPLATE

    def run(self, instruction: Instruction, layer: LayerSpec | None) -> Run | None:
        """The work of a local instruction; None when it takes no time.

        Raises
        ------
        UnsupportedPlanError
            For offload, which the clock does not play.
        """
        if isinstance(instruction, Pre | Post | PreBackward | PostBackward):
            assert layer is not None
            return self._dense(instruction, layer)
        if isinstance(instruction, AttnBlock | AttnBackwardBlock):
            assert layer is not None
            return Run(self._attention_s(instruction, layer), "attention")
        if isinstance(instruction, AttnOpen | AttnClose | AttnBackwardOpen | AttnBackwardClose):
            return Run(self.launch_s, "attention")
        if isinstance(instruction, Loss | LossBackward):
            model = self.instance.model
            flop = head_forward_flop(model.hidden_size, model.vocab_size, instruction.num_rows)
            seconds = flop / self.device.dense_flop_per_s
            if isinstance(instruction, Loss):
                return Run(seconds, "loss")
            return Run(2 * seconds, "loss_backward")
        if isinstance(instruction, Step):
            parameters = sum(stop - start for _, start, stop in instruction.parts)
            traffic = self.instance.cost.optimizer_traffic_bytes
            rate = self.device.memory_bytes_per_s
            return Run(optimizer_s(parameters, rate, traffic), "optimizer")
        if isinstance(instruction, Offload | Fetch):
            raise UnsupportedPlanError("the clock does not play offload yet; use recompute")
        assert isinstance(instruction, Embed | EmbedBackward | Keep | Drop)
        return None

    def _dense(self, instruction: Pre | Post | PreBackward | PostBackward, layer: LayerSpec) -> Run:
        attention = layer.attention
        after = post_matmul_parameters(
            self.instance.model.hidden_size, attention.num_q_heads, attention.v_head_dim,
            layer.mlp.matmul_parameters,
        )  # fmt: skip
        after = min(after, layer.matmul_parameters)
        is_post = isinstance(instruction, Post | PostBackward)
        parameters = after if is_post else layer.matmul_parameters - after
        times = 1 if isinstance(instruction, Pre | Post) else 2
        flop = times * dense_forward_flop(parameters, instruction.num_rows)
        kind: WorkKind = "post" if is_post else "pre"
        return Run(flop / self.device.dense_flop_per_s + self.launch_s, kind)

    def _attention_s(self, instruction: AttnBlock | AttnBackwardBlock, layer: LayerSpec) -> float:
        pairs = sum(map(pair_count, instruction.pairs))
        widths = layer.attention.qk_head_dim, layer.attention.v_head_dim
        if isinstance(instruction, AttnBlock):
            flop = attention_forward_flop(*widths, self.num_q_heads, pairs)
            return flop / self.device.attention_forward_flop_per_s
        flop = attention_backward_flop(*widths, self.num_q_heads, pairs)
        return flop / self.device.attention_backward_flop_per_s
