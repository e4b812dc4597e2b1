"""What holds of every command: its help is complete, and no option can be abbreviated."""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_script import ParsedError, load_command

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


COMMANDS = [p for p in sources() if calls(p, "make_parser") and p.name != "options.py"]
FOLDER = ROOT / "scripts" / "benchmarks"
BENCHMARKS = [p for p in sources() if p.parent == FOLDER and p.stem not in ("paired", "__init__")]
COMMANDS += BENCHMARKS


@pytest.fixture
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    def parse(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise ParsedError(self)

    for name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, parse)
    with pytest.raises(ParsedError) as found:
        load_command(str(request.param.relative_to(ROOT))).main()
    return found.value.args[0]


def parsers_in(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser and those of its subcommands."""
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser, *(sub for action in nested for sub in action.choices.values())]


@pytest.mark.parametrize(
    "parser", COMMANDS, indirect=True, ids=lambda p: str(p.relative_to(ROOT).with_suffix(""))
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


def test_there_are_commands() -> None:
    names = {str(path.relative_to(ROOT)) for path in COMMANDS}
    assert {"recipe/train.py", "eval/sweep.py", "prompt_aug/prepare/__main__.py"} < names
    assert len(names) > 20


@pytest.mark.parametrize(
    ("module", "arguments", "code", "words"),
    [
        ("recipe.export", ["nowhere"], 2, "is not a folder"),
        ("recipe.export", ["."], 1, "not a run folder"),
        ("recipe.export", ["", "--steps", "1"], 2, "is empty"),
        ("recipe.fork", ["nowhere", "new", "--step", "1"], 2, "is not a folder"),
        ("recipe.fork", [".", "new", "--step", "1"], 1, "not a run folder"),
        ("recipe.runs", ["nowhere"], 2, "is not a folder"),
        ("recipe.plan", ["tyo"], 1, "did you mean toy"),
        ("eval.sweep", ["nowhere"], 2, "is not a folder"),
        ("eval.sweep", ["--model", "m"], 2, "--out"),
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
