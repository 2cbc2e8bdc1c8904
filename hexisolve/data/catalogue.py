"""Accelerators by name: what the datasheet, a measurement or an estimate says about each.

Peaks are dense (without sparsity) and of the 16-bit kind; memory is what the driver reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hexisolve.data.library import models_folder
from hexisolve.data.reading import Fields, nearest, read_document
from hexisolve.errors import InstanceError
from hexisolve.units import parse_bytes, parse_bytes_per_s, parse_flop_per_s, parse_seconds

DTYPES = ("bf16", "fp16", "fp32", "fp64")
LINK_KINDS = ("nvswitch", "pcie", "host")
DEFAULT_INSIDE_LATENCY = "3 us"
# Efficiencies of a type nobody has measured: the middle of those that are known.
DEFAULT_EFFICIENCIES = {
    "dense_efficiency": 0.6,
    "attention_forward_efficiency": 0.5,
    "attention_backward_efficiency": 0.42,
}
TYPE_KEYS = (
    "dense_peak", "memory", "memory_bandwidth", *DEFAULT_EFFICIENCIES, "dtypes", "link", "source",
    "names", "like",
)  # fmt: skip
_REQUIRED = ("dense_peak", "memory", "memory_bandwidth")
# Words of a driver's string that say nothing about which card it is.
_NOISE = frozenset(
    ("nvidia", "amd", "intel(r)", "intel", "tesla", "geforce", "instinct", "graphics", "gpu")
)
_MAX_FLOP_PER_S = 1e20
_MAX_BYTES = 2**50
_MAX_BYTES_PER_S = 1e15


@dataclass(frozen=True)
class DeviceType:
    """One kind of device.

    Parameters
    ----------
    name
        Name in cluster files.
    dense_peak_flop_per_s
        Dense 16-bit peak, FLOP/s.
    memory_bytes
        Capacity as the driver reports it.
    memory_bytes_per_s
        Device memory bandwidth.
    dense_efficiency, attention_forward_efficiency, attention_backward_efficiency
        Share of the peak that matrix products and attention reach, in (0, 1].
    dtypes
        Precisions it computes in.
    link
        Default inside of a host of such devices: ``kind``, ``bandwidth``, ``latency`` as text.
    names
        Names drivers print for it.
    document
        The figures as text with units; what a cluster file needs to be read without this catalogue.
    sources
        Where each figure comes from, by key of `document`.
    """

    name: str
    dense_peak_flop_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    dense_efficiency: float
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    dtypes: tuple[str, ...]
    link: Mapping[str, str]
    names: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_device_type(
    name: str, value: object, where: str, fields: Fields, base: DeviceType | None = None
) -> DeviceType:
    """Return a device type from its mapping; keys it lacks come from `base` when there is one.

    A figure is text (``dense_peak: 989.4 TFLOP/s``) or ``{value, source}``. Problems go to
    `fields`.
    """
    document = fields.mapping(value, where, TYPE_KEYS)
    plain: dict[str, Any] = dict(base.document) if base else {}
    sources: dict[str, str] = dict(base.sources) if base else {}
    general = str(document.get("source", "given in the file"))
    for key, entry in document.items():
        if key in ("source", "names", "like") or key not in TYPE_KEYS:
            continue
        is_sourced = isinstance(entry, Mapping) and "value" in entry
        plain[key] = entry["value"] if is_sourced else entry
        sources[key] = str(entry.get("source", general)) if is_sourced else general
    for key in _REQUIRED:
        if key not in plain:
            fields.problem(f"{where}.{key}", None, "is missing", "give it with its unit")
    for key, estimate in DEFAULT_EFFICIENCIES.items():
        if key not in plain:
            plain[key], sources[key] = estimate, "estimate"
    if "dtypes" not in plain:
        plain["dtypes"], sources["dtypes"] = list(DTYPES), "assumed"
    names = [
        fields.text(entry, f"{where}.names[{index}]")
        for index, entry in enumerate(fields.items(document.get("names", []), f"{where}.names"))
    ]
    return _build(name, plain, sources, tuple(names), where, fields)


def _build(
    name: str,
    plain: dict[str, Any],
    sources: dict[str, str],
    names: tuple[str, ...],
    where: str,
    fields: Fields,
) -> DeviceType:
    figures = read_figures({key: plain[key] for key in plain if key != "link"}, where, fields)
    link = fields.mapping(plain.get("link", {}), f"{where}.link", ("kind", "bandwidth", "latency"))
    plain["link"] = link | {
        "kind": fields.choice(link.get("kind", "host"), f"{where}.link.kind", LINK_KINDS),
        "latency": link.get("latency", DEFAULT_INSIDE_LATENCY),
    }
    return DeviceType(
        name=name,
        dense_peak_flop_per_s=figures.get("dense_peak_flop_per_s", 1.0),
        memory_bytes=figures.get("memory_bytes", 1),
        memory_bytes_per_s=figures.get("memory_bytes_per_s", 1.0),
        dense_efficiency=figures["dense_efficiency"],
        attention_forward_efficiency=figures["attention_forward_efficiency"],
        attention_backward_efficiency=figures["attention_backward_efficiency"],
        dtypes=figures["dtypes"],
        link=plain["link"],
        names=names,
        document=plain,
        sources=sources,
    )


def read_figures(document: Mapping[str, Any], where: str, fields: Fields) -> dict[str, Any]:
    """Read the fields of a `Device` from a device type, or from an override of one."""
    found: dict[str, Any] = {}

    def at(key: str) -> str:
        return f"{where}.{key}"

    for key, value in document.items():
        if key == "dense_peak":
            found["dense_peak_flop_per_s"] = fields.quantity(
                value, at(key), parse_flop_per_s, high=_MAX_FLOP_PER_S,
                shown_range="must be above 0 and at most 1e8 TFLOP/s",
            )  # fmt: skip
        elif key == "memory":
            found["memory_bytes"] = round(
                fields.quantity(
                    value, at(key), parse_bytes, high=_MAX_BYTES,
                    shown_range="must be above 0 and at most 1024 TiB",
                )
            )  # fmt: skip
        elif key == "memory_bandwidth":
            found["memory_bytes_per_s"] = fields.quantity(
                value, at(key), parse_bytes_per_s, high=_MAX_BYTES_PER_S,
                shown_range="must be above 0 and at most 10^6 GB/s",
            )  # fmt: skip
        elif key in DEFAULT_EFFICIENCIES:
            found[key] = fields.number(value, at(key), low=0.0, high=1.0)
        elif key == "dtypes":
            entries = fields.items(value, at(key))
            if not entries:
                fields.problem(at(key), value, "must name at least one precision")
            found[key] = tuple(fields.choice(entry, at(key), DTYPES) for entry in entries)
    return found


def read_link(link: Mapping[str, Any], where: str, fields: Fields) -> tuple[str, str, float]:
    """Kind, bandwidth text and latency (s) of a default link."""
    latency = fields.quantity(link.get("latency"), f"{where}.latency", parse_seconds, strict=False)
    return str(link["kind"]), str(link.get("bandwidth", "")), latency


@lru_cache(maxsize=1)
def load_catalogue() -> Mapping[str, DeviceType]:
    """Every accelerator of the bundled catalogue, by name, in file order.

    Raises
    ------
    InstanceError
        When the catalogue's files are broken.
    """
    catalogue: dict[str, DeviceType] = {}
    for path in sorted((models_folder() / "accelerators").glob("*.yaml")):
        fields = Fields(str(path))
        document = read_document(path)
        fields.mapping(document, "", ("schema_version", "description", "accelerators"))
        for name, entry in fields.mapping(document.get("accelerators"), "accelerators").items():
            if name in catalogue:
                fields.problem(f"accelerators.{name}", None, "is in the catalogue twice")
            catalogue[name] = read_device_type(name, entry, f"accelerators.{name}", fields)
        fields.finish()
    return catalogue


def match_accelerator(text: str) -> DeviceType:
    """Return the catalogue entry that a name or a driver's string means.

    Vendor words, case and separators do not count; every other word does, so an H20 is never an
    H200 and an unknown variant of a known card is not taken for it.

    Raises
    ------
    InstanceError
        When no entry or more than one fits; names the nearest.
    """
    catalogue = load_catalogue()
    if text in catalogue:
        return catalogue[text]
    wanted = _words(text)
    matches = [
        entry
        for entry in catalogue.values()
        if wanted and any(_words(name) == wanted for name in (entry.name, *entry.names))
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        remedy = f"use one of {', '.join(entry.name for entry in matches)}"
        raise InstanceError.single("type", text, "means more than one accelerator", remedy)
    raise InstanceError.single(
        "type", text, "is no accelerator of the catalogue",
        f"{_nearest_entries(text, catalogue.values())}, or describe it under `device_types`",
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    words = re.split(r"[\s\-_/,]+", text.strip().lower())
    return tuple(sorted(word for word in words if word and word not in _NOISE))


def _nearest_entries(text: str, entries: Iterable[DeviceType]) -> str:
    """Entries that share words with the text first, then those spelled alike."""
    wanted = set(_words(text))
    scored = [
        (max(len(wanted & set(_words(name))) for name in (entry.name, *entry.names)), entry.name)
        for entry in entries
    ]
    best = max((score for score, _ in scored), default=0)
    if best:
        names = [name for score, name in scored if score == best]
        return f"use one of {', '.join(names[:8])}"
    return nearest(text, [entry.name for entry in entries])
