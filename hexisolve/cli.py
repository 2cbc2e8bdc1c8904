"""The shell: parse, call the library, print.

Exit codes: 0 ok, 1 no plan (or a run that failed), 2 usage or bad input, 3 plan rejected by the
checker, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import NoReturn, TextIO

from hexisolve import __version__
from hexisolve.commands.shell import Shell
from hexisolve.errors import (
    BackendUnavailableError,
    HexisolveError,
    InstanceError,
    NoPlanError,
    PlanError,
    UnsupportedPlanError,
)

OK, NO_PLAN, BAD_INPUT, REJECTED, INTERRUPTED = 0, 1, 2, 3, 130

_LONGEST_NAME = 200
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)

COMMANDS = {
    "solve": "find the best plan, with a proven bound",
    "compare": "the solver beside every baseline, in one table",
    "show": "what was understood of a cluster, a model, an instance or a plan",
    "check": "every rule a plan breaks, in words",
    "simulate": "play the plan's programs on the modelled cluster",
    "batch": "chunks, schedule and recompute of one batch of sequences on a plan's layout",
    "verify": "prove a plan's gradients against one device, in one process",
    "run": "train with a plan on local processes, or under torchrun",
    "demo": "solve, compare, run and verify a bundled mixed cluster",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    with _results_only_stdout() as out:
        shell = Shell(out=out, is_json=args.json)
        try:
            code: int = args.run(args, shell)
            out.flush()
        except BrokenPipeError:
            # The reader (`head`) has seen enough; keep Python's own flush at exit from complaining.
            _discard(out)
            return OK
        except KeyboardInterrupt:
            shell.say("interrupted")
            return INTERRUPTED
        except PlanError as error:
            shell.say(f"the plan breaks {len(error.violations)} rule(s):\n{error}")
            return REJECTED
        except NoPlanError as error:
            shell.say(str(error))
            return NO_PLAN
        except (
            InstanceError,
            BackendUnavailableError,
            UnsupportedPlanError,
        ) as error:
            shell.say(str(error))
            return BAD_INPUT
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS and error.filename is None:
                raise  # not of the file system: a fault of ours
            shell.say(_told(error))
            return BAD_INPUT
        except HexisolveError as error:
            shell.say(f"{type(error).__name__}: {error}")
            return NO_PLAN
    return code


def _told(error: OSError) -> str:
    """What the file system refused: a name too long, a folder not to be entered, a full disk."""
    if error.errno in _OUTPUT_ERRORS:
        return f"the output cannot be written: {error.strerror}"
    name = str(error.filename)
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return f"{shown}: file: cannot be used (found {error.strerror}); check the path"


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = _Parser(
        prog="hexisolve",
        description="Places LLM training on mixed clusters: solved to a proven gap, executed, "
        "verified.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hexisolve {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary.capitalize() + ".", allow_abbrev=False
        )
        command.add_argument(
            "--json", action="store_true", help="results as JSON on stdout, all else on stderr"
        )
        command.add_argument("-v", "--verbose", action="store_true", help="log what is done")
        module = import_module(f"hexisolve.commands.{name}")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse, with the way out in its error messages."""

    def error(self, message: str) -> NoReturn:
        """Print the usage line and what was wrong; exit 2."""
        self.print_usage(sys.stderr)
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


@contextlib.contextmanager
def _results_only_stdout() -> Iterator[TextIO]:
    """The stream for results, while descriptor 1 points at stderr.

    Solver libraries print to descriptor 1 even when told not to; so their chatter cannot end up
    between the lines of a JSON document.
    """
    if sys.stdout is None:  # closed by the caller
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    sys.stdout.flush()
    try:
        is_real = sys.stdout.fileno() == 1
    except (OSError, ValueError, AttributeError):
        is_real = False
    if not is_real:
        yield sys.stdout
        return
    saved = os.dup(1)
    os.dup2(2, 1)
    out = os.fdopen(os.dup(saved), "w", encoding="utf-8", errors="backslashreplace")
    try:
        yield out
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
        with contextlib.suppress(OSError):  # said before, when the results were flushed
            out.close()


def _discard(stream: TextIO) -> None:
    """Point a stream whose reader is gone at the null device."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
