"""Which recompute fits a stage: the least time whose memory every device has.

Bytes are those of `hexisolve.cost.memory`, added up per layer kind and policy once for each
choice of shares; layers of a stage then only count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.cost.exchange import kv_head_range
from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    logits_bytes,
    ring_buffer_bytes,
    states_bytes,
)
from hexisolve.plan.plan import Policy
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.stage_price import Block
from hexisolve.solvers.realise_gauge import Floats, Ints

Flags = npt.NDArray[np.bool_]

POLICIES: tuple[Policy, ...] = ("full", "layer", "none")


class ZeroChoice(NamedTuple):
    """A ZeRO mode and, for ZeRO-3, when gradients are reduced."""

    zero: int
    gradients: str


class ShareBytes(NamedTuple):
    """Bytes of one choice of shares.

    Parameters
    ----------
    kept
        ``[layer kind][policy][rank]``, of one layer and chunk.
    transient
        ``[policy][rank]``, the largest layer kind.
    fixed
        ``[rank]``: exchange, ring and boundary buffers, logits.
    like
        ``[rank]``: equal numbers for ranks that are equal in all of the above.
    """

    kept: Floats
    transient: Floats
    fixed: Floats
    like: Sequence[int]


class Mix(NamedTuple):
    """Layers under each policy, seconds of F + B, and what every rank has left for states."""

    recompute: Mapping[Policy, int]
    seconds: float
    slack: Floats


def share_bytes(
    book: PriceBook,
    sizes: Sequence[int],
    tokens: Sequence[int],
    heads: Sequence[int],
    num_tokens: int,
    *,
    is_last: bool,
    has_boundary: bool,
) -> ShareBytes:
    """Bytes of every rank of a ring with these shares; `sizes` are those of its groups."""
    specs = [layer.attention for layer in book.kind_layers]
    ranks = []
    numbers: dict[tuple[int, int], int] = {}
    first = 0
    for size in sizes:
        group_tokens = sum(tokens[first : first + size])
        stop = 0
        for idx in range(first, first + size):
            own = (stop, stop + heads[idx])
            stop += heads[idx]
            ranges = [kv_head_range(own, a.num_q_heads, a.num_kv_heads) for a in specs]
            shares = tuple(
                RankShare(tokens[idx], group_tokens, heads[idx], high - low) for low, high in ranges
            )
            ranks.append(_rank_bytes(book, shares, size > 1, len(sizes) > 1, num_tokens))
        first += size
    model, cost = book.instance.model, book.instance.cost
    fixed = []
    for (_, _, buffers), count in zip(ranks, tokens, strict=True):
        total = buffers
        if has_boundary:
            total += boundary_buffer_bytes(RankShare(count, 0, 0, 0), model.hidden_size, book.e)
        if is_last:
            total += logits_bytes(count, model.vocab_size, book.e, cost.logits_tile_tokens)
        fixed.append(float(total))
    return ShareBytes(
        np.array([kept for kept, _, _ in ranks]).transpose(1, 2, 0),
        np.array([transient for _, transient, _ in ranks]).T,
        np.array(fixed),
        [
            numbers.setdefault((id(own), count), len(numbers))
            for own, count in zip(ranks, tokens, strict=True)
        ],
    )


def _rank_bytes(
    book: PriceBook,
    shares: tuple[RankShare, ...],
    in_group: bool,
    in_ring: bool,
    num_tokens: int,
) -> tuple[list[list[float]], list[float], int]:
    """(kept of each kind and policy, transient of each policy, buffers) of one rank."""
    key = ("realise bytes", shares, in_group, in_ring, num_tokens)
    known: tuple[list[list[float]], list[float], int] | None = book.entries.get(key)
    if known is not None:
        return known
    hidden, e, e_acc = book.instance.model.hidden_size, book.e, book.instance.cost.accumulator_bytes
    kept, transient = [], [0.0] * len(POLICIES)
    exchange = around = 0
    for layer, own in zip(book.kind_layers, shares, strict=True):
        kept.append([float(kept_bytes(p, own, layer, hidden, e)) for p in POLICIES])
        for idx, policy in enumerate(POLICIES):
            again = backward_transient_bytes(policy, own, layer, hidden, e, e_acc)
            transient[idx] = max(transient[idx], float(again))
        if in_group:
            exchange = max(exchange, exchange_buffer_bytes(own, layer, e))
        if in_ring:
            around = max(around, ring_buffer_bytes(num_tokens, own, layer, e, e_acc))
    known = book.entries[key] = (kept, transient, exchange + around)
    return known


def gathered_bytes(book: PriceBook, blocks: Sequence[Block], choice: ZeroChoice) -> int:
    """ZeRO-3: two neighbouring blocks of weights, and one whole gradient per chunk."""
    if choice.zero != 3:
        return 0
    sizes = [block.gathered for block in blocks]
    pair = max((a + b for a, b in pairwise(sizes)), default=sizes[0])
    gradient = 0
    if choice.gradients == "chunk":
        gradient = max(block.parameters for block in blocks) * book.instance.cost.gradient_bytes
    return pair * book.e + gradient


def state_bytes(book: PriceBook, parameters: int, choice: ZeroChoice) -> tuple[float, float]:
    """(bytes on every rank, bytes that the ranks share out) of model states."""
    cost = book.instance.cost
    own = states_bytes(parameters, 0.0, choice.zero, choice.gradients, book.e, cost)
    whole = states_bytes(parameters, 1.0, choice.zero, choice.gradients, book.e, cost)
    return own, whole - own


class MixTable:
    """Prefix sums over the layers that follow a first one; like ranks share a column.

    A stage of l layers takes `full` on its first f, `none` on its last n, `layer` between.

    Parameters
    ----------
    memory
        Bytes of the shares.
    seconds
        ``[kind][policy]``: F + B of one layer.
    kinds
        Layer kinds, in order, as many as the largest stage has.
    usable
        Bytes that every rank may use.
    chunks_in_flight
        Chunks whose activations are kept at the peak.
    """

    def __init__(
        self,
        memory: ShareBytes,
        seconds: Floats,
        kinds: Sequence[int],
        usable: Sequence[int],
        chunks_in_flight: int,
    ) -> None:
        columns: dict[tuple[int, int], int] = {}
        rows = list(zip(memory.like, usable, strict=True))
        self.column_of = np.array([columns.setdefault(row, len(columns)) for row in rows])
        first = [rows.index(row) for row in columns]
        self.times = np.bincount(self.column_of).astype(np.float64)
        self.budget: Floats = np.array(usable, dtype=np.float64)[first] - memory.fixed[first]
        layers = np.array(kinds)
        kept = chunks_in_flight * memory.kept[:, :, first]
        # [policy][layers counted][column], [policy][layers counted]
        self.kept: Floats = np.zeros((3, len(layers) + 1, len(first)))
        self.kept[:, 1:] = np.cumsum(kept[layers], axis=0).transpose(1, 0, 2)
        self.taken: Floats = np.zeros((3, len(layers) + 1))
        self.taken[:, 1:] = np.cumsum(seconds[layers], axis=0).T
        self.transient: Floats = memory.transient[:, first]

    def slack(self, num_layers: int, full: Ints, none: Ints) -> Floats:
        """Bytes left for model states and gathered weights, ``[candidate][column]``."""
        kept, last = self.kept, num_layers - none
        held = kept[0][full] + kept[1][last] - kept[1][full] + kept[2][num_layers] - kept[2][last]
        working = (none > 0)[:, None] * self.transient[2]
        working = np.maximum(working, (last > full)[:, None] * self.transient[1])
        working = np.maximum(working, (full > 0)[:, None] * self.transient[0])
        left: Floats = self.budget - held - working
        return left

    def seconds(self, num_layers: int, full: Ints, none: Ints) -> Floats:
        """F + B of the layers."""
        taken, last = self.taken, num_layers - none
        total: Floats = (
            taken[0][full] + taken[1][last] - taken[1][full] + taken[2][num_layers] - taken[2][last]
        )
        return total

    def best(self, num_layers: int, own: float, shared: float) -> Mix | None:
        """The fastest numbers of `full`, `layer` and `none` layers that fit, None when none do.

        For every f the largest n is found by bisection, all f at once: kept bytes grow with n.

        Parameters
        ----------
        own
            Bytes of states and gathered weights on every rank.
        shared
            Bytes of states that the ranks share out as their memory allows.
        """

        def fits(full: Ints, none: Ints) -> Flags:
            left = self.slack(num_layers, full, none) - own
            has_room: Flags = (left.min(axis=1) >= 0.0) & (left @ self.times >= shared)
            return has_room

        # One policy for all: `none`, `layer`, `full`. Every mix needs more than one of these.
        pure = fits(np.array([0, 0, num_layers]), np.array([num_layers, 0, 0]))
        if pure[0]:
            return self._mix(num_layers, 0, num_layers, own)
        if not pure.any():
            return None
        full = np.arange(num_layers + 1)
        # n = l - f leaves no `layer`, whose transient is then not there: looked at on its own.
        without = fits(full, num_layers - full)
        low, high = np.full(num_layers + 1, -1), num_layers - full
        while (is_open := high - low > 1).any():
            middle = (low + high) // 2
            ok = fits(full, np.maximum(middle, 0))
            low = np.where(is_open & ok, middle, low)
            high = np.where(is_open & ~ok, middle, high)
        fewest = np.concatenate([full[low >= 0], full[without]])
        most = np.concatenate([low[low >= 0], (num_layers - full)[without]])
        if not len(fewest):
            return None
        best = int(np.argmin(self.seconds(num_layers, fewest, most)))
        return self._mix(num_layers, int(fewest[best]), int(most[best]), own)

    def _mix(self, num_layers: int, full: int, none: int, own: float) -> Mix:
        counts: dict[Policy, int] = {
            "full": full, "layer": num_layers - full - none, "none": none
        }  # fmt: skip
        rows = (np.array([full]), np.array([none]))
        slack: Floats = (self.slack(num_layers, *rows)[0] - own)[self.column_of]
        used = {policy: count for policy, count in counts.items() if count}
        return Mix(used, float(self.seconds(num_layers, *rows)[0]), slack)


def state_weights(slack: Floats, shared: float) -> tuple[int, ...]:
    """State shares as even as the ranks' slack allows (water-filling); all 1 where even fits."""
    num_ranks = len(slack)
    if not shared or (slack >= shared / num_ranks).all():
        return (1,) * num_ranks
    rest, level = shared, 0.0
    for done, room in enumerate(np.sort(slack)):
        level = rest / (num_ranks - done)
        if room >= level:
            break
        rest -= float(room)
    # Units of 2^-40 of the whole: coarse enough for whole numbers, finer than a byte.
    return tuple(int(min(float(room), level) / shared * 2.0**40) for room in slack)
