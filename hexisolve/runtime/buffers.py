"""The named buffers of one rank: what `hexisolve.program.instructions` reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError
from hexisolve.plan.pieces import Pieces
from hexisolve.program.instructions import AttnBackwardOpen, AttnOpen
from hexisolve.program.rank_program import Shard
from hexisolve.runtime.architecture import Architecture
from hexisolve.runtime.attention import HeadMap, Merge
from hexisolve.runtime.corpus import IGNORED, Batch
from hexisolve.runtime.rope import rotation_tables
from hexisolve.runtime.segments import Record

KvPair = tuple[Tensor, Tensor]


@dataclass
class LayerBuffers:
    """Buffers of one (chunk, layer).

    Parameters
    ----------
    tensors
        By buffer name (``x``, ``q``, ``d_k``, ...).
    records
        Autograd records ``pre`` and ``post``.
    blocks
        (buffer, block) -> K and V parts of ``kv_block`` and ``dkv_block``.
    merge, heads
        Running attention result and head map while attention is open.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    blocks: dict[tuple[str, int], KvPair] = field(default_factory=dict)
    merge: Merge | None = None
    heads: HeadMap | None = None

    def tensor(self, name: str) -> Tensor:
        """A buffer that must exist.

        Raises
        ------
        RuntimeMismatchError
            When the program reads a buffer that it has dropped or never wrote.
        """
        found = self.tensors.get(name)
        if found is None:
            raise RuntimeMismatchError(f"the program reads buffer {name!r}, which holds nothing")
        return found

    def block(self, name: str, block: int) -> KvPair:
        """K and V parts of a block that must exist."""
        found = self.blocks.get((name, block))
        if found is None:
            raise RuntimeMismatchError(f"the program reads {name}[{block}], which holds nothing")
        return found

    def record(self, name: str) -> Record:
        """Take the autograd record out; it can be used once."""
        found = self.records.pop(name, None)
        if found is None:
            raise RuntimeMismatchError(f"the program needs the record {name!r}, which is not kept")
        return found

    def keep(self, names: tuple[str, ...]) -> None:
        """Free all but these buffers."""
        wanted = set(names)
        self.tensors = {name: value for name, value in self.tensors.items() if name in wanted}
        self.records = {name: value for name, value in self.records.items() if name in wanted}
        self.blocks = {}

    def open_heads(self, opened: AttnOpen | AttnBackwardOpen) -> HeadMap:
        """Set the explicit query-to-KV map of the rank's heads."""
        first_kv, stop_kv = opened.kv_heads
        kv_of_q = [head // opened.heads_per_kv - first_kv for head in range(*opened.q_heads)]
        if any(not 0 <= head < stop_kv - first_kv for head in kv_of_q):
            raise RuntimeMismatchError(
                f"query heads {opened.q_heads} read KV heads outside {opened.kv_heads}"
            )
        self.heads = HeadMap(kv_of_q, stop_kv - first_kv)
        return self.heads


@dataclass
class ChunkBuffers:
    """Buffers of one chunk on one rank, and its tokens.

    Parameters
    ----------
    tokens_L, targets_L
        Token ids and what they predict, in storage order.
    rotation
        (cos, sin) at the tokens' positions in their sequences.
    """

    tokens_L: Tensor
    targets_L: Tensor
    rotation: tuple[Tensor, Tensor]
    hidden: Tensor | None = None
    d_hidden: Tensor | None = None
    d_loss: Tensor | None = None
    layers: dict[int, LayerBuffers] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """T."""
        return self.tokens_L.numel()

    def layer(self, layer_idx: int) -> LayerBuffers:
        """Buffers of a layer, made on first use."""
        return self.layers.setdefault(layer_idx, LayerBuffers())


def open_chunk(
    architecture: Architecture, shard: Shard, batch: Batch, dtype: torch.dtype,
    device: torch.device,
) -> ChunkBuffers:  # fmt: skip
    """The tokens, targets and rotations of a rank's pieces of a chunk."""
    positions_L = _positions(shard.pieces).to(device)
    return ChunkBuffers(
        tokens_L=_cut(batch.tokens, shard.pieces, 0).to(device),
        targets_L=_cut(batch.targets, shard.pieces, IGNORED).to(device),
        rotation=rotation_tables(architecture.rope, architecture.head_dim, positions_L, dtype),
    )


def _positions(pieces: Pieces) -> Tensor:
    if not pieces:
        return torch.zeros(0, dtype=torch.long)
    return torch.cat([torch.arange(piece.start, piece.stop) for piece in pieces])


def _cut(sequences: tuple[Tensor, ...], pieces: Pieces, empty: int) -> Tensor:
    if not pieces:
        return torch.full((0,), empty, dtype=torch.long)
    return torch.cat([sequences[piece.sequence][piece.start : piece.stop] for piece in pieces])
