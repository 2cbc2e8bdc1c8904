"""Arguments that several commands share, and the instance they describe."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexisolve.commands.kinds import read_instance_named
from hexisolve.errors import InstanceError, Problem

if TYPE_CHECKING:
    from hexisolve.data.instance import Instance


_MOST_SECONDS = 1e7
_SHOWN = 12


def file_name(text: str) -> str:
    """A name or path that is not empty: an empty one would mean the present folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty; give a file or leave this out")
    return text


def file_path(text: str) -> Path:
    """A path that is not empty."""
    return Path(file_name(text))


def whole_number(text: str) -> int:
    """A whole number of at least 1; digits may be grouped with underscores."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, like 65536") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return number


def positive_seconds(text: str) -> float:
    """Seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds above 0 and at most {_MOST_SECONDS:,.0f}"
        )
    return number


def seed_number(text: str) -> int:
    """A seed that every library takes: 0 to 2^31 - 1."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number in 0..2147483647")
    return number


def relative_gap(text: str) -> float:
    """A relative gap in [0, 1)."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must lie in [0, 1), like 0.01")
    return number


def zero_modes(text: str) -> tuple[int, ...]:
    """ZeRO modes from ``0,1,3``."""
    modes = []
    for part in text.split(","):
        if part.strip() not in ("0", "1", "3"):
            raise argparse.ArgumentTypeError(f"{text!r} must list modes out of 0, 1, 3, like 0,1")
        modes.append(int(part))
    return tuple(dict.fromkeys(modes))


def cost_override(text: str) -> tuple[str, float | int]:
    """One ``KEY=NUMBER``."""
    key, equals, value = text.partition("=")
    try:
        number = json.loads(value) if equals else None
    except json.JSONDecodeError:
        number = None
    if not key or isinstance(number, bool) or not isinstance(number, int | float):
        raise argparse.ArgumentTypeError(f"{text!r} must read KEY=NUMBER, like link_efficiency=0.9")
    return key, number


def add_instance_arguments(parser: argparse.ArgumentParser) -> None:
    """INSTANCE, or --cluster, --model and the workload; options replace parts of an INSTANCE."""
    parser.add_argument(
        "instance",
        nargs="?",
        metavar="INSTANCE",
        type=file_name,
        help="an instance file, or the name of a bundled one; options below replace its parts",
    )
    group = parser.add_argument_group("the instance")
    group.add_argument(
        "--cluster", metavar="C", type=file_name, help="cluster file or bundled name"
    )
    group.add_argument(
        "--model", metavar="M", type=file_name, help="Hugging Face config.json or bundled name"
    )
    group.add_argument("--context", metavar="N", type=whole_number, help="tokens of a sequence")
    group.add_argument("--batch", metavar="B", type=whole_number, help="sequences in a step")
    group.add_argument(
        "--lengths", metavar="FILE", type=file_path,
        help="length of every sequence of a step, one per line, instead of --context and --batch",
    )  # fmt: skip
    group.add_argument("--dtype", choices=("bf16", "fp16", "fp32", "fp64"), help="default bf16")
    group.add_argument("--zero", metavar="MODES", type=zero_modes, help="ZeRO modes allowed: 0,1,3")
    group.add_argument("--attention", choices=("causal", "full"), help="default causal")
    group.add_argument(
        "--block-tokens", metavar="N", type=whole_number, help="token shares are multiples of this"
    )
    group.add_argument(
        "--cost", metavar="KEY=VALUE", type=cost_override, action="append", default=[],
        help="replace a default of the cost model; may be given several times",
    )  # fmt: skip


def instance_from(args: argparse.Namespace) -> Instance:
    """The instance that the arguments describe.

    Raises
    ------
    InstanceError
        With every problem of every part.
    """
    from hexisolve.data.instance_file import instance_from_dict

    problems: list[Problem] = []
    document: dict[str, Any] = {"workload": {}}
    if args.instance:
        document = read_instance_named(args.instance).to_dict()
    for option in ("cluster", "model"):
        if getattr(args, option) is not None:
            document[option] = getattr(args, option)
    lengths: tuple[int, ...] | None = None
    try:
        lengths = read_lengths(args.lengths) if args.lengths else None
    except InstanceError as error:
        problems += error.problems
        lengths = (1,)
    document["workload"] = _workload(document["workload"], args, lengths)
    document["cost"] = document.get("cost", {}) | dict(args.cost)
    try:
        instance = instance_from_dict(document)
    except InstanceError as error:
        raise InstanceError([*problems, *map(_as_typed, error.problems)]) from None
    if problems:
        raise InstanceError(problems)
    return instance


_FIELD2OPTION = {
    "cluster": "--cluster",
    "model": "--model",
    "workload.context_tokens": "--context",
    "workload.batch_sequences": "--batch",
}


def _as_typed(problem: Problem) -> Problem:
    """A missing field in the words of the command line."""
    option = _FIELD2OPTION.get(problem.field)
    if option is None or problem.message != "is missing":
        return problem
    way_out = "or --lengths" if problem.field.startswith("workload") else "or name an INSTANCE"
    return Problem(option, "", "is missing", f"give it, {way_out}")


def _workload(
    base: Mapping[str, Any], args: argparse.Namespace, lengths: tuple[int, ...] | None
) -> dict[str, Any]:
    """The workload section with the options laid over it; lengths and a context exclude another."""
    options: Mapping[str, Any] = {
        "context_tokens": args.context,
        "batch_sequences": args.batch,
        "lengths": None if lengths is None else list(lengths),
        "dtype": args.dtype,
        "zero": None if args.zero is None else list(args.zero),
        "attention": args.attention,
        "block_tokens": args.block_tokens,
    }
    given = {key: value for key, value in options.items() if value is not None}
    kept = dict(base)
    if "lengths" in given:
        kept.pop("context_tokens", None)
        kept.pop("batch_sequences", None)
    elif {"context_tokens", "batch_sequences"} & given.keys():
        kept.pop("lengths", None)
    return kept | given


def read_lengths(path: Path) -> tuple[int, ...]:
    """Sequence lengths from text: whole numbers between spaces, commas, line ends or brackets.

    Raises
    ------
    InstanceError
        Naming every line that is no length, of many the first.
    """
    from hexisolve.data.reading import refuse_special

    file = str(path)
    refuse_special(path, file)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InstanceError.single("file", None, "does not exist", "check the path", file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InstanceError.single("file", str(error), "cannot be read", "", file) from None
    problems = []
    lengths = []
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.split("#")[0].replace(",", " ").strip("[] \t").split():
            if word.isascii() and word.isdigit() and len(word) < 13 and int(word) > 0:
                lengths.append(int(word))
            else:
                problems.append(
                    Problem(f"line {number}", word, "is no length",
                            "write one whole number above 0 per line", file)
                )  # fmt: skip
    if not lengths and not problems:
        problems.append(Problem("file", "", "holds no lengths", "write one per line", file))
    if len(problems) > _SHOWN:
        more = f"holds {len(problems) - _SHOWN} more words that are no lengths"
        problems[_SHOWN:] = [Problem("file", "", more, "is it the right file?", file)]
    if problems:
        raise InstanceError(problems)
    return tuple(lengths)
