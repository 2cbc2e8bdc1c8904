"""A lower bound on a layer's seconds for stages over several hosts, by the bundles of its hosts.

On clusters of more than 8 devices the plan space joins hosts in *bundles* (docs/plan-space.md): a
head group lies in one bundle, and in a bundle every group gives a host the same query heads. Then,
with X_h the tokens and eta_h the heads of host h, X_S the tokens of its bundle S
(docs/formulation.md, R8):

* attention of host h is ``X_S eta_h`` of the whole;
* by all-to-all ``(X_S - X_h) eta_h`` of q, K, V enter host h, ``X_h (1 - eta_h)`` leave it;
* by the ring ``(1 - X_S) eta_h`` of K and V enter it.

Products of X and eta are bounded over boxes of (X, A), A the seconds of all-to-all; boxes with the
least bound are halved until little is left to gain. Every value on the way is a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.data.constants import CostConstants
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape, exchange_s
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.plan import Policy

MAX_HOSTS = 4
_NUM_ROUNDS = 60
_MAX_SPLIT = 512
_NEAR = 1.1  # boxes this close to the least bound are halved together
_NUM_BISECTIONS = 20
Bundle = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Hosts:
    """Seconds and rates of every host of a column, arrays over the hosts.

    Parameters
    ----------
    dense_forward, attention_forward, dense_backward, attention_backward
        Seconds if the host did all of that work alone.
    exchange
        Seconds of all-to-all per share of tokens times heads that crosses the host's border.
    rate_in
        Bytes/s into the host.
    """

    dense_forward: FloatArray
    attention_forward: FloatArray
    dense_backward: FloatArray
    attention_backward: FloatArray
    exchange: FloatArray
    rate_in: FloatArray


def least_bundled_s(
    load: LayerLoad,
    policy: Policy,
    column: ColumnShape,
    cost: CostConstants,
    num_tokens: int,
    deadline: float = np.inf,
) -> float:
    """Least F + B seconds of a layer over all bundles of the hosts.

    The launches of the layer are not counted, those of ring hops between bundles are. After the
    `deadline` (on `time.monotonic`) boxes are no longer halved: weaker, still a bound.

    Never more than the fastest host alone needs: a column without the others is no slower.
    0 for one host and for more than `MAX_HOSTS`, where this bound is not computed.
    """
    num_hosts = len(column.hosts)
    if not 2 <= num_hosts <= MAX_HOSTS or not load.is_proportional:
        return 0.0
    hosts = _hosts(load, policy, column)
    # A group of odd pieces may have a few pairs less than its share.
    odd = 2.0 * len(column.devices) / (num_tokens + 1)
    hop_s = cost.launch_overhead_s * (2 + REPEATS[policy][4])
    least = float((hosts.dense_forward + hosts.dense_backward + hosts.attention_forward
                   + hosts.attention_backward).min())  # fmt: skip
    for bundles in _partitions(tuple(range(num_hosts))):
        hops_s = hop_s * (len(bundles) - 1)
        boxes = _Boxes(load, policy, hosts, bundles, odd)
        least = min(least, boxes.bound(least - hops_s, deadline) + hops_s)
    return float(least)


def _partitions(items: Bundle) -> Iterator[tuple[Bundle, ...]]:
    """All ways to put hosts in bundles, many bundles first."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for others in _partitions(rest):
        yield ((first,), *others)
        for idx, bundle in enumerate(others):
            yield (*others[:idx], (first, *bundle), *others[idx + 1 :])


def _hosts(load: LayerLoad, policy: Policy, column: ColumnShape) -> _Hosts:
    repeats = REPEATS[policy]
    attention_backward = load.attention_backward_s + repeats[1] * load.attention_forward_s
    rates = {cut.inside: (cut.in_bytes_per_s, cut.out_bytes_per_s) for cut in column.cuts}
    everything = load.query_bytes + load.kv_bytes
    rows = []
    for host in column.hosts:
        own = list(host)
        dense = load.dense_s[own]
        # max_r (d_r x_r + a_r y_r) >= sum_r w_r (..) with w_r in proportion to 1 / d_r.
        pooled = 1.0 / (1.0 / dense).sum()
        into, out = rates.get(tuple(host), (np.inf, np.inf))
        rows.append(
            (
                pooled,
                pooled * (load.attention_forward_s[own] / dense).min(),
                (2 + repeats[0]) * pooled,
                pooled * (attention_backward[own] / dense).min(),
                exchange_s(load, policy, everything, into, out),
                into,
            )
        )
    return _Hosts(*np.array(rows, dtype=float).T)


