"""What every test may use: the shared data, and the rule for machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is imported: small tensors on several threads are many times slower than on one,
# and tests that start processes would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of configs, lengths and topologies that lie outside the repository.

    HEXISOLVE_SHARED_DATA names it; without that it is ../shared/data beside the repository.
    """
    named = os.environ.get("HEXISOLVE_SHARED_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}: set HEXISOLVE_SHARED_DATA to run this test")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where torch sees no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
