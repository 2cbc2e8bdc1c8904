"""A solver library in a process of its own: what it prints, overruns or breaks stays there.

The child runs `hexisolve.solvers.worker` in a session and an empty folder of its own. It is ended
with everything it started when its limit has passed by `GRACE_S`, when the caller is interrupted,
and, by a pipe that closes with the caller, when the caller itself dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.errors import BackendError, BackendUnavailableError

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds beyond its limit after which a library is ended."""

_LOG_CHARACTERS = 1000


def run_isolated(job: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
    """Run a job of `hexisolve.solvers.worker` in another process.

    Parameters
    ----------
    job
        A key of its `JOBS`.
    request
        What the job takes, as JSON; ``deadline`` is added, on the clock of `time.monotonic`.
    limit_s
        Seconds of wall clock for everything, the start of the process included.

    Returns
    -------
    The answer; None when the process had to be ended because of its limit.

    Raises
    ------
    BackendError
        When the job or the process fails; the last lines that it printed are the native status.
    BackendUnavailableError
        When the job lacks a library.
    """
    begun = time.monotonic()
    text = json.dumps({**request, "job": job, "deadline": begun + limit_s})
    with tempfile.TemporaryDirectory(prefix="hexisolve-") as folder:
        log = Path(folder) / "output.log"
        ours, theirs = os.pipe()
        try:
            with log.open("wb") as printed:
                process = subprocess.Popen(
                    [sys.executable, "-m", "hexisolve.solvers.worker", str(ours)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=printed,
                    cwd=folder,
                    env=_environment(),
                    pass_fds=(ours,),
                    start_new_session=True,
                )
            try:
                left_s = max(begun + limit_s + GRACE_S - time.monotonic(), 0.0)
                answer, _ = process.communicate(text.encode(), timeout=left_s)
            except subprocess.TimeoutExpired:
                logger.warning("a solver was ended %g s after its limit", GRACE_S)
                return None
            finally:
                _end(process)
        finally:
            os.close(ours)
            os.close(theirs)
        chatter = log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:].strip()
    logger.debug("the solver printed: %s", chatter)
    return _read(answer, process.returncode, chatter)


def _environment() -> dict[str, str]:
    """Ours, with every place that we import from: the child stands in another folder."""
    places = [os.path.abspath(place) for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing that the process started outlives it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _read(answer: bytes, code: int, chatter: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(answer)
    except ValueError:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise BackendError(f"the solver's process ended by {how}", chatter) from None
    if "error" not in document:
        return document
    if document["error"] == "unavailable":
        raise BackendUnavailableError(document["message"])
    raise BackendError(document["message"], document["native_status"])
