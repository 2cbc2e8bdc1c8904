"""The process in which a solver library runs: one job from standard input, one answer back.

Started by `hexisolve.solvers.isolated`. The standard output carries the answer only: what
libraries print on it goes to the standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hexisolve.errors import BackendError, BackendUnavailableError
from hexisolve.solvers.model_documents import (
    model_document,
    model_from_document,
    solution_document,
)

Document = Mapping[str, Any]


def _solve(request: Document) -> dict[str, Any]:
    from hexisolve.solvers.backends import BACKENDS

    solution = BACKENDS[request["backend"]].solve_here(
        model_from_document(request["model"]),
        time_limit_s=request["deadline"] - time.monotonic(),
        relative_gap=request["relative_gap"],
        seed=request["seed"],
        start=request["start"],
    )
    return solution_document(solution)


def _read(request: Document) -> dict[str, Any]:
    from hexisolve.solvers.highs_files import read_text

    return {"model": model_document(read_text(request["text"], request["suffix"]))}


JOBS: Mapping[str, Callable[[Document], dict[str, Any]]] = {
    "solve": _solve,
    "read": _read,
}
"""What the process can be asked for."""


def main() -> None:
    """Answer one request."""
    folder = os.getcwd()
    threading.Thread(target=_follow, args=(int(sys.argv[1]), folder), daemon=True).start()
    back = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin.buffer)
    answer: dict[str, Any]
    try:
        answer = JOBS[request["job"]](request)
    except BackendUnavailableError as error:
        answer = {"error": "unavailable", "message": str(error)}
    except BackendError as error:
        message = error.args[0] if not error.native_status else str(error)
        answer = {"error": "failed", "message": message, "native_status": ""}
    with os.fdopen(back, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    # Libraries may crash when they are taken down; the answer is out.
    os._exit(0)


def _follow(caller: int, folder: str) -> None:
    """End with the caller, and clean up in its place: its end of the pipe closes when it dies."""
    os.read(caller, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