def _tightened(
    low: FloatArray, high: FloatArray, mothers: FloatArray
) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
    """Boxes cut to where shares sum to 1; empty ones go."""
    tokens, most = low[:, :-1], high[:, :-1]
    for _ in range(2):
        tokens = np.maximum(tokens, 1.0 - (most.sum(axis=1, keepdims=True) - most))
        most = np.minimum(most, 1.0 - (tokens.sum(axis=1, keepdims=True) - tokens))
    exists = (tokens <= most + 1e-12).all(axis=1)
    low = np.concatenate([tokens, low[:, -1:]], axis=1)[exists]
    high = np.concatenate([np.maximum(most, tokens), high[:, -1:]], axis=1)[exists]
    return (low, high), mothers[exists]


class _Boxes:
    """Boxes of token shares X (one per host) and all-to-all seconds A for one set of bundles."""

    def __init__(
        self, load: LayerLoad, policy: Policy, hosts: _Hosts, bundles: Sequence[Bundle], odd: float
    ) -> None:
        self.odd = odd
        self.hosts, self.bundles = hosts, bundles
        self.ring_again = REPEATS[policy][4]
        self.forward_bytes = load.ring_forward_bytes
        self.visiting_bytes, self.returning_bytes = load.ring_backward_bytes
        self.joint_dense = hosts.dense_forward + hosts.dense_backward
        self.joint_attention = hosts.attention_forward + hosts.attention_backward
        num_hosts = len(hosts.rate_in)
        # [host, host] 1 where both are of one bundle.
        self.same = np.zeros((num_hosts, num_hosts))
        for bundle in bundles:
            self.same[np.ix_(bundle, bundle)] = 1.0
        self.alone = self.same.sum(axis=1) == 1.0
        self.scale = float(1.0 / (1.0 / (self.joint_dense + self.joint_attention)).sum())

    def bound(self, target: float, deadline: float) -> float:
        """A lower bound over all boxes; stops early once it exceeds `target`, or is late."""
        num_hosts = len(self.hosts.rate_in)
        most = 6.0 * self.scale
        low = np.zeros((2, num_hosts + 1))
        high = np.ones((2, num_hosts + 1))
        low[1, -1], high[0, -1], high[1, -1] = most, most, np.inf
        if all(len(bundle) == 1 for bundle in self.bundles):
            low, high = low[:1], high[:1]
            high[0, -1] = 0.0
        values = self.values(low, high)
        for _ in range(_NUM_ROUNDS):
            least = float(values.min(initial=np.inf))
            if not np.isfinite(least) or least >= target or time.monotonic() > deadline:
                break
            chosen = np.flatnonzero(values <= least * _NEAR)
            if len(chosen) > _MAX_SPLIT:
                chosen = chosen[np.argsort(values[chosen], kind="stable")[:_MAX_SPLIT]]
            parts = self._halves(low[chosen], high[chosen])
            if parts is None:
                break
            parts, mothers = _tightened(*parts, np.tile(values[chosen], 2))
            fresh = np.maximum(self.values(*parts), mothers)
            low = np.concatenate([np.delete(low, chosen, axis=0), parts[0]])
            high = np.concatenate([np.delete(high, chosen, axis=0), parts[1]])
            values = np.concatenate([np.delete(values, chosen), fresh])
        return float(values.min(initial=np.inf))

    def _halves(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Both halves of every box, across the side that matters most."""
        weights = np.append(self.joint_dense + self.joint_attention + self.hosts.exchange, 1.0)
        width = np.where(np.isfinite(high), high - low, 0.0) * weights
        if width.max(initial=0.0) <= 1e-4 * self.scale:
            return None
        side = width.argmax(axis=1)
        rows = np.arange(len(low))
        middle = (low[rows, side] + high[rows, side]) / 2
        upper, lower = low.copy(), high.copy()
        upper[rows, side] = middle
        lower[rows, side] = middle
        return np.concatenate([low, upper]), np.concatenate([lower, high])

    def values(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Least F + B of every box; infinite where no shares sum to 1."""
        hosts = self.hosts
        tokens, most = low[:, :-1], high[:, :-1]
        exchange = low[:, -1]
        exists = (tokens.sum(axis=1) <= 1 + 1e-12) & (most.sum(axis=1) >= 1 - 1e-12)
        dense_f = np.maximum(
            (hosts.dense_forward * tokens).max(axis=1), 1 / (1 / hosts.dense_forward).sum()
        )
        dense_b = np.maximum(
            (hosts.dense_backward * tokens).max(axis=1), 1 / (1 / hosts.dense_backward).sum()
        )
        ring_f, ring_b = self._ring(tokens, most)
        ringed_f, ringed_b = dense_f + ring_f, dense_b + ring_b
        floor = ringed_f + ringed_b
        of_bundle = np.maximum(tokens @ self.same, 1.0 - most @ (1.0 - self.same))
        of_bundle = np.maximum(of_bundle - self.odd, 0.0)
        fewest, greatest_heads = self._heads(tokens, high[:, -1])
        # The three ways a host can be late: other seconds, and attention seconds per head share.
        late = [
            (self.joint_dense * tokens, self.joint_attention * of_bundle),
            (hosts.dense_forward * tokens + ringed_b[:, None], hosts.attention_forward * of_bundle),
            (
                hosts.dense_backward * tokens + ringed_f[:, None],
                hosts.attention_backward * of_bundle,
            ),
        ]
        late = [(other, np.maximum(attention, 1e-30)) for other, attention in late]
        least, greatest = floor.copy(), np.full_like(floor, 60.0 * self.scale) + floor
        for _ in range(_NUM_BISECTIONS):
            middle = (least + greatest) / 2
            heads = greatest_heads
            for other, attention in late:
                heads = np.minimum(heads, (middle[:, None] - other) / attention)
            enough = (heads >= fewest - 1e-12).all(axis=1)
            enough &= (heads @ self.same >= 1.0 - 1e-12).all(axis=1)
            greatest = np.where(enough, middle, greatest)
            least = np.where(enough, least, middle)
        exists &= (fewest @ self.same <= 1.0 + 1e-12).all(axis=1)
        return np.where(exists, exchange + least, np.inf)

    def _heads(
        self, tokens: FloatArray, exchange_most: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Least and greatest share of the heads of a host that A seconds of exchange allow."""
        others = np.maximum(tokens @ self.same - tokens, 0.0)
        limit = exchange_most[:, None] / self.hosts.exchange
        greatest = np.minimum(limit / np.maximum(others, 1e-30), 1.0)
        fewest = np.maximum(1.0 - limit / np.maximum(tokens, 1e-30), 0.0)
        return np.where(self.alone, 1.0, fewest), np.where(self.alone, 1.0, greatest)

    def _ring(self, tokens: FloatArray, most: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ring seconds forward and backward, at least, of every box."""
        if len(self.bundles) == 1:
            return np.zeros(len(tokens)), np.zeros(len(tokens))
        shares = []
        for bundle in self.bundles:
            inside = list(bundle)
            outside = [h for h in range(tokens.shape[1]) if h not in bundle]
            shares.append(
                np.minimum(most[:, inside].sum(axis=1), 1.0 - tokens[:, outside].sum(axis=1))
            )
        forward, backward = np.zeros(len(tokens)), np.zeros(len(tokens))
        for idx, bundle in enumerate(self.bundles):
            rate = float(self.hosts.rate_in[list(bundle)].sum())
            largest_other = np.max([s for j, s in enumerate(shares) if j != idx], axis=0)
            absent = np.maximum(1.0 - shares[idx], 0.0)
            passing = absent * self.forward_bytes / rate
            back = absent * self.visiting_bytes / rate
            back = back + np.maximum(1.0 - largest_other, 0.0) * self.returning_bytes / rate
            forward = np.maximum(forward, passing)
            backward = np.maximum(backward, back + self.ring_again * passing)
        return forward, backward
