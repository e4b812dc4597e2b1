"""Seconds until a mistake is refused: every command line of the tests' table in a new process.

    python scripts/bench_refusals.py [--limit 5] [--only WORD]

The table is that of tests/recipe/test_bad_settings.py (arguments of `recipe.train`, exit code,
words of the message) and a few mistakes of the other commands. Wall seconds count on an idle
machine; CPU seconds of the process say what it costs on a busy one. Prints a table, slowest first;
exits 1 where an exit code or a message is wrong, or the wall seconds are above the limit.
"""

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prompt_aug.commands import make_parser

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "recipe" / "test_bad_settings.py"
OTHERS: list[tuple[str, list[str], int, str]] = [
    ("recipe.export", ["nowhere"], 1, "not a run folder"),
    ("recipe.export", ["", "--steps", "1"], 2, "RUN is empty"),
    ("recipe.runs", ["nowhere"], 1, "is not a folder"),
    ("recipe.plan", ["tyo"], 1, "did you mean toy"),
    ("eval.sweep", ["nowhere"], 2, "is not a folder"),
    ("eval.sweep", ["--model", "m"], 2, "needs --out"),
    ("eval.report", ["nowhere"], 1, "nowhere"),
    ("prompt_aug.prepare", ["nowhere", "o.parquet"], 2, "--against --no-benchmarks is required"),
    ("prompt_aug.prepare", ["nowhere", "o.parquet", "--no-benchmarks"], 1, "nowhere"),
    ("prompt_aug.templates", ["check", "nowhere.yaml"], 1, "nowhere.yaml"),
    ("prompt_aug.rephrase", ["q.parquet", "o.parquet"], 2, "--model"),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one command took and said."""

    command: str
    wall: float
    cpu: float
    wrong: str  # "" where the code and the message are those of the table


def cases() -> Iterator[tuple[str, list[str], int, str]]:
    """(module, arguments, exit code, words of the message)."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    spec = importlib.util.spec_from_file_location(TABLE.stem, TABLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from (("recipe.train", *case) for case in module.COMMANDS)
    yield from OTHERS


def measure(module: str, arguments: list[str], code: int, words: str) -> Row:
    """Run the command in an empty folder."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    wrong = "" if done.returncode == code else f"exit code {done.returncode}, not {code}"
    if words not in done.stderr or "Traceback" in done.stderr:
        wrong = f"says: {done.stderr.strip()[-200:]}"
    return Row(
        command=" ".join([module, *(a or "''" for a in arguments)]),
        wall=wall,
        cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        wrong=wrong,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python scripts/bench_refusals.py",
        __doc__,
        example="python scripts/bench_refusals.py --only method",
    )
    parser.add_argument("--limit", type=float, default=5.0, help="wall seconds of a refusal")
    parser.add_argument("--only", default="", help="the commands that hold this word")
    given = parser.parse_args(arguments)
    chosen = [case for case in cases() if given.only in " ".join([case[0], *case[1]])]
    rows = sorted((measure(*case) for case in chosen), key=lambda row: -row.wall)
    print("| wall s | CPU s | command |\n|---|---|---|")
    for row in rows:
        print(f"| {row.wall:.1f} | {row.cpu:.1f} | `{row.command}` {row.wrong} |")
    slow = [row for row in rows if row.wall > given.limit]
    print(f"\n{len(rows)} refusals, {len(slow)} above {given.limit:g} s")
    return int(bool(slow) or any(row.wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main())
