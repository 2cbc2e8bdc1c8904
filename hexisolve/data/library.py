"""Where the bundled models, accelerators, clusters and instances lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from hexisolve.data.reading import nearest
from hexisolve.errors import InstanceError

Kind = Literal["llm", "accelerators", "clusters", "instances"]
_SUFFIXES = (".yaml", ".yml", ".json")


def models_folder() -> Path:
    """Return the library folder: inside the package in a wheel, beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "models", package.parent / "models"):
        if folder.is_dir():
            return folder
    raise InstanceError.single(
        "models", package, "the bundled library is missing", "reinstall hexisolve"
    )


def bundled_names(kind: Kind) -> tuple[str, ...]:
    """Names of everything of one kind in the library, sorted."""
    folder = models_folder() / kind
    return tuple(sorted(path.stem for path in _files(folder)))


def bundled_path(kind: Kind, name: str) -> Path | None:
    """Return the file of one bundled thing, or None."""
    for suffix in _SUFFIXES:
        path = models_folder() / kind / f"{name}{suffix}"
        if path.is_file() and path.stem == name:
            return path
    return None


def resolve_path(kind: Kind, name_or_path: str | Path, base: Path | None = None) -> Path:
    """Return the file meant by a bundled name or by a path (relative to `base`, else to the cwd).

    A bare name means the library; text with a folder or a known suffix means a file.

    Raises
    ------
    InstanceError
        Naming the nearest bundled names, when there is neither.
    """
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or "\\" in text
    is_path = is_path or text.lower().endswith(_SUFFIXES)
    if not is_path:
        bundled = bundled_path(kind, text) if text else None
        if bundled is not None:
            return bundled
    candidates = [Path(text)] if base is None else [base / text, Path(text)]
    for path in candidates:
        if text and path.exists() and (is_path or path.is_file()):
            return path
    if is_path:
        raise InstanceError.single(
            "file", None, "does not exist", "check the path", str(candidates[0])
        )
    raise InstanceError.single(
        _FIELDS[kind], text, "is neither a bundled name nor a file",
        nearest(text, bundled_names(kind)),
    )  # fmt: skip


_FIELDS: dict[str, str] = {
    "llm": "model",
    "accelerators": "accelerators",
    "clusters": "cluster",
    "instances": "instance",
}


def _files(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return ()
    return (path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
