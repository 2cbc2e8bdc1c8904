"""Quantities with units: parsed strictly, stored in one unit, made pretty only for print.

GB is 10^9 bytes and GiB is 2^30; "Gbit/s" and "GB/s" are told apart by spelling.
"""

from __future__ import annotations

import re

_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_QUANTITY = re.compile(rf"^\s*{_NUMBER}\s*([A-Za-zµ/]+)\s*$")

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
            "E": 10**18}  # fmt: skip
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

BYTES_UNITS: dict[str, int] = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
BYTES_PER_S_UNITS: dict[str, float] = {f"{unit}/s": float(f) for unit, f in BYTES_UNITS.items()} | {
    f"{p}{bit}": f / 8 for p, f in _DECIMAL.items() for bit in ("bit/s", "bps", "b/s")
}
SECONDS_UNITS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
FLOP_PER_S_UNITS: dict[str, float] = {
    f"{p}{flop}": float(f) for p, f in _DECIMAL.items() for flop in ("FLOP/s", "FLOPS")
}


def _parse(text: object, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"needs a number with a unit, like {example!r}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(f"unknown unit {unit!r}, write it like {example!r}")
    return float(number) * units[unit]


def parse_bytes(text: object) -> int:
    """Bytes from text like ``"80 GB"`` or ``"80 GiB"``; raises ValueError without a unit."""
    num_bytes = _parse(text, BYTES_UNITS, "80 GiB")
    if not abs(num_bytes) < float("inf"):
        raise ValueError("is more than any memory holds, write it like '80 GiB'")
    return round(num_bytes)


def parse_bytes_per_s(text: object) -> float:
    """Bytes/s of one direction from ``"450 GB/s"`` or ``"200 Gbit/s"``; ValueError otherwise."""
    return _parse(text, BYTES_PER_S_UNITS, "25 GB/s")


def parse_seconds(text: object) -> float:
    """Seconds from ``"5 us"``; raises ValueError without a unit."""
    return _parse(text, SECONDS_UNITS, "5 us")


def parse_flop_per_s(text: object) -> float:
    """FLOP/s from ``"989 TFLOP/s"``; raises ValueError without a unit."""
    return _parse(text, FLOP_PER_S_UNITS, "989 TFLOP/s")


def _scaled(value: float, unit: str, step: float, prefixes: str) -> str:
    index = 0
    while abs(value) >= step and index < len(prefixes) - 1:
        value, index = value / step, index + 1
    prefix = prefixes[index].strip()
    return f"{_digits(value)} {prefix}{'i' if step == 1024 and prefix else ''}{unit}"


def _digits(value: float) -> str:
    """Four digits, or all before the point when there are more."""
    return f"{value:.0f}" if 9999.5 <= abs(value) <= 1e15 else f"{value:.4g}"


def format_bytes(num_bytes: float) -> str:
    """``85899345920`` as ``80 GiB``."""
    return _scaled(num_bytes, "B", 1024, " KMGTP")


def format_bytes_per_s(bytes_per_s: float) -> str:
    """``25e9`` as ``25 GB/s``."""
    return _scaled(bytes_per_s, "B/s", 1000, " KMGTP")


def format_flop_per_s(flop_per_s: float) -> str:
    """``989e12`` as ``989 TFLOP/s``."""
    return _scaled(flop_per_s, "FLOP/s", 1000, " KMGTPE")


def format_seconds(seconds: float) -> str:
    """``0.0123`` as ``12.3 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds / 1e-9)} ns"
