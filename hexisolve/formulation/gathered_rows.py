"""Rows for ZeRO-3: what gathers and gradient sums need beside a layer (docs/formulation.md, R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hexisolve.formulation.bundled_work import Port, Weights, less
from hexisolve.formulation.work import REPEATS
from hexisolve.plan.plan import Policy

if TYPE_CHECKING:
    from hexisolve.formulation.bundle_rows import BundleRows


def add_gathered(owner: BundleRows) -> None:
    """Add the rows to those of a stage."""
    _Gathered(owner).add()


class _Gathered:
    """Writes the rows of one stage."""

    def __init__(self, owner: BundleRows) -> None:
        self.owner = owner

    def add(self) -> None:
        """Gathers and gradient sums pass the borders beside exchanges and the ring.

        A pass lasts at least what all of that needs on one edge, one after the other.
        """
        names, add, load = self.owner.names, self.owner.rows.add, self.owner.work.load
        gather, back = self.owner.work.moved
        forward = [(names.forward, 1.0), *self.owner.swap_terms(None).items()]
        visiting, returning = load.ring_backward_bytes
        backward = {
            policy: [(names.backward[policy], 1.0), *self.owner.swap_terms(policy).items()]
            for policy in names.backward
        }
        for idx, (bundle, rate) in enumerate(
            zip(self.owner.stage.bundles, self.owner.rates, strict=True)
        ):
            # Moved bytes enter a host whenever a ring of all ranks comes back to it: every group
            # leads through all hosts of its bundle, the first of them is entered from outside.
            number = self.owner.stage.groups[idx] or 1
            entries = number * (len(bundle) - 1) + self.owner.has_ring
            enter = max(len(bundle), entries) / rate
            passed = [*forward]
            if self.owner.has_ring:
                passed.append((names.absent[idx], -load.ring_forward_bytes / rate))
            ways: list[tuple[list[tuple[int, float]], float, Policy | None]] = [
                (passed, gather * enter - self._launched_s(None), None)
            ]
            for policy, own in backward.items():
                passed = [*own]
                if self.owner.has_ring:
                    again = REPEATS[policy][4] * load.ring_forward_bytes
                    passed.append((names.absent[idx], -(visiting + again) / rate))
                    passed += self.owner.returned(idx, returning / rate)
                ways.append((passed, back * enter - self._launched_s(policy), policy))
            for passed, seconds, policy_of in ways:
                add(passed, seconds)
                if len(bundle) == 1:
                    self._entered(bundle[0], passed, seconds, policy_of)
        for host in range(len(self.owner.hosts)):
            port_rate = float(self.owner.hosts.device_in[host])
            add(forward, gather / port_rate - self._launched_s(None))
            for policy, own in backward.items():
                add(own, back / port_rate - self._launched_s(policy))
            for port in self.owner.ports(host):
                self._moved_through(port, host, forward, None)
                for policy, own in backward.items():
                    self._moved_through(port, host, own, policy)

    def _launched_s(self, policy: Policy | None) -> float:
        """Launches of a pass: they are part of what hides the gathers, and counted elsewhere."""
        hops = sum(number or 1 for number in self.owner.stage.groups) - 1
        any_policy, hop_s = next(iter(self.owner.work.hop_s.items()))
        launch_s = hop_s / (2 + REPEATS[any_policy][4])
        if policy is None:
            return self.owner.work.pass_launch_s + hops * launch_s
        again, launches = REPEATS[policy][4:]
        return self.owner.work.pass_launch_s * launches + hops * launch_s * (1 + again)

    def _entered(
        self, host: int, passed: list[tuple[int, float]], seconds: float, policy: Policy | None
    ) -> None:
        """The hop into a host that has all heads goes on to its first device.

        It comes from the last device of the host before. What moves waits, each for itself, for
        the slowest edge on that way: the ring and gathers for the border of the host, all-to-all
        for that of a device or of its part. Where heads are not even, nothing is said.
        """
        before = self.owner.before(int(self.owner.bundle_of[host]))
        ends = [(host, True)]
        if (
            self.owner.has_ring
            and before is not None
            and len(self.owner.stage.bundles[before]) == 1
        ):
            ends.append((self.owner.stage.bundles[before][0], False))
        for end, is_entry in ends:
            if self.owner.work.load.query_heads % int(self.owner.per_group[end]):
                continue
            for port in self.owner.ports(end):
                terms, constant = self._swapped(
                    port, policy, port.rate if is_entry else port.rate_out
                )
                if not is_entry:
                    # The last device may have a block less than the average.
                    few = self.owner.hosts.num_devices[end] * self.owner.work.margins.uneven
                    constant -= float(few) * sum(terms.values())
                self.owner.rows.add([*passed, *less(terms)], seconds + constant)

    def _swapped(self, port: Port, policy: Policy | None, rate: float) -> tuple[Weights, float]:
        """Seconds of all-to-all through a port in a pass, at least: terms and a constant.

        Inwards; of a host that has all heads as much leaves.
        """
        qkv, output = self.owner.exchanged_bytes
        # Forward brings others' q, K, V for the own heads, and outputs back to the own tokens.
        into, out = qkv, output
        if policy is not None:
            _, _, before, after, _, _ = REPEATS[policy]
            into, out = output + before * qkv, qkv + after * output
        terms: Weights = {}
        for num_bytes, shares in ((into, port.into), (out, port.out)):
            for variable, share in shares.items():
                terms[variable] = terms.get(variable, 0.0) + num_bytes * share / rate
        return terms, (into * port.into_least + out * port.out_least) / rate

    def _moved_through(
        self, port: Port, host: int, passed: list[tuple[int, float]], policy: Policy | None
    ) -> None:
        """Everything that enters at one port in a pass: gathers, all-to-all, the ring."""
        moved = self.owner.work.moved[policy is not None]
        if port.is_host:
            moved *= self._entries(host) * port.rate / self._widest(host)
        terms = self.owner.heads_ring(port, host, self.owner.ring_bytes(policy))
        swapped, constant = self._swapped(port, policy, port.rate)
        for variable, seconds in swapped.items():
            terms[variable] = terms.get(variable, 0.0) + seconds
        least = moved / port.rate + constant - self._launched_s(policy)
        self.owner.rows.add([*passed, *less(terms)], least)

    def _entries(self, host: int) -> int:
        """How often a ring of all ranks enters a host of a bundle of several.

        Of two hosts each group has one change; a hop from one to the other waits for the one that
        is entered, or left, more often. Of more hosts two groups enter each once at least, there
        and back in turn.
        """
        number = int(self.owner.groups[host]) or 1
        if len(self.owner.stage.bundles[self.owner.bundle_of[host]]) > 2:
            return max(1, number // 2)
        if self.owner.has_ring and number == 1:
            return 1
        return -(-(number + self.owner.has_ring) // 2)

    def _widest(self, host: int) -> float:
        """Bytes/s of the widest border in the bundle of a host."""
        own = list(self.owner.stage.bundles[self.owner.bundle_of[host]])
        return float(max(self.owner.hosts.rate_in[own].max(), self.owner.hosts.rate_out[own].max()))
