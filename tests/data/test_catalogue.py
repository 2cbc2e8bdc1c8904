"""The accelerator catalogue: complete, sourced, and each driver's string to its own entry."""

from __future__ import annotations

import pytest

from hexisolve.data.catalogue import load_catalogue, match_accelerator
from hexisolve.errors import InstanceError

# What `nvidia-smi --query-gpu=name` prints, and the entry it means.
DRIVER_NAMES = {
    "NVIDIA H200 NVL": "H200-NVL-141GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA H20": "H20-96GB",
    "NVIDIA H20-3e": "H20-141GB",
    "NVIDIA A10G": "A10G-24GB",
    "NVIDIA A10": "A10-24GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIE-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A800-SXM4-80GB": "A800-SXM-80GB",
    "NVIDIA L4": "L4-24GB",
    "NVIDIA L40": "L40-48GB",
    "NVIDIA L40S": "L40S-48GB",
    "NVIDIA H100 PCIe": "H100-PCIE-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA GeForce RTX 4090": "RTX-4090-24GB",
    "NVIDIA GeForce RTX 3090": "RTX-3090-24GB",
    "NVIDIA GeForce RTX 3090 Ti": "RTX-3090-Ti-24GB",
    "NVIDIA GB200": "GB200-186GB",
    "NVIDIA B200": "B200-SXM-180GB",
    "Tesla V100-SXM2-32GB": "V100-SXM-32GB",
    "Tesla T4": "T4-16GB",
    "Tesla P100-PCIE-16GB": "P100-PCIE-16GB",
    "AMD Instinct MI300X": "MI300X-192GB",
}
# Dense 16-bit TFLOP/s from the data sheets, typed here a second time.
DENSE_TFLOP_PER_S = {
    "H100-SXM-80GB": 989.4, "H100-PCIE-80GB": 756, "H100-NVL-94GB": 835.5, "H200-NVL-141GB": 835.5,
    "A100-SXM-80GB": 312, "A800-SXM-80GB": 312, "L40S-48GB": 362, "L4-24GB": 121, "A10-24GB": 125,
    "A30-24GB": 165, "V100-SXM-32GB": 125, "T4-16GB": 65, "RTX-4090-24GB": 165.2,
    "RTX-3090-24GB": 71, "MI300X-192GB": 1307.4, "B200-SXM-180GB": 2250, "H20-96GB": 148,
}  # fmt: skip


def test_there_are_at_least_thirty_kinds() -> None:
    assert len(load_catalogue()) >= 30


@pytest.mark.parametrize("name", load_catalogue())
def test_every_figure_has_a_source(name: str) -> None:
    entry = load_catalogue()[name]
    figures = {
        "dense_peak", "memory", "memory_bandwidth", "dense_efficiency", "dtypes", "link",
        "attention_forward_efficiency", "attention_backward_efficiency",
    }  # fmt: skip
    assert set(entry.sources) == figures
    assert all(source not in ("", "given in the file") for source in entry.sources.values())
    assert {"kind", "bandwidth"} <= set(entry.link)


@pytest.mark.parametrize(("name", "peak"), DENSE_TFLOP_PER_S.items())
def test_peaks_are_dense(name: str, peak: float) -> None:
    assert load_catalogue()[name].dense_peak_flop_per_s == pytest.approx(peak * 1e12)


@pytest.mark.parametrize(
    ("name", "mib"), [("H100-SXM-80GB", 81_559), ("A100-SXM-80GB", 81_920), ("L40S-48GB", 46_068)]
)
def test_memory_is_what_the_driver_reports(name: str, mib: int) -> None:
    assert load_catalogue()[name].memory_bytes == mib * 2**20


@pytest.mark.parametrize(
    ("name", "efficiencies"),
    [
        ("H100-SXM-80GB", (0.62, 0.40, 0.35)),
        ("A100-SXM-80GB", (0.72, 0.58, 0.50)),
        ("A800-SXM-80GB", (0.72, 0.58, 0.50)),
        ("L40S-48GB", (0.60, 0.50, 0.42)),
    ],
)
def test_default_efficiencies(name: str, efficiencies: tuple[float, float, float]) -> None:
    entry = load_catalogue()[name]
    assert efficiencies == (
        entry.dense_efficiency,
        entry.attention_forward_efficiency,
        entry.attention_backward_efficiency,
    )


@pytest.mark.parametrize(("text", "name"), DRIVER_NAMES.items())
def test_driver_strings_find_their_own_entry(text: str, name: str) -> None:
    assert match_accelerator(text).name == name
    assert match_accelerator(f"  {text.upper()} ").name == name


def test_no_two_entries_answer_to_one_string() -> None:
    for entry in load_catalogue().values():
        for name in (entry.name, *entry.names):
            assert match_accelerator(name).name == entry.name


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("NVIDIA H100", "H100-SXM-80GB"),
        ("NVIDIA A100", "A100-PCIE-40GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX-4090-24GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-SXM-80GB"),
        ("H1000", "H100"),
    ],
)
def test_what_is_not_clear_is_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(InstanceError) as caught:
        match_accelerator(text)
    assert nearest in str(caught.value)


@pytest.mark.parametrize("text", ["", "NVIDIA", "  ", "GeForce"])
def test_a_vendor_alone_is_no_accelerator(text: str) -> None:
    with pytest.raises(InstanceError, match="no accelerator"):
        match_accelerator(text)


@pytest.mark.parametrize("name", ["V100-SXM-32GB", "T4-16GB", "P100-PCIE-16GB"])
def test_old_cards_lack_bf16(name: str) -> None:
    assert "bf16" not in load_catalogue()[name].dtypes
    assert "fp16" in load_catalogue()[name].dtypes
