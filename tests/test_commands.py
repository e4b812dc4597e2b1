"""Commands: help, options, wrong arguments, and those that a page shows. Nothing is run."""

import argparse
import ast
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_commands import FENCED, JOBS, Command, ParsedError, commands_of, load_command

from eval.publish import check_asked
from prompt_aug.base.errors import UserError
from prompt_aug.prepare.__main__ import check_paths
from prompt_aug.rephrase.__main__ import validate

ROOT = Path(__file__).resolve().parents[1]
OWNER = ROOT / "prompt_aug" / "base" / "commands.py"


def sources() -> Iterator[Path]:
    for folder in ("prompt_aug", "recipe", "eval", "scripts"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def calls(path: Path, name: str) -> bool:
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = [node.func for node in tree if isinstance(node, ast.Call)]
    return any(getattr(f, "attr", getattr(f, "id", "")) == name for f in functions)


def test_every_parser_is_made_in_one_place() -> None:
    assert [path for path in sources() if calls(path, "ArgumentParser")] == []
    assert [path for path in sources() if calls(path, "_Parser")] == [OWNER]
    assert len(PARSED) > 18


PARSED = [p for p in sources() if calls(p, "make_parser")]
FOLDER = ROOT / "scripts" / "benchmarks"
PARSED += [p for p in sources() if p.parent == FOLDER]


@pytest.fixture
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    def parse(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise ParsedError(self)

    for name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, parse)
    with pytest.raises(ParsedError) as result:
        load_command(str(request.param.relative_to(ROOT))).main()
    return result.value.args[0]


def parsers_in(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser and those of its subcommands."""
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser, *(sub for action in nested for sub in action.choices.values())]


@pytest.mark.parametrize(
    "parser", PARSED, indirect=True, ids=lambda p: str(p.relative_to(ROOT).with_suffix(""))
)
def test_help_is_complete_and_options_are_written_out(parser: argparse.ArgumentParser) -> None:
    assert parser.description and parser.epilog and parser.epilog.startswith("example:\n  python ")
    assert parser.prog in parser.epilog
    for each in parsers_in(parser):
        assert not each.allow_abbrev
        actions = [a for a in each._actions if not isinstance(a, argparse._SubParsersAction)]
        assert [a.dest for a in actions if not a.help] == []
        each.format_help()  # a stray percent sign in a help is found here
    assert any(isinstance(a, argparse._VersionAction) for a in parser._actions)


@pytest.mark.parametrize(
    ("module", "arguments", "code", "words"),
    [
        ("recipe.export", ["."], 1, "not a run folder"),
        ("recipe.export", ["", "--steps", "1"], 2, "is empty"),
        ("recipe.fork", [".", "new", "--step", "1"], 1, "not a run folder"),
        ("recipe.runs", ["nowhere"], 2, "is not a folder"),
        ("recipe.plan", ["tyo"], 1, "did you mean toy"),
        ("eval.report", ["nowhere"], 2, "is not a folder"),
        ("prompt_aug.prepare", ["nowhere", "o.parquet"], 2, "--no-benchmarks"),
        ("prompt_aug.prepare", ["nowhere", "o.parquet", "--no-benchmarks"], 1, "nowhere"),
        ("prompt_aug.templates", ["check", "nowhere.yaml"], 1, "nowhere.yaml"),
        ("prompt_aug.rephrase", ["q.parquet", "o.parquet"], 2, "--model"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_nothing(
    module: str,
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert load_command(module).main(arguments) == code
    except SystemExit as error:  # argparse
        assert error.code == code
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------- pages

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


@pytest.mark.config
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command)[:90])
def test_a_command_of_a_page_is_accepted(
    command: Command, parse: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        parse(command)
    except (SystemExit, UserError) as error:
        pytest.fail(f"{command}: {error} {capsys.readouterr().err.strip().splitlines()[-1:]}")


@pytest.mark.config
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


@pytest.mark.config
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


@pytest.mark.config
def test_commands_are_parsed_as_in_a_shell() -> None:
    assert {*JOBS.values(), "eval.score"} < {command.name for command in COMMANDS}
    nodes = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8")
    assert [(c.name, c.arguments) for c in commands_of(PAGE)] == [
        ("eval.sweep", ("RUN", "--steps", "8")),
        ("scripts/benchmarks/step.py", ()),
        ("recipe.train", ("toy", "data.train_files=[a, b]", *nodes)),
        ("recipe.export", ("RUN",)),
        ("recipe.runs", ("FOLDER",)),
        ("recipe.train", ("EXAMPLE", "key=value", "toy")),
    ]
