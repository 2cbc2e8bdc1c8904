"""Runs programs on token numbers instead of tensors: does every query meet every key just once?

Each (token, head) has a hash; "attention" of a query is the sum of the hashes of the keys it saw,
the "gradient" of a key the sum of the hashes of the queries that saw it. Sums are exact integers,
so a key seen twice, missed or misplaced shows. Sends are buffered: order is the matcher's matter.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from hexisolve.program import instructions as ins
from hexisolve.program.rank_program import Programs, RankProgram, expand

Buffers = dict[str, Any]
METADATA = ("query_ids", "key_ids", "heads")
"""What an executor knows from the shards."""


def token_ids(pieces: Any) -> np.ndarray:
    parts = [piece.sequence * 10**6 + np.arange(piece.start, piece.stop) for piece in pieces]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def hashes(ids: np.ndarray, heads: tuple[int, int], salt: int) -> np.ndarray:
    """[tokens, heads]"""
    head = np.arange(*heads)
    return (ids[:, None] * 7919 + head[None, :] * 104729 + salt) % 1000003


class TokenMachine:
    """All ranks in one process; `run` raises AssertionError on the first wrong number."""

    def __init__(self, programs: Programs, window: int | None = None) -> None:
        self.programs = programs
        self.window = window
        self.is_causal = programs.instance.workload.attention == "causal"
        self.mail: dict[tuple[str, int, int], deque[tuple[int, np.ndarray]]] = defaultdict(deque)
        self.rooms: dict[tuple[str, int], dict[int, Any]] = defaultdict(dict)
        self.checked_rows = 0

    def run(self) -> None:
        running = {program.rank: self._rank(program) for program in self.programs.ranks}
        while running:
            progressed = False
            for rank in list(running):
                try:
                    progressed |= next(running[rank])
                except StopIteration:
                    del running[rank]
                    progressed = True
            assert progressed or not running, f"ranks {sorted(running)} wait forever"
        assert not any(self.mail.values())

    def _rank(self, program: RankProgram) -> Iterator[bool]:
        """Yields True after an instruction, False while it has to wait."""
        chunks: dict[int, Buffers] = defaultdict(dict)
        layers: dict[tuple[int, int], Buffers] = defaultdict(dict)
        handles: dict[str, list[ins.Transfer]] = {}
        meetings: dict[str, int] = defaultdict(int)
        templates = iter_templates(program)
        for instruction, chunk, layer in expand(program):
            template = next(templates)
            shard = program.shards[chunk] if chunk >= 0 else None
            stream, own = chunks[chunk], layers[(chunk, layer)]
            if isinstance(instruction, ins.Start):
                assert instruction.handle not in handles
                handles[instruction.handle] = []
                for transfer in instruction.transfers:
                    if transfer.is_send:
                        payload = read(transfer, stream, own)
                        key = (transfer.channel, program.rank, transfer.peer)
                        self.mail[key].append((transfer.num_elements, payload))
                    else:
                        handles[instruction.handle].append(transfer)
            elif isinstance(instruction, ins.Wait):
                for transfer in handles.pop(instruction.handle):
                    key = (transfer.channel, transfer.peer, program.rank)
                    while not self.mail[key]:
                        yield False
                    size, payload = self.mail[key].popleft()
                    assert size == transfer.num_elements
                    assert shard is not None or transfer.unit
                    write(transfer, payload, stream, own, program, chunk)
            elif isinstance(instruction, ins.Exchange):
                parts = [] if instruction.channel else [exchange_parts(instruction, own)]
                if instruction.channel:
                    number = meetings[instruction.channel]
                    meetings[instruction.channel] += 1
                    room = self.rooms[(instruction.channel, number)]
                    room[instruction.member_idx] = exchange_parts(instruction, own)
                    while len(room) < len(instruction.members):
                        yield False
                    parts = [room[idx] for idx in range(len(instruction.members))]
                received = [sender[instruction.member_idx] for sender in parts]
                join(instruction, received, own)
            elif shard is not None:
                self._local(instruction, program, chunk, stream, own, template)
            yield True
        assert not handles

    def _local(self, instruction, program, chunk, stream, own, template) -> None:  # type: ignore[no-untyped-def]
        ids = token_ids(program.shards[chunk].pieces)
        if isinstance(instruction, ins.Embed):
            stream["hidden"] = ids.copy()
        elif isinstance(instruction, ins.Pre):
            assert instruction.num_rows == len(ids)
            if instruction.again:
                assert (own["x"] == ids).all()
            else:
                own["x"] = stream.pop("hidden", np.zeros(0, np.int64))
                assert (own["x"] == ids).all()
            own["q_tokens"] = hashes(ids, (0, template.num_q_heads), 1)
            own["k_tokens"] = hashes(ids, (0, template.num_kv_heads), 2)
            own["ids"] = ids
            if instruction.record:
                own["pre"] = True
        elif isinstance(instruction, ins.AttnOpen):
            own["out"] = np.zeros_like(own["q"])
            own["heads"] = (instruction.q_heads, instruction.kv_heads, instruction.heads_per_kv)
        elif isinstance(instruction, ins.AttnBackwardOpen):
            own["heads"] = (instruction.q_heads, instruction.kv_heads, instruction.heads_per_kv)
            assert own["out"].shape == own["d_out"].shape
            own["d_q"] = np.zeros_like(own["d_out"])
            own["d_k"] = np.zeros_like(own["k"])
        elif isinstance(instruction, ins.AttnBlock | ins.AttnBackwardBlock):
            backward = isinstance(instruction, ins.AttnBackwardBlock)
            for pair in instruction.pairs:
                attend(pair, own, backward=backward, is_causal=self.is_causal)
        elif isinstance(instruction, ins.Drop):
            for block in instruction.blocks:
                del own[f"{instruction.buffer}:{block}"]
        elif isinstance(instruction, ins.AttnClose):
            assert not any(":" in name for name in own)
            own["lse"] = True
        elif isinstance(instruction, ins.AttnBackwardClose):
            assert not any(":" in name for name in own)
        elif isinstance(instruction, ins.Post):
            assert (own["attn_tokens"] == self.expected_out(ids, template)).all()
            self.checked_rows += len(ids)
            if not instruction.again:
                stream["hidden"] = ids.copy()
            if instruction.record:
                own["post"] = True
        elif isinstance(instruction, ins.Keep):
            for name in list(own):
                if name not in (*instruction.buffers, *METADATA):
                    del own[name]
        elif isinstance(instruction, ins.Loss):
            assert (stream.pop("hidden", np.zeros(0)) == ids).all()
        elif isinstance(instruction, ins.LossBackward):
            stream["d_hidden"] = ids.copy()
        elif isinstance(instruction, ins.PostBackward):
            assert own["post"]
            assert (stream.pop("d_hidden", np.zeros(0)) == ids).all()
            own["d_attn_tokens"] = hashes(ids, (0, template.num_q_heads), 3)
        elif isinstance(instruction, ins.PreBackward):
            assert own["pre"]
            assert (own["d_q_tokens"] == self.expected_out(ids, template)).all()
            assert (own["d_k_tokens"] == self.expected_dk(ids, template)).all()
            stream["d_hidden"] = ids.copy()
            own.clear()
        elif isinstance(instruction, ins.EmbedBackward):
            assert (stream.pop("d_hidden", np.zeros(0)) == ids).all()

    def expected_out(self, ids: np.ndarray, template: Any) -> np.ndarray:
        """[T, H]: sum of key hashes up to each query."""
        per_kv = template.num_q_heads // template.num_kv_heads
        out = np.zeros((len(ids), template.num_q_heads), np.int64)
        for row, token in enumerate(ids):
            sequence, position = divmod(int(token), 10**6)
            length = self.programs.sequence_lengths[sequence]
            first = 0 if self.window is None else max(0, position + 1 - self.window)
            seen = sequence * 10**6 + np.arange(first, position + 1 if self.is_causal else length)
            sums = hashes(seen, (0, template.num_kv_heads), 2).sum(0)
            out[row] = np.repeat(sums, per_kv)
        return out

    def expected_dk(self, ids: np.ndarray, template: Any) -> np.ndarray:
        """[T, K]: sum of query hashes from each key on, over the heads that read it."""
        per_kv = template.num_q_heads // template.num_kv_heads
        out = np.zeros((len(ids), template.num_kv_heads), np.int64)
        for row, token in enumerate(ids):
            sequence, position = divmod(int(token), 10**6)
            length = self.programs.sequence_lengths[sequence]
            stop = length if self.window is None else min(length, position + self.window)
            later = sequence * 10**6 + np.arange(position if self.is_causal else 0, stop)
            sums = hashes(later, (0, template.num_q_heads), 3).sum(0)
            out[row] = sums.reshape(-1, per_kv).sum(1)
        return out


def iter_templates(program: RankProgram) -> Iterator[Any]:
    """The template each instruction of the flat stream comes from (None outside)."""
    for item in program.body:
        if hasattr(item, "instruction"):
            yield None
        else:
            template = program.templates[item.template]
            for _ in program.layers_of(item):
                for _ in template.instructions:
                    yield template


def rows_index(rows: Any) -> np.ndarray:
    return np.concatenate([np.arange(*interval) for interval in rows]) if rows else np.zeros(0, int)


def _kv_slice(transfer: ins.Transfer, own: Buffers) -> slice:
    first = own["heads"][1][0]
    return slice(transfer.heads[0] - first, transfer.heads[1] - first)


def read(transfer: ins.Transfer, stream: Buffers, own: Buffers) -> np.ndarray:
    index = rows_index(transfer.rows)
    if transfer.buffer in ("hidden", "d_hidden"):
        return stream[transfer.buffer][index].copy()
    if transfer.buffer == "gradient":
        return np.zeros(0)
    heads = _kv_slice(transfer, own)
    if transfer.buffer == "kv_own":
        return np.stack([own["k"][index, heads], own["key_ids"][index, heads]])
    if transfer.buffer == "kv_block":
        block = own[f"kv_block:{transfer.block}"]
        assert len(index) == block.shape[1]
        return block[:, :, heads].copy()
    assert transfer.buffer == "dkv_block"
    return own[f"dkv_block:{transfer.block}"][:, heads].copy()


def write(transfer, payload, stream, own, program, chunk) -> None:  # type: ignore[no-untyped-def]
    index = rows_index(transfer.rows)
    if transfer.buffer in ("hidden", "d_hidden"):
        num_rows = program.shards[chunk].num_rows
        stream.setdefault(transfer.buffer, np.full(num_rows, -1))[index] = payload
        return
    if transfer.buffer == "gradient":
        return
    heads = _kv_slice(transfer, own)
    num_heads = own["heads"][1][1] - own["heads"][1][0]
    if transfer.buffer == "kv_block":
        empty = np.full((2, len(index), num_heads), -1, np.int64)
        own.setdefault(f"kv_block:{transfer.block}", empty)[:, :, heads] = payload
        return
    assert transfer.adds
    if transfer.buffer == "dkv_own":
        own["d_k"][index, heads] += payload
    else:
        zeros = np.zeros((len(index), num_heads), np.int64)
        own.setdefault(f"dkv_block:{transfer.block}", zeros)[:, heads] += payload


def attend(pair: ins.AttnPair, own: Buffers, *, backward: bool, is_causal: bool) -> None:
    q_heads, kv_heads, per_kv = own["heads"]
    q_rows, k_rows = slice(*pair.q_rows), slice(*pair.k_rows)
    assert pair.q_rows[0] < pair.q_rows[1]
    assert pair.k_rows[0] < pair.k_rows[1]
    if pair.block < 0:
        keys, key_ids = own["k"][k_rows], own["key_ids"][k_rows]
    else:
        keys, key_ids = own[f"kv_block:{pair.block}"][:, k_rows]
    assert (key_ids >= 0).all()
    q_ids = own["query_ids"][q_rows]
    distance = q_ids[:, None] - key_ids[:, 0][None, :]
    sees = (distance >= 0) | (not is_causal)
    if pair.kind == "full":
        assert sees.all()
    elif pair.kind == "window":
        assert pair.offset == distance[0, 0]
        sees &= distance < pair.window
    else:
        assert pair.kind == "causal"
        assert (q_ids == key_ids[:, 0]).all()
    assert (q_ids[:, None] // 10**6 == key_ids[:, 0][None, :] // 10**6).all()
    for head in range(*q_heads):
        kv = head // per_kv - kv_heads[0]
        target = own["d_q"] if backward else own["out"]
        target[q_rows, head - q_heads[0]] += (sees * keys[:, kv][None, :]).sum(1)
        if backward:
            gradient = own["d_out"][q_rows, head - q_heads[0]]
            added = (sees * gradient[:, None]).sum(0)
            if pair.block < 0:
                own["d_k"][k_rows, kv] += added
            else:
                shape = own[f"kv_block:{pair.block}"].shape[1:]
                name = f"dkv_block:{pair.block}"
                own.setdefault(name, np.zeros(shape, np.int64))[k_rows, kv] += added


def exchange_parts(item: ins.Exchange, own: Buffers) -> list[Any]:
    ends = np.cumsum(item.rows)
    rows = [slice(end - num, end) for end, num in zip(ends, item.rows, strict=True)]
    members = range(len(item.members))
    q, kv = item.q_heads, item.kv_heads
    if item.kind == "qkv":
        assert own["k_tokens"].shape[0] == item.rows[item.member_idx]
        return [
            (own["q_tokens"][:, slice(*q[j])], own["k_tokens"][:, slice(*kv[j])], own["ids"])
            for j in members
        ]
    if item.kind == "out":
        return [(own["out"][rows[j]],) for j in members]
    if item.kind == "d_out":
        return [(own["d_attn_tokens"][:, slice(*q[j])],) for j in members]
    return [(own["d_q"][rows[j]], own["d_k"][rows[j]]) for j in members]


def join(item: ins.Exchange, received: list[Any], own: Buffers) -> None:
    if item.kind == "qkv":
        own["q"] = np.concatenate([part[0] for part in received])
        own["k"] = np.concatenate([part[1] for part in received])
        own["v"] = True
        own["query_ids"] = np.concatenate([part[2] for part in received])
        own["key_ids"] = np.repeat(own["query_ids"][:, None], own["k"].shape[1], 1)
        return
    if item.kind == "d_out":
        own["d_out"] = np.concatenate([part[0] for part in received])
        # What the tokens are does not travel again: it follows from the pieces.
        return
    rows = item.rows[item.member_idx]
    num_q = max(heads[1] for heads in item.q_heads)
    num_kv = max(heads[1] for heads in item.kv_heads)
    q_name = "attn_tokens" if item.kind == "out" else "d_q_tokens"
    own[q_name] = np.zeros((rows, num_q), np.int64)
    for part, heads in zip(received, item.q_heads, strict=True):
        own[q_name][:, slice(*heads)] = part[0]
    if item.kind == "d_qkv":
        own["d_k_tokens"] = np.zeros((rows, num_kv), np.int64)
        for part, heads in zip(received, item.kv_heads, strict=True):
            own["d_k_tokens"][:, slice(*heads)] += part[1]
