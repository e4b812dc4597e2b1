"""Commands: help, options, wrong arguments, and those that a page shows. Nothing is run."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_commands import FENCED, Command, ParsedError, commands_of, load_command

from eval.publish import check_asked
from prompt_aug.base.errors import UserError
from prompt_aug.prepare.__main__ import check_paths
from prompt_aug.rephrase.__main__ import validate

ROOT = Path(__file__).resolve().parents[1]
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
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_exist(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("eval.report", ["{here}", "--out", ""], "--out: it is empty"),
        ("eval.sweep", ["{here}", "--out", " "], "--out: it is empty"),
        (
            "prompt_aug.rephrase",
            ["q", "o", "--model=m", "--timeout=0"],
            "--timeout=0.0: not above 0",
        ),
    ],
)
def test_unusable_values_are_usage_errors(
    name: str,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        code = load_command(name).main([text.format(here=tmp_path) for text in arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
