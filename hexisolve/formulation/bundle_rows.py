"""Rows of R8: what a layer takes when its hosts are joined in given bundles (docs/formulation.md).

Products of two shares are variables of their own here; `hexisolve.formulation.bundle_program` ties
them to their factors inside a box. With X_h and eta_h the tokens and heads of host h, X_S the
tokens of its bundle S, and K_h the heads of its busiest device times its devices (of a group),
every other row is linear.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from hexisolve.formulation.bundled_work import (
    BundledStage,
    BundledWork,
    HostMemory,
    Port,
    Variables,
    Weights,
    less,
)
from hexisolve.formulation.gathered_rows import add_gathered
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.small_program import Rows
from hexisolve.formulation.work import REPEATS
from hexisolve.plan.plan import Policy


class BundleRows:
    """Writes the rows of one `BundledStage`.

    Parameters
    ----------
    work, stage
        What is done, and what is fixed.
    """

    def __init__(self, work: BundledWork, stage: BundledStage) -> None:
        self.work, self.stage, self.rows = work, stage, Rows()
        hosts = self.hosts = work.any_hosts
        has_ends = work.ends is not None
        self.names = Variables(len(hosts), stage.bundles, list(work.weights), has_ends)
        # Bundle of every host, groups of its bundle (0: open), whether it is alone there.
        self.bundle_of = np.zeros(len(hosts), dtype=np.int64)
        self.groups = np.zeros(len(hosts))
        for idx, (bundle, number) in enumerate(zip(stage.bundles, stage.groups, strict=True)):
            self.bundle_of[list(bundle)] = idx
            self.groups[list(bundle)] = number or 0
        sizes = np.array([len(bundle) for bundle in stage.bundles])
        self.alone = sizes[self.bundle_of] == 1
        # Devices of a host in a group; 1 where the groups are open.
        self.per_group = np.where(
            self.groups > 0, hosts.num_devices / np.maximum(self.groups, 1.0), 1.0
        )
        self.rates = [float(hosts.rate_in[list(bundle)].sum()) for bundle in stage.bundles]
        # What the group with most tokens misses: first - X_S / second, at least.
        slack = [work.margins.slack * ((number or 0) > 1) for number in stage.groups]
        self.missing = [
            (1.0 - work.margins.odd - own, float(number or 1))
            for own, number in zip(slack, stage.groups, strict=True)
        ]
        self._known_ports: dict[int, list[Port]] = {}
        self._shares()
        self._memory()
        self._compute()
        self._ring()
        for host in range(len(hosts)):
            self._own_ring(host)
            self._exchange(host)
        if work.moved[0]:
            add_gathered(self)
        self._tie()

    def _tie(self) -> None:
        """Rows for the products and for the cutoff, to be filled in: four planes for each.

        Entries are the product and its two factors; those of the cutoff are `costed`.
        """
        names, rows = self.names, self.rows
        self.products: list[tuple[int, int, int]] = []
        for host, bundle in enumerate(self.bundle_of.tolist()):
            whole = names.bundle[bundle]
            if not self.alone[host]:
                self.products += [
                    (names.pairs[host], whole, names.heads[host]),
                    (names.busiest_pairs[host], names.busiest_group[bundle], names.busiest[host]),
                    (names.own[host], names.tokens[host], names.heads[host]),
                ]
        self.products += [
            (product, names.tokens[one], names.heads[other])
            for (one, other), product in names.crossing.items()
        ]
        self.product_row = len(rows)
        for product, one, other in self.products:
            for sign in (1.0, 1.0, -1.0, -1.0):
                rows.add([(product, sign), (one, 1.0), (other, 1.0)])
        passes = [*self._forwards, *(backward for _, backward in self._backwards)]
        self.costed = [*passes, names.swap, names.swap_back]
        self.cutoff_row = len(rows)
        rows.add([(variable, -1.0) for variable in self.costed])

    @property
    def _forwards(self) -> list[int]:
        """Every forward, with and without what moves beside."""
        return [self.names.forward, *self.names.plain[:1]]

    @property
    def _backwards(self) -> list[tuple[Policy, int]]:
        """Every backward, with and without what moves beside."""
        found, ends = list(self.names.backward.items()), self.work.ends
        return found if ends is None else [*found, (ends.policy, self.names.plain[1])]

    @property
    def has_ring(self) -> bool:
        """Whether K and V travel between bundles."""
        return len(self.stage.bundles) > 1

    def before(self, bundle: int) -> int | None:
        """The bundle before one in the ring; None while that is open."""
        number = len(self.stage.bundles)
        turn = self.stage.turn or (tuple(range(number)) if number <= 2 else None)
        return None if turn is None else turn[turn.index(bundle) - 1]

    def _shares(self) -> None:
        """Shares sum to 1; of twins, the first has most tokens."""
        names, add = self.names, self.rows.add
        add([(own, 1.0) for own in names.tokens], 1.0, True)
        for idx, bundle in enumerate(self.stage.bundles):
            whole = names.bundle[idx]
            add([(whole, 1.0), *((names.tokens[h], -1.0) for h in bundle)], 0.0, True)
            add([(names.heads[h], 1.0) for h in bundle], 1.0, True)
            for h in bundle:
                # X_h eta_k over all k is X_h; over all h it is X_S eta_k.
                away = [(names.crossing[h, k], 1.0) for k in bundle if k != h]
                back = [(names.crossing[k, h], 1.0) for k in bundle if k != h]
                own = names.own[h]
                add([(names.tokens[h], -1.0), (own, 1.0), *away], 0.0, True)
                add([(names.pairs[h], -1.0), (own, 1.0), *back], 0.0, True)
            busiest = names.busiest_group[idx]
            add([(busiest, 1.0), (whole, -1.0)])
            if len(bundle) == 1:
                add([(names.busiest_pairs[bundle[0]], 1.0), (busiest, -1.0)], 0.0, True)
        for h in range(len(self.hosts)):
            add([(names.blocks[h], 1.0), (names.tokens[h], -1.0)])
            add([(names.busiest[h], 1.0), (names.heads[h], -1.0)])
            add([(names.busiest_pairs[h], 1.0), (names.pairs[h], -1.0)])
        keys = np.concatenate([own.key for own in self.work.hosts.values()], axis=1)
        for one, other in itertools.combinations(range(len(self.hosts)), 2):
            if (keys[one] == keys[other]).all() and self._are_exchangeable(one, other):
                add([(names.tokens[one], 1.0), (names.tokens[other], -1.0)])

    def _are_exchangeable(self, one: int, other: int) -> bool:
        """Whether bundles and groups stay what they are; every turn is tried anyway."""
        if self.bundle_of[one] == self.bundle_of[other]:
            return True
        are_alone = bool(self.alone[one] and self.alone[other])
        return are_alone and bool(self.groups[one] == self.groups[other])

    def _memory(self) -> None:
        """One row per host, for `memory_values`: the busiest device has the most of everything."""
        self.memory_row = len(self.rows)
        names = self.names
        if self.work.memory is not None:
            for h in range(len(self.hosts)):
                self.rows.add([(names.blocks[h], -1.0), (names.busiest_pairs[h], -1.0)])

    def memory_values(
        self, memory: HostMemory, least_tokens: Sequence[float]
    ) -> tuple[FloatArray, FloatArray]:
        """Coefficients ``[host, 2]`` and right-hand sides of the rows of memory.

        `least_tokens` of every host have tiles of logits at least.
        """
        values, right = np.empty((len(self.hosts), 2)), np.empty(len(self.hosts))
        margins = self.work.margins
        for h, room in enumerate(memory.room.tolist()):
            needs = np.array(memory.needs)
            # An open number of groups may be as many as devices: nothing is exchanged.
            if not self.alone[h] or (self.groups[h] and self.per_group[h] > 1):
                needs = needs + memory.exchange
            number = float(self.hosts.num_devices[h])
            share = max(least_tokens[h] - number * margins.uneven, 0.0)
            logits = min(memory.logits_tile * number, share) * memory.logits
            # The first device of the first group may have a little less.
            room = room - logits + number * margins.short * needs[0]
            values[h], right[h] = -needs / needs.max(), -room / needs.max()
        return values, right

    def _compute(self) -> None:
        """A group waits for its slowest dense work, then for its slowest attention.

        The first group has the busiest device of every host in both (docs/plan-space.md).
        """
        names, add, margins = self.names, self.rows.add, self.work.margins
        for h, idx in enumerate(self.bundle_of.tolist()):
            dense = float(self.hosts.dense_forward[h])
            few = self.hosts.num_devices[h] * margins.short
            add([(names.dense[idx], 1.0), (names.blocks[h], -dense)], -dense * few)
            kinds = [(names.attention[idx], self.hosts.attention_forward[h])]
            for policy, own in self.work.hosts.items():
                kinds.append((names.attention_back[policy][idx], own.attention_backward[h]))
            for seconds, factor in kinds:
                add(
                    [(seconds, 1.0), (names.busiest_pairs[h], -factor),
                     (names.busiest[h], margins.odd * factor)]
                )  # fmt: skip
        for idx, dense in enumerate(names.dense):
            add([(names.slowest_dense, 1.0), (dense, -1.0)])
            for forward in self._forwards:
                add([(forward, 1.0), (dense, -1.0), (names.attention[idx], -1.0)])
            for policy, backward in self._backwards:
                times = 2.0 + REPEATS[policy][0]
                attention = names.attention_back[policy][idx]
                add([(backward, 1.0), (dense, -times), (attention, -1.0)])

    def _ring(self) -> None:
        """K and V into the bundles; the ring hides under attention only."""
        names, add, load = self.names, self.rows.add, self.work.load
        for idx, (first, number) in enumerate(self.missing):
            share = [(names.absent[idx], 1.0), (names.bundle[idx], 1.0 / number)]
            add(share, first)
            add([(names.absent[idx], 1.0), (names.bundle[idx], 1.0)], 1.0 - self.work.margins.odd)
        visiting, returning = load.ring_backward_bytes
        if self.has_ring:
            add(
                [(names.ring_back, sum(self.rates)),
                 *((own, -visiting - returning) for own in names.absent)]
            )  # fmt: skip
            for idx, rate in enumerate(self.rates):
                absent = names.absent[idx]
                add([(names.ring, 1.0), (absent, -load.ring_forward_bytes / rate)])
                back = [(names.ring_back, 1.0), (absent, -visiting / rate)]
                add([*back, *self.returned(idx, returning / rate)])
        for forward in self._forwards:
            add([(forward, 1.0), (names.slowest_dense, -1.0), (names.ring, -1.0)])
        for policy, backward in self._backwards:
            times, again = 2.0 + REPEATS[policy][0], float(REPEATS[policy][4])
            late = [(names.slowest_dense, -times), (names.ring_back, -1.0), (names.ring, -again)]
            add([(backward, 1.0), *late])

    def returned(self, bundle: int, factor: float) -> list[tuple[int, float]]:
        """DK and dV that enter a bundle: what the bundle before it misses."""
        before = self.before(bundle)
        return [] if before is None else [(self.names.absent[before], -factor)]

    def heads_ring(self, port: Port, host: int, num_bytes: Callable[[bool], float]) -> Weights:
        """K, V that pass a port for the heads behind it, in seconds.

        `num_bytes` of all heads, told whether dK, dV of the own bundle return: a bundle of one
        group gets those of another.
        """
        number = self.groups[host]
        if not self.has_ring and (number == 1 or port.is_host):
            return {}  # every group has the same heads of a host in that host
        first, groups = self.missing[self.bundle_of[host]]
        # What crosses the border of a host comes from the bundle before.
        seconds = num_bytes(number > 1 and not port.is_host) * port.share / port.rate
        heads, pairs = port.heads
        return {heads: seconds * first, pairs: -seconds / groups}

    def ring_bytes(self, policy: Policy | None) -> Callable[[bool], float]:
        """Of all heads into somebody who has nothing; forward without a policy, else backward."""
        load = self.work.load
        if policy is None:
            return lambda _: load.ring_forward_bytes
        visiting, returning = load.ring_backward_bytes
        again = REPEATS[policy][4] * load.ring_forward_bytes
        return lambda returns: visiting + again + returning * returns

    def _own_ring(self, host: int) -> None:
        """The ring at the ports of a host's devices."""
        names, add = self.names, self.rows.add
        for port in self.ports(host):
            if port.is_host:
                continue
            terms = self.heads_ring(port, host, self.ring_bytes(None))
            for forward in self._forwards:
                add([(forward, 1.0), (names.slowest_dense, -1.0), *less(terms)])
            for policy, backward in self._backwards:
                times = 2.0 + REPEATS[policy][0]
                terms = self.heads_ring(port, host, self.ring_bytes(policy))
                add([(backward, 1.0), (names.slowest_dense, -times), *less(terms)])

    def ports(self, host: int) -> list[Port]:
        """The border of a host that shares its heads; of one device and of a part, groups known."""
        if host not in self._known_ports:
            self._known_ports[host] = self._find_ports(host)
        return self._known_ports[host]

    def _find_ports(self, host: int) -> list[Port]:
        found, hosts, names = list[Port](), self.hosts, self.names
        tokens, heads = names.tokens[host], names.heads[host]
        pairs, own = names.pairs[host], names.own[host]
        if not self.alone[host]:
            into, out = {pairs: 1.0, own: -1.0}, {tokens: 1.0, own: -1.0}
            rates = float(hosts.rate_in[host]), float(hosts.rate_out[host])
            found.append(Port(True, *rates, 1.0, (heads, pairs), into, out, 0.0, 0.0))
        number = float(self.groups[host])
        if not number:
            return found
        per_group, uneven = float(self.per_group[host]), self.work.margins.uneven
        busiest = names.busiest[host], names.busiest_pairs[host]
        for into_rate, out_rate, size, mine_heads in (
            (hosts.device_in[host], hosts.device_out[host], 1.0, busiest),
            (hosts.part_in[host], hosts.part_out[host], hosts.part_size[host], (heads, pairs)),
        ):
            if size <= 0 or not np.isfinite(into_rate):
                continue
            rates = float(into_rate), float(out_rate)
            numbers = max(size / per_group, 1.0)  # groups with devices there
            share = min(size / per_group, 1.0)  # of the host's heads in such a group
            mine = size / numbers / hosts.num_devices[host]  # its tokens there
            if self.alone[host]:
                # Of equal shares, the others' tokens in a group times the own heads.
                crossing = size / hosts.num_devices[host] * (1.0 - share)
                shares = {tokens: crossing}
                few = -crossing * uneven * number
                port = Port(False, *rates, share, mine_heads, shares, shares, few, few)
            else:
                spread, odd = uneven * size / numbers, self.work.margins.odd
                times = numbers * share
                into = {
                    pairs: times / number, own: -times * mine,
                    heads: -times * (odd / number + spread),
                }  # fmt: skip
                out = {
                    tokens: numbers * mine, own: -times * mine, heads: times * spread,
                }  # fmt: skip
                least = -float(numbers * spread)
                port = Port(False, *rates, share, mine_heads, into, out, 0.0, least)
            found.append(port)
        return found

    def _exchange(self, host: int) -> None:
        """All-to-all across every border: what enters, and what leaves."""
        names = self.names
        total = self.exchanged_bytes[0] + self.exchanged_bytes[1]
        for port in self.ports(host):
            ways = (
                (names.swap, port.into, port.into_least, port.rate),
                (names.swap, port.out, port.out_least, port.rate_out),
                (names.swap_back, port.into, port.into_least, port.rate_out),
                (names.swap_back, port.out, port.out_least, port.rate),
            )
            for seconds, shares, constant, rate in ways:
                less = [(variable, -total / rate * share) for variable, share in shares.items()]
                self.rows.add([(seconds, 1.0), *less], total / rate * constant)

    @property
    def exchanged_bytes(self) -> tuple[float, float]:
        """Bytes of q, K and V, and of the outputs."""
        return self.work.load.query_bytes + self.work.load.kv_bytes, self.work.load.output_bytes

    def swap_terms(self, policy: Policy | None) -> Weights:
        """All-to-all seconds of a pass: forward without a policy, else backward with it."""
        qkv, output = self.exchanged_bytes
        there, back = qkv / (qkv + output), output / (qkv + output)
        names = self.names
        if policy is None:
            return {names.swap: there, names.swap_back: back}
        before, after = REPEATS[policy][2:4]
        return {names.swap: back + before * there, names.swap_back: there + after * back}


def known_rows(work: BundledWork, stage: BundledStage) -> BundleRows:
    """The rows of a stage, written once for works that differ in weights and memory only."""
    end = None if work.ends is None else work.ends.policy
    key = (stage, tuple(work.weights), work.memory is None, end)
    if key not in work.known:
        work.known[key] = BundleRows(work, stage)
    rows: BundleRows = work.known[key]
    return rows
