"""Progress for people: one line on stderr that changes, nothing when stderr is no terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from hexisolve.commands.shell import Shell


@contextlib.contextmanager
def progress(shell: Shell, text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` with a spinner; the function it gives replaces the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with shell.console(sys.stderr).status(text) as status:
        yield lambda changed: status.update(changed)
