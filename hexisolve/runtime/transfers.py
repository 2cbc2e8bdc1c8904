"""Point-to-point transfers of one rank: buffers into messages, and received messages back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError
from hexisolve.program.instructions import DtypeRole, Interval, Start, Transfer
from hexisolve.runtime.attention import wide_dtype
from hexisolve.runtime.buffers import ChunkBuffers, KvPair, LayerBuffers
from hexisolve.runtime.flat import FlatStage
from hexisolve.runtime.payload import local_heads, num_rows, pack, put_rows, take_rows, unpack
from hexisolve.runtime.requests import Message, Post


def role_dtype(role: DtypeRole, dtype: torch.dtype) -> torch.dtype:
    """The element type of a role when weights and activations have `dtype`."""
    if role in ("activation", "weight"):
        return dtype
    return torch.float64 if role == "scalar" else wide_dtype(dtype)


def unit_name(unit: str, layer_idx: int) -> str:
    """Name of a unit; ``layer`` inside a template is the layer being run."""
    return f"layer:{layer_idx}" if unit == "layer" else unit


@dataclass(frozen=True, eq=False)
class _Expected:
    """A receive that was posted, and where its payload belongs."""

    transfer: Transfer
    payload: Tensor
    chunk: ChunkBuffers | None
    layer_idx: int


@dataclass(eq=False)
class Transfers:
    """The transfers one rank has started and not waited for.

    Parameters
    ----------
    kv_heads
        KV heads the rank holds in head layout: where a transfer's heads lie in its buffers.
    hidden_size, head_dim
        D and H.
    """

    rank: int
    flat: FlatStage
    kv_heads: Interval
    hidden_size: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    _pending: dict[str, list[_Expected]] = field(default_factory=dict)

    @property
    def open_handles(self) -> tuple[str, ...]:
        """Handles nobody has waited for."""
        return tuple(self._pending)

    def start(self, start: Start, chunk: ChunkBuffers | None, layer_idx: int) -> Post:
        """Pack what is sent, make room for what is received."""
        if start.handle in self._pending:
            raise RuntimeMismatchError(f"handle {start.handle} is started twice without a wait")
        messages, expected = [], []
        for transfer in start.transfers:
            dtype = role_dtype(transfer.dtype, self.dtype)
            if transfer.is_send:
                payload = pack(self._parts(transfer, chunk, layer_idx), dtype)
                if payload.numel() != transfer.num_elements:
                    raise RuntimeMismatchError(
                        f"rank {self.rank} packs {payload.numel()} elements of {transfer.buffer} "
                        f"for rank {transfer.peer}, the program says {transfer.num_elements}"
                    )
            else:
                payload = torch.empty(transfer.num_elements, dtype=dtype, device=self.device)
                expected.append(_Expected(transfer, payload, chunk, layer_idx))
            messages.append(Message(transfer.channel, transfer.peer, transfer.is_send, payload))
        self._pending[start.handle] = expected
        if chunk is not None:
            _free_boundary(start, chunk)
        return Post(start.handle, tuple(messages))

    def finish(self, handle: str) -> None:
        """Store what was received."""
        sums: dict[str, list[_Expected]] = {}
        for entry in self._pending.pop(handle):
            if entry.transfer.buffer == "gradient" and entry.transfer.adds:
                sums.setdefault(unit_name(entry.transfer.unit, entry.layer_idx), []).append(entry)
            else:
                self._store(entry.transfer, entry.payload, entry.chunk, entry.layer_idx)
        for unit, entries in sums.items():
            self._add_gradients(unit, entries)

    def _add_gradients(self, unit: str, entries: list[_Expected]) -> None:
        """Sum what other holders of a unit sent.

        Every holder adds in the order of ranks, itself included: three copies of a weight would
        otherwise drift apart by rounding.
        """
        gradient = self.flat.gradients[unit]
        later = [entry for entry in entries if entry.transfer.peer > self.rank]
        earlier = [entry for entry in entries if entry.transfer.peer < self.rank]
        if earlier:
            own = gradient.clone()
            gradient.zero_()
            self._add_in_order(gradient, earlier)
            gradient += own
        self._add_in_order(gradient, later)

    def _add_in_order(self, gradient: Tensor, entries: list[_Expected]) -> None:
        for entry in sorted(entries, key=lambda entry: entry.transfer.peer):
            put_rows(gradient, entry.transfer.rows, entry.payload, adds=True)

    def boundary(self, chunk: ChunkBuffers, name: str) -> Tensor:
        """``hidden`` or ``d_hidden``, made on first receive (or for a rank without tokens)."""
        tensor = chunk.hidden if name == "hidden" else chunk.d_hidden
        if tensor is None:
            tensor = torch.zeros(
                chunk.num_rows, self.hidden_size, dtype=self.dtype, device=self.device
            )
            if name == "hidden":
                chunk.hidden = tensor
            else:
                chunk.d_hidden = tensor
        return tensor

    def _parts(
        self, transfer: Transfer, chunk: ChunkBuffers | None, layer_idx: int
    ) -> list[Tensor]:
        """The tensors a send takes its payload from."""
        if transfer.buffer == "gradient":
            gradient = self.flat.gradients[unit_name(transfer.unit, layer_idx)]
            return [take_rows(gradient, transfer.rows)]
        assert chunk is not None
        if transfer.buffer in ("hidden", "d_hidden"):
            tensor = chunk.hidden if transfer.buffer == "hidden" else chunk.d_hidden
            if tensor is None:
                raise RuntimeMismatchError(
                    f"rank {self.rank} sends {transfer.buffer}, which holds nothing"
                )
            return [take_rows(tensor, transfer.rows)]
        heads = local_heads(transfer.heads, self.kv_heads)
        return [
            take_rows(part, transfer.rows)[:, heads]
            for part in self._kv_pair(transfer, chunk.layer(layer_idx))
        ]

    def _store(
        self, transfer: Transfer, payload: Tensor, chunk: ChunkBuffers | None, layer_idx: int
    ) -> None:
        if transfer.buffer == "gradient":
            gradient = self.flat.gradients[unit_name(transfer.unit, layer_idx)]
            put_rows(gradient, transfer.rows, payload, adds=transfer.adds)
            return
        assert chunk is not None
        count = num_rows(transfer.rows)
        if transfer.buffer in ("hidden", "d_hidden"):
            tensor = self.boundary(chunk, transfer.buffer)
            values = payload.view(count, self.hidden_size)
            put_rows(tensor, transfer.rows, values, adds=transfer.adds)
            return
        heads = local_heads(transfer.heads, self.kv_heads)
        shape = (count, heads.stop - heads.start, self.head_dim)
        pair = self._kv_pair(transfer, chunk.layer(layer_idx))
        for tensor, values in zip(pair, unpack(payload, [shape, shape]), strict=True):
            put_rows(tensor[:, heads], transfer.rows, values, adds=transfer.adds)

    def _kv_pair(self, transfer: Transfer, buffers: LayerBuffers) -> KvPair:
        """The K and V (or dK and dV) buffers of a transfer, made on first receive."""
        if transfer.buffer == "kv_own":
            return buffers.tensor("k"), buffers.tensor("v")
        if transfer.buffer == "dkv_own":
            return buffers.tensor("d_k"), buffers.tensor("d_v")
        place = (transfer.buffer, transfer.block)
        if place not in buffers.blocks and not transfer.is_send:
            shape = (
                num_rows(transfer.rows), self.kv_heads[1] - self.kv_heads[0], self.head_dim
            )  # fmt: skip
            dtype = role_dtype(transfer.dtype, self.dtype)
            buffers.blocks[place] = (
                torch.zeros(shape, dtype=dtype, device=self.device),
                torch.zeros(shape, dtype=dtype, device=self.device),
            )
        return buffers.block(*place)


def _free_boundary(start: Start, chunk: ChunkBuffers) -> None:
    """Hidden states that were packed for another stage are not needed here any more."""
    sent = {transfer.buffer for transfer in start.transfers if transfer.is_send}
    if "hidden" in sent:
        chunk.hidden = None
    if "d_hidden" in sent:
        chunk.d_hidden = None
