"""Benchmarks and long checks, one subcommand each: `bench.py NAME --help`."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from prompt_aug.base.commands import make_parser, run

FOLDER = Path(__file__).resolve().parent / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def summary(name: str) -> str:
    """Return the first line of a benchmark's docstring without importing the benchmark."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in NAMES:
        listed = "\n".join(f"{name:<16}{summary(name)}" for name in NAMES)
        example = "python scripts/bench.py step --steps 6"
        parser = make_parser("python scripts/bench.py", f"{__doc__}\n{listed}", example=example)
        parser.add_argument("name", choices=NAMES, metavar="NAME", help="of a benchmark")
        parser.parse_args(given)  # prints the help or the error, and exits
    name, *rest = given
    command = importlib.import_module(f"benchmarks.{name}")
    called = f"python scripts/bench.py {name}"
    parser = make_parser(called, command.__doc__, example=f"{called} {command.EXAMPLE}")
    return run(f"bench {name}", lambda: command.main(parser, rest), interrupted="nothing is kept")


if __name__ == "__main__":
    sys.exit(main())
