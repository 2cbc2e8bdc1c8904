"""Where a command's words go: results to one stream, everything else to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hexisolve.errors import InstanceError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_NARROWEST = 140


@dataclass(frozen=True)
class Shell:
    """The two streams of a command.

    Parameters
    ----------
    out
        Stream for results: what `--json` promises is the only thing on it.
    is_json
        Whether results are wanted as JSON.
    """

    out: TextIO
    is_json: bool = False

    def say(self, text: str) -> None:
        """Write one message to stderr."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def write_json(self, document: Mapping[str, Any], indent: int | None = 2) -> None:
        """Write one JSON document; numbers that JSON cannot hold become null."""
        text = json.dumps(_finite(document), indent=indent, ensure_ascii=False, allow_nan=False)
        self.out.write(text + "\n")
        self.out.flush()

    def show(self, *parts: RenderableType) -> None:
        """Print tables and text for people: on the result stream, or on stderr with `--json`."""
        console = self.console(sys.stderr if self.is_json else self.out)
        for part in parts:
            console.print(part, highlight=False, markup=False)

    def console(self, stream: TextIO) -> Console:
        """A rich console on a stream; wide enough for a table when it is no terminal."""
        from rich.console import Console

        class Piped(Console):
            def on_broken_pipe(self) -> None:
                # rich would end the process with status 1, which means "no plan" here.
                raise BrokenPipeError

        console = Piped(file=stream, soft_wrap=False)
        if not stream.isatty():
            console.width = max(_NARROWEST, shutil.get_terminal_size().columns)
        return console


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def require_writable(path: Path | None) -> None:
    """Refuse an output file that could not be written, before the long work starts.

    Raises
    ------
    InstanceError
        Naming the file, why, and the way out.
    """
    if path is None:
        return
    file = str(path)
    try:
        is_folder, is_other = path.is_dir(), path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long
        raise InstanceError.single(
            "output", error.strerror, "cannot be written", "choose another name", file
        ) from None
    if is_folder:
        raise InstanceError.single("output", None, "is a folder", "name a file in it", file)
    if is_other:
        raise InstanceError.single(
            "output", None, "is a device or a pipe, and would be replaced",
            "name a file; --json prints the plan", file,
        )  # fmt: skip
    folder = path.parent
    if not folder.is_dir():
        raise InstanceError.single(
            "output", str(folder), "the folder does not exist", "create it first", file
        )
    try:
        descriptor, probe = tempfile.mkstemp(dir=folder, prefix=".hexisolve-")
        os.close(descriptor)
        os.unlink(probe)
    except OSError as error:
        raise InstanceError.single(
            "output", error.strerror, "cannot be written", "choose another folder", file
        ) from None
