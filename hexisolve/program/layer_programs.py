"""Layer templates: one layer forward and backward under each recompute policy.

Forward: ``PRE; EXCHANGE; ATTN_OPEN; {START; ATTN_BLOCK; WAIT}*; ATTN_CLOSE; EXCHANGE; POST``.
Recompute is repetition: the backward template runs again what its policy dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hexisolve.data.model_spec import AttentionSpec
from hexisolve.plan.pieces import StagePieces
from hexisolve.plan.plan import Policy, Stage
from hexisolve.program.blocks import RingWork, ring_work
from hexisolve.program.exchange import GroupLayout, exchange, group_layout
from hexisolve.program.instructions import (
    AttnBackwardClose,
    AttnBackwardOpen,
    AttnClose,
    AttnOpen,
    ExchangeKind,
    Fetch,
    Gather,
    Instruction,
    Keep,
    Offload,
    Post,
    PostBackward,
    Pre,
    PreBackward,
    Reduce,
)
from hexisolve.program.rank_program import Phase, Template
from hexisolve.program.ring import GroupStep, RingRank, ring_steps

KEPT: dict[Policy, tuple[str, ...]] = {
    "none": ("pre", "q", "k", "v", "out", "lse", "post"),
    "mlp": ("x", "pre", "q", "k", "v", "out", "lse", "attn_tokens"),
    "layer": ("x", "out", "lse"),
    "full": ("x",),
}
"""Buffers of a (chunk, layer) that survive from forward to backward."""


@dataclass(frozen=True)
class StageShape:
    """One stage in one chunk shape for layers of one kind: what its templates are made from.

    Parameters
    ----------
    layouts
        Head groups in ring order.
    work
        Blocks of the ring and who computes what.
    channel_prefix
        ``r0.s1``: names of the stage's process groups start with it.
    """

    layouts: tuple[GroupLayout, ...]
    work: RingWork
    attention: AttentionSpec
    channel_prefix: str

    @cached_property
    def forward_steps(self) -> tuple[tuple[GroupStep, ...], ...]:
        """Steps of the ring, group by group."""
        return ring_steps(self.work, backward=False)

    @cached_property
    def backward_steps(self) -> tuple[tuple[GroupStep, ...], ...]:
        """Steps of the backward ring, group by group."""
        return ring_steps(self.work, backward=True)


def stage_shape(
    stage: Stage,
    first_rank: int,
    pieces: StagePieces,
    attention: AttentionSpec,
    channel_prefix: str,
    *,
    causal: bool,
    ring_blocks: int,
) -> StageShape:
    """Work out layouts and blocks of a stage whose first rank has number `first_rank`."""
    layouts = []
    for group, own in zip(stage.ring, pieces, strict=True):
        layouts.append(group_layout(group, first_rank, own, attention))
        first_rank += len(group.ranks)
    work = ring_work(
        [layout.pieces for layout in layouts],
        causal=causal,
        window=attention.window_tokens,
        ring_blocks=ring_blocks,
    )
    return StageShape(tuple(layouts), work, attention, channel_prefix)


@dataclass(frozen=True)
class LayerWriter:
    """Writes the templates of one rank.

    Parameters
    ----------
    gather
        ZeRO-3: fetches the layer's weights before use; None otherwise.
    reduce
        ZeRO-3 with gradients reduced per chunk: after the layer's backward; None otherwise.
    """

    shape: StageShape
    group_idx: int
    member_idx: int
    gather: Gather | None = None
    reduce: Reduce | None = None

    def template(
        self, name: str, phase: Phase, policy: Policy, *, is_offloaded: bool = False
    ) -> Template:
        """Write the template for one policy and phase."""
        write = self._forward if phase == "forward" else self._backward
        attention = self.shape.attention
        return Template(
            name,
            phase,
            policy,
            tuple(write(policy, is_offloaded)),
            attention.num_q_heads,
            attention.num_kv_heads,
            attention.qk_head_dim,
            attention.v_head_dim,
        )

    @property
    def _layout(self) -> GroupLayout:
        return self.shape.layouts[self.group_idx]

    @property
    def _num_rows(self) -> int:
        return self._layout.rows[self.member_idx]

    def _forward(self, policy: Policy, is_offloaded: bool) -> Iterator[Instruction]:
        if self.gather:
            yield self.gather
        yield Pre(self._num_rows, again=False, record=policy in ("none", "mlp"))
        yield self._exchange("qkv")
        yield from self._attention_forward
        yield self._exchange("out")
        yield Post(self._num_rows, again=False, record=policy == "none")
        yield Keep(KEPT[policy])
        if is_offloaded:
            yield Offload(KEPT[policy])

    def _backward(self, policy: Policy, is_offloaded: bool) -> Iterator[Instruction]:
        if is_offloaded:
            yield Fetch(KEPT[policy])
        if self.gather:
            yield self.gather
        if policy in ("layer", "full"):
            yield Pre(self._num_rows, again=True, record=True)
            yield self._exchange("qkv")
            if policy == "full":
                yield from self._attention_forward
            yield self._exchange("out")
        if policy != "none":
            yield Post(self._num_rows, again=True, record=True)
        yield PostBackward(self._num_rows)
        yield self._exchange("d_out")
        yield from self._attention_backward
        yield self._exchange("d_qkv")
        yield PreBackward(self._num_rows)
        if self.reduce:
            yield self.reduce

    def _exchange(self, kind: ExchangeKind) -> Instruction:
        channel = f"{self.shape.channel_prefix}.group{self.group_idx}"
        return exchange(kind, self._layout, self.member_idx, channel, self.shape.attention)

    @cached_property
    def _attention_forward(self) -> tuple[Instruction, ...]:
        opening = AttnOpen(*self._attention_sizes)
        return opening, *self._ring(self.shape.forward_steps, backward=False), AttnClose()

    @cached_property
    def _attention_backward(self) -> tuple[Instruction, ...]:
        opening = AttnBackwardOpen(*self._attention_sizes)
        ring = self._ring(self.shape.backward_steps, backward=True)
        return opening, *ring, AttnBackwardClose()

    @property
    def _attention_sizes(self) -> tuple[int, tuple[int, int], tuple[int, int], int]:
        attention = self.shape.attention
        return (
            self._layout.num_rows,
            self._layout.q_heads[self.member_idx],
            self._layout.kv_heads[self.member_idx],
            attention.num_q_heads // attention.num_kv_heads,
        )

    def _ring(
        self, steps: Sequence[tuple[GroupStep, ...]], *, backward: bool
    ) -> Iterator[Instruction]:
        rank = RingRank(
            self.shape.layouts,
            self.group_idx,
            self.member_idx,
            f"{self.shape.channel_prefix}.ring",
            self.shape.attention,
            self.shape.work.is_deep,
        )
        return rank.instructions(steps[self.group_idx], backward=backward)
