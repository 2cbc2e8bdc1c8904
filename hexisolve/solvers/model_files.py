"""Linear models as MPS and LP files that any solver reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.errors import BackendError, InstanceError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.isolated import run_isolated
from hexisolve.solvers.model_documents import model_document, model_from_document

SUFFIXES = (".mps", ".lp")
_LIMIT_S = 600.0


def write_model(model: LinearModel, path: Path | str) -> None:
    """Write a model for other solvers, numbers to the last digit.

    Names keep their letters and digits; what the formats do not take becomes an underscore.

    Parameters
    ----------
    model
        Any linear model.
    path
        A file that ends in ``.mps`` or ``.lp``.

    Raises
    ------
    InstanceError
        When the file ends otherwise or cannot be written.
    BackendUnavailableError
        When highspy, which writes the text, is not installed.
    """
    path = Path(path)
    request = {"model": model_document(model), "suffix": _suffix(path)}
    text: str = _answer("write", request)["text"]
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise InstanceError.single("path", path, "cannot be written", str(error)) from error


def read_model(path: Path | str) -> LinearModel:
    """Read a model from an MPS or LP file.

    Raises
    ------
    InstanceError
        When the file ends otherwise or cannot be read as text.
    BackendError
        When it is no model of its format, or says what a linear model of ours cannot.
    """
    path = Path(path)
    suffix = _suffix(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InstanceError.single("path", path, "cannot be read", str(error)) from error
    return model_from_document(_answer("read", {"text": text, "suffix": suffix})["model"])


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise InstanceError.single(
            "path", path, "has no format", f"end the name in {' or '.join(SUFFIXES)}"
        )
    return path.suffix.lower()


def _answer(job: str, request: Mapping[str, Any]) -> dict[str, Any]:
    answer = run_isolated(job, request, _LIMIT_S)
    if answer is None:
        raise BackendError(f"the file was not done within {_LIMIT_S:g} s")
    return answer
