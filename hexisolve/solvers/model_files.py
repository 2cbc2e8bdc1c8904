"""Linear models as MPS and LP files that any solver reads."""

from __future__ import annotations

from pathlib import Path

from hexisolve.errors import BackendError, InstanceError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.isolated import run_isolated
from hexisolve.solvers.model_documents import model_from_document
from hexisolve.solvers.model_text import lp_text, mps_text

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
    """
    path = Path(path)
    text = mps_text(model) if _suffix(path) == ".mps" else lp_text(model)
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
    BackendUnavailableError
        When highspy, which reads the text, is not installed.
    BackendError
        When it is no model of its format, or says what a linear model of ours cannot.
    """
    path = Path(path)
    suffix = _suffix(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InstanceError.single("path", path, "cannot be read", str(error)) from error
    answer = run_isolated("read", {"text": text, "suffix": suffix}, _LIMIT_S)
    if answer is None:
        raise BackendError(f"the file was not read within {_LIMIT_S:g} s")
    return model_from_document(answer["model"])


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise InstanceError.single(
            "path", path, "has no format", f"end the name in {' or '.join(SUFFIXES)}"
        )
    return path.suffix.lower()
