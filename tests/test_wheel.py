"""The wheel: the library inside the package, and nothing called `models` beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the source tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("hexisolve", "models"):
        shutil.copytree(
            REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(copy / "dist"), str(copy)],
        check=True, capture_output=True, timeout=280,
    )  # fmt: skip
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_every_top_level_name_of_the_wheel_is_ours(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"hexisolve"}


@pytest.mark.slow
def test_the_library_and_every_module_are_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    for path in (REPOSITORY / "models").rglob("*"):
        if path.is_file():
            assert f"hexisolve/models/{path.relative_to(REPOSITORY / 'models')}" in inside
    for path in (REPOSITORY / "hexisolve").rglob("*.py"):
        assert str(path.relative_to(REPOSITORY)) in inside
    assert "hexisolve/py.typed" in inside


@pytest.mark.slow
def test_the_unpacked_wheel_finds_its_library(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "hexisolve", "show", "llama-2-13b", "--json"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"parameters": 13015864320' in done.stdout
