"""Every command of this project that a page shows passes its parser and its option checks.

Nothing is run: `main` stops after parsing.
"""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from load_script import ParsedError, load_command
from page_commands import FENCED, JOBS, Command, commands_of

from eval.publish.__main__ import check_asked
from prompt_aug.base.errors import UserError
from prompt_aug.prepare.__main__ import check_paths
from prompt_aug.rephrase.options import validate

pytestmark = pytest.mark.config

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ("CHANGELOG.md", "examples/LOG.md")  # commands as they were then
FOLDERS = ("examples", "recipe", "eval", "prompt_aug", "requirements", "scripts", "tests")
FOUND = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
PAGES = sorted(page for page in FOUND if str(page.relative_to(ROOT)) not in HISTORY)
COMMANDS = list(dict.fromkeys(c for page in PAGES for c in commands_of(page.read_text("utf-8"))))
# Option checks of a command after its parser and before it reads a file.
CHECKS: dict[str, Callable[[Namespace], None]] = {
    "eval.publish": check_asked,
    "prompt_aug.prepare": check_paths,
    "prompt_aug.rephrase": validate,
}
PARSING = ("parse_args", "parse_intermixed_args", "parse_known_args")


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Command], None]:
    """Return a function that parses a command; it raises SystemExit or UserError."""
    monkeypatch.chdir(tmp_path)

    def parsed(command: Command) -> None:
        reads_runs = ("eval.", "recipe.export", "recipe.runs", "recipe.fork")
        if command.name.startswith(reads_runs):  # runs must exist
            for word in ("runs", *command.arguments):
                if re.fullmatch(r"\w[\w/]*", word):
                    Path(word).mkdir(parents=True, exist_ok=True)
        with monkeypatch.context() as patch, pytest.raises(ParsedError) as made:
            for name in PARSING:

                def stop(parser: ArgumentParser, *_: Any, name: str = name) -> None:
                    patch.undo()  # the three call each other
                    raise ParsedError(getattr(parser, name)(command.arguments))

                patch.setattr(ArgumentParser, name, stop)
            load_command(command.name).main()
        CHECKS.get(command.name, lambda options: None)(made.value.args[0])

    return parsed


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command)[:90])
def test_a_command_of_a_page_is_accepted(
    command: Command, parse: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        parse(command)
    except (SystemExit, UserError) as error:
        pytest.fail(f"{command}: {error} {capsys.readouterr().err.strip().splitlines()[-1:]}")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("python -m prompt_aug.prepare SOURCE OUT.parquet", "--against --no-benchmarks"),
        ("python -m prompt_aug.prepare SOURCE OUT --no-benchmarks", ".parquet"),
        ("python -m prompt_aug.rephrase Q.parquet OUT.parquet", "--model"),
        ("python -m eval.publish RUN", "--card"),
        ("bash scripts/submit.sh --array=0-3 sweep RUN --benchmrak amc", "--benchmrak"),
        ("python scripts/bench.py step --setps 2", "--setps"),
    ],
)
def test_a_wrong_command_is_rejected(
    line: str, named: str, parse: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = commands_of(f"```\n{line}\n```\n")
    with pytest.raises((SystemExit, UserError)) as refused:
        parse(command)
    assert named in f"{refused.value} {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_exist(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


PAGE = """
Text, `python -m recipe.export RUN` and `python3 -c x`.

| `python -m recipe.runs [FOLDER]` | `python -m recipe.train EXAMPLE [key=value ...]` |

```bash
$ X=1 python -m eval.sweep RUN \\
    --steps N   # a comment
cd x && python scripts/bench.py step && python -m pip list
bash scripts/submit.sh --nodes=2 --time=1 train toy 'data.train_files=[a, b]'
```
"""


def test_commands_are_parsed_as_in_a_shell() -> None:
    nodes = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8")
    assert [(c.name, c.arguments) for c in commands_of(PAGE)] == [
        ("eval.sweep", ("RUN", "--steps", "8")),
        ("scripts/benchmarks/step.py", ()),
        ("recipe.train", ("toy", "data.train_files=[a, b]", *nodes)),
        ("recipe.export", ("RUN",)),
        ("recipe.runs", ("FOLDER",)),
        ("recipe.train", ("EXAMPLE", "key=value", "toy")),
    ]


def test_the_pages_have_commands() -> None:
    names = {command.name for command in COMMANDS}
    assert {*JOBS.values(), "eval.score", "recipe.plan", "scripts/benchmarks/grading.py"} < names
    assert len(COMMANDS) > 70
