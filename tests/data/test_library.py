"""Bundled things by name, files by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexisolve.data import library
from hexisolve.data.library import bundled_names, bundled_path, models_folder, resolve_path
from hexisolve.errors import InstanceError

PROMISED = {
    "mixed-16", "mixed-16-fast", "mixed-32", "mixed-32-fast", "mixed-64", "mixed-64-fast",
    "mixed-128", "mixed-128-fast", "mixed-1024", "mixed-1024-fast", "a800-4x8", "localhost",
    "local-mixed-4", "two-fabrics", "consumer-2x4",
}  # fmt: skip


def test_the_library_lies_in_the_source_tree(repository: Path) -> None:
    assert models_folder() == repository / "models"


def test_in_a_wheel_it_lies_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "hexisolve" / "models"
    inside.mkdir(parents=True)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(library, "__file__", str(tmp_path / "hexisolve" / "data" / "library.py"))
    assert models_folder() == inside


def test_a_missing_library_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "hexisolve" / "data" / "library.py"))
    with pytest.raises(InstanceError, match="reinstall"):
        models_folder()


def test_promised_clusters_are_there() -> None:
    assert set(bundled_names("clusters")) >= PROMISED


def test_a_bare_name_means_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed-32").mkdir()
    assert resolve_path("clusters", "mixed-32") == bundled_path("clusters", "mixed-32")


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    file = tmp_path / "ein ort ü" / "c.yaml"
    file.parent.mkdir()
    file.write_text("name: c\n")
    assert resolve_path("clusters", "c.yaml", file.parent) == file
    assert resolve_path("clusters", file) == file


def test_a_file_without_suffix_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("name: c\n")
    assert resolve_path("clusters", "mine") == Path("mine")


@pytest.mark.parametrize("name", ["mixed-33", "Mixed_32", "mixed", "", ".."])
def test_an_unknown_name_lists_the_nearest(name: str) -> None:
    with pytest.raises(InstanceError) as caught:
        resolve_path("clusters", name)
    assert "neither a bundled name nor a file" in str(caught.value)
    assert "mixed-" in str(caught.value) or name in ("", "..")


def test_a_missing_path_is_named() -> None:
    with pytest.raises(InstanceError, match=r"no/such\.yaml: file: does not exist"):
        resolve_path("clusters", "no/such.yaml")


def test_the_library_cannot_be_left(tmp_path: Path) -> None:
    assert bundled_path("clusters", "../clusters/mixed-32") is None
