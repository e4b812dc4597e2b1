"""Commands: help, options, wrong arguments, and those that a page shows. Nothing is run."""

import re
import runpy
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from page_commands import (
    FENCED,
    QUOTED,
    Command,
    ParsedError,
    commands_of,
    fenced_lines,
    load_command,
    write_files,
)

from eval.show.publish import check_asked
from prompt_aug.base.errors import UserError
from prompt_aug.prepare import sources
from prompt_aug.prepare.__main__ import check_paths, choose
from prompt_aug.prepare.sources import load_presets
from prompt_aug.questions import read_parquet
from prompt_aug.rephrase.__main__ import validate
from recipe import shortcut
from recipe.config.compose import compose_config

ROOT = Path(__file__).resolve().parents[1]
# ------------------------------------------------------------------------- pages

HISTORY = ("CHANGELOG.md", "examples/LOG.md")  # commands as they were then
FOLDERS = ("examples", "recipe", "eval", "prompt_aug", "requirements", "scripts", "tests")
FOUND = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
PAGES = sorted(page for page in FOUND if str(page.relative_to(ROOT)) not in HISTORY)
# The last page that shows a command: of a folder mine/ it has the files.
COMMANDS = {c: page for page in PAGES for c in commands_of(page.read_text("utf-8"))}
OWN = re.compile(
    r"(?<![\w./-])(?:\./)?((?:scripts|tests|requirements)/[\w./-]*\w|environment\.yml)"
)


def check_source(options: Namespace) -> None:
    """Check what `prompt_aug.prepare` does before it reads rows."""
    check_paths(options)
    choose(options)


def check_training(given: Namespace) -> None:
    """Compose a training; the hub is replaced by `replaced_hub`."""
    if given.model:
        train = shortcut.expand(given.example, given.model, HUB_IDS.get(given.data, given.data), [])
        given.example, *given.overrides = train
    if given.example and not given.script:
        compose_config(given.example, given.overrides)


# Option checks of a command after its parser and before it reads a file.
CHECKS: dict[str, Callable[[Namespace], None]] = {
    "eval.publish": check_asked,
    "prompt_aug.prepare": check_source,
    "prompt_aug.rephrase": validate,
    "recipe.train": check_training,
}
HUB_IDS = {"NAME": "gsm8k"}
COMMAND = re.compile(r"^[\w=./$ ]*\b(?:bash|python|sbatch|conda|uv|pip|cluster\.sh)\b ")
PARSING = ("parse_args", "parse_intermixed_args", "parse_known_args")


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Command], None]:
    """Return a function that parses a command; it raises SystemExit or UserError."""
    monkeypatch.chdir(tmp_path)

    def rows_of(hub: str, *, name: str | None = None, **_: Any) -> datasets.Dataset:
        if name != next((p.config for p in load_presets().values() if p.hub == hub), None):
            raise ValueError(f"BuilderConfig {name!r} not found. Available: ['other']")
        row = {"question": "What is {0} times {1}?", "answer": "#### {0}"}
        texts = [{k: v.format(i, i * i) for k, v in row.items()} for i in range(220)]
        return datasets.Dataset.from_list(texts)

    monkeypatch.setattr(datasets, "load_dataset", rows_of)
    monkeypatch.setattr(sources, "hub_answers", lambda _: True)

    def parsed(command: Command) -> None:
        write_files(COMMANDS[command].read_text("utf-8"), tmp_path)
        reads_runs = ("eval.", "recipe.export", "recipe.runs")
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
def test_scripts_files_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    prose = FENCED.sub("", text)
    shown = [*fenced_lines(text), *QUOTED.findall(prose)]
    named = {name for line in shown if COMMAND.search(line) for name in OWN.findall(line)}
    assert [
        name for name in named if not ((ROOT / name).exists() or (page.parent / name).exists())
    ] == []
    links = [link for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", prose) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    for script in (ROOT / name for name in named if name.endswith(".sh")):
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_verifier_example_trains_and_validates_on_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """reasoning-gym's question i depends on seed + i alone; the package is replaced."""

    def create_dataset(_: str, *, size: int, seed: int) -> list[dict[str, Any]]:
        return [{"question": f"Question {seed + i}?", "answer": seed + i} for i in range(size)]

    gym = SimpleNamespace(create_dataset=create_dataset, get_score_answer_fn=None)
    write_files((ROOT / "recipe/VERIFIERS.md").read_text("utf-8"), tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    monkeypatch.setattr(sys, "argv", ["gym.py", "chain_sum"])
    runpy.run_path("mine/gym.py", run_name="__main__")
    train, validation = (read_parquet(f"mine/{name}.parquet") for name in ("train", "val"))
    assert len(train) == 8000 and len(validation) == 200
    assert not {q.uid for q in train} & {q.uid for q in validation}


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
