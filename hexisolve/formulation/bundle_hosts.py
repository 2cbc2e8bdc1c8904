"""What the hosts of a column need for a layer, if one of them did all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.cuts import Cut
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.plan import Policy

_UNLIMITED = 1e18  # bytes/s, where nothing is known


@dataclass(frozen=True, eq=False)
class Hosts:
    """Seconds and rates of every host of a column under one policy, arrays over the hosts.

    Parameters
    ----------
    dense_forward, attention_forward, attention_backward
        Seconds if the host did all of that work alone; backward with what the policy repeats.
    rate_in, rate_out
        Bytes/s across the border of the host.
    device_in, device_out
        The same for one device; infinite where unknown.
    part_in, part_out, part_size
        The same for the devices behind one edge inside the host, and how many they are; 0: none.
    num_devices
        Devices.
    memory_bytes
        Of one device.
    """

    dense_forward: FloatArray
    attention_forward: FloatArray
    attention_backward: FloatArray
    rate_in: FloatArray
    rate_out: FloatArray
    device_in: FloatArray
    device_out: FloatArray
    part_in: FloatArray
    part_out: FloatArray
    part_size: FloatArray
    num_devices: FloatArray
    memory_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.rate_in)

    @property
    def key(self) -> FloatArray:
        """``[host, figure]``: equal rows are hosts that nothing tells apart."""
        return np.stack(list(vars(self).values()), axis=1)

    def alone_s(self, policy: Policy) -> FloatArray:
        """F + B of a host that does everything."""
        dense = (3.0 + REPEATS[policy][0]) * self.dense_forward
        total: FloatArray = dense + self.attention_forward + self.attention_backward
        return total


class Margins(NamedTuple):
    """What whole blocks, whole tokens and odd pieces change, as shares of the tokens.

    Parameters
    ----------
    slack
        How much more than its even share of its bundle a group may have.
    odd
        How much less than its share its pairs may be.
    block
        What one block is; 0 where blocks are not all whole.
    uneven
        How much more than the average of its host a device may have.
    short
        How much less than the average of its host the first device of its first group may have.
    """

    slack: float
    odd: float
    block: float
    uneven: float
    short: float


def margins_of(
    column: ColumnShape, num_tokens: int, block_tokens: int, longest_tokens: int
) -> Margins:
    """Margins of a sequence; shares are whole blocks of the longest one, weights of the others."""
    num_hosts, num_devices = len(column.hosts), len(column.devices)
    uneven = block_tokens / longest_tokens + 1.0 / num_tokens
    are_whole = num_tokens == longest_tokens and num_tokens % block_tokens == 0
    if are_whole:
        short = 0.0
    else:  # dealt by the token, or some rank has the shorter last block
        short = (block_tokens if num_tokens == longest_tokens else 1) / num_tokens
    return Margins(
        slack=num_hosts * uneven,
        odd=2.0 * num_devices / (num_tokens + 1) + num_devices * short,
        block=block_tokens / num_tokens if are_whole else 0.0,
        uneven=uneven,
        short=short,
    )


def hosts_of(load: LayerLoad, policy: Policy, column: ColumnShape) -> Hosts:
    """The hosts of a column whose hosts have equal devices each."""
    repeats = REPEATS[policy]
    attention_backward = load.attention_backward_s + repeats[1] * load.attention_forward_s
    rates = {cut.inside: (cut.in_bytes_per_s, cut.out_bytes_per_s) for cut in column.cuts}
    rows = []
    for host in column.hosts:
        own = list(host)
        device = float(column.own_bytes_per_s[own].max())
        parts = [cut for cut in column.cuts if set(cut.inside) < set(host)]
        rows.append(
            (
                load.dense_s[own[0]] / len(own),
                load.attention_forward_s[own[0]] / len(own),
                attention_backward[own[0]] / len(own),
                # The border of a host of one device is that device's.
                *rates.get(tuple(host), (device if len(own) == 1 else _UNLIMITED,) * 2),
                device,
                device,
                *_slowest_parts(parts, host),
                len(own),
                column.devices[own[0]].memory_bytes,
            )
        )
    return Hosts(*np.array(rows, dtype=float).T)


def _slowest_parts(parts: list[Cut], host: tuple[int, ...]) -> tuple[float, float, int]:
    """Bytes/s in and out, and size, of the parts of a host that are slowest to reach.

    Only runs of devices that groups of consecutive devices cannot straddle (their size divides the
    host's number, and they begin at a multiple of it), and only sizes whose parts make up the
    whole host: then one of them has at least the average, and the fastest border of them counts.
    """
    by_size: dict[int, list[Cut]] = {}
    for cut in parts:
        size, first = len(cut.inside), min(cut.inside) - min(host)
        is_run = max(cut.inside) - min(cut.inside) + 1 == size
        if is_run and not len(host) % size and not first % size:
            by_size.setdefault(size, []).append(cut)
    best = (np.inf, np.inf, 0)
    for size, cuts in by_size.items():
        if len({min(cut.inside) for cut in cuts}) * size != len(host):
            continue
        into = max(cut.in_bytes_per_s for cut in cuts)
        out = max(cut.out_bytes_per_s for cut in cuts)
        if not best[2] or size / into > best[2] / best[0]:
            best = (into, out, size)
    return best
