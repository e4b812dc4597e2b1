"""Every command of this project that a page shows is one that the command itself would take.

Placeholders are filled, optional parts are given. Nothing is carried out: `main` gets as far as its
parser, then come the checks of options that a command makes by itself.
"""

import argparse
import importlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from load_script import load_script

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
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\bpython |\bsubmit\.sh ")
QUOTED = re.compile(r"`([^`]+)`")
OPTIONAL = re.compile(r"(?<![=\w])\[([^\]]*)\]")  # and no list of hydra
OURS = ("recipe", "eval", "prompt_aug")
JOBS = {
    "train": "recipe.train",
    "sweep": "eval.sweep",
    "export": "recipe.export",
    "rephrase": "prompt_aug.rephrase",
}
OF_A_JOB = {"prompt_aug.rephrase": ["--model", "NAME"]}  # what scripts/*.sbatch adds
PLACEHOLDERS = {"N": "8", "URL": "http://localhost:8000/v1"}  # others are texts
# What "..." stands for, where it is more than a repetition of what stands before it.
DOTS = {
    "prompt_aug.prepare": ["out.parquet", "--no-benchmarks"],
    "prompt_aug.rephrase": ["questions.parquet", "out.parquet", "--model", "NAME"],
    "recipe.train": ["toy"],
}
# Looked at by a command after its parser, and before it reads a file.
CHECKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "eval.publish": check_asked,
    "prompt_aug.prepare": check_paths,
    "prompt_aug.rephrase": validate,
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A module, or the path of a script, and its arguments."""

    name: str
    arguments: tuple[str, ...]


def commands_of(text: str) -> list[Command]:
    """The commands of a page: in its fenced blocks a line each, in its prose between backticks."""
    lines = "".join(FENCED.findall(text)).replace("\\\n", " ").splitlines()
    lines += [quoted.replace("\n", " ") for quoted in QUOTED.findall(FENCED.sub("", text))]
    shown = [part for line in lines if SHOWN.search(line) for part in line.split(" && ")]
    return [command for part in shown for command in [command_of(part)] if command]


def command_of(line: str) -> Command | None:
    """What a line calls of ours; None for other lines."""
    words = shlex.split(OPTIONAL.sub(r"\1", line.removeprefix("$ ")), comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    match words:
        case ["python", "-m", name, *rest] if name.partition(".")[0] in OURS:
            return Command(name=name, arguments=filled(name, rest))
        case ["python", "scripts/bench.py", name, *rest]:
            return Command(name=f"scripts/benchmarks/{name}.py", arguments=filled(name, rest))
        case ["python", name, *rest] if name.startswith("scripts/"):
            return Command(name=name, arguments=filled(name, rest))
        case ["bash", "scripts/submit.sh", *rest]:
            while rest[0].startswith("--"):
                rest = rest[1:]
            name = JOBS[rest[0]]
            return Command(name=name, arguments=filled(name, [*rest[1:], *OF_A_JOB.get(name, [])]))
    return None


def filled(name: str, words: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for word in words:
        found += DOTS.get(name, []) if word == "..." else [PLACEHOLDERS.get(word, word)]
    return tuple(found)


def load(name: str) -> ModuleType | SimpleNamespace:
    if name.startswith("scripts/benchmarks/"):
        return SimpleNamespace(main=lambda: load_script("bench").main([Path(name).stem]))
    if name.startswith("scripts/"):
        return load_script(Path(name).stem)
    package = (ROOT / name.replace(".", "/")).is_dir()
    return importlib.import_module(f"{name}.__main__" if package else name)


class ParsedError(Exception):
    """In place of what follows the parser: `args[0]` is what it made of the arguments."""


PARSING = ("parse_args", "parse_intermixed_args", "parse_known_args")


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Command], None]:
    """Lets a command's `main` parse its arguments; SystemExit or UserError for refused ones."""
    given: list[tuple[str, ...]] = []
    real = {name: getattr(argparse.ArgumentParser, name) for name in PARSING}

    def stop(name: str) -> Callable[..., None]:
        def parsed(self: argparse.ArgumentParser, *_: object) -> None:
            for each in PARSING:  # which call each other
                monkeypatch.setattr(argparse.ArgumentParser, each, real[each])
            raise ParsedError(real[name](self, given[-1]))

        return parsed

    for name in PARSING:
        monkeypatch.setattr(argparse.ArgumentParser, name, stop(name))
    monkeypatch.chdir(tmp_path)

    def parsed(command: Command) -> None:
        if command.name.startswith("eval."):  # whose runs must be there
            for word in command.arguments:
                if re.fullmatch(r"\w[\w/]*", word):
                    Path(word).mkdir(parents=True, exist_ok=True)
        given.append(command.arguments)
        with pytest.raises(ParsedError) as made:
            load(command.name).main()
        CHECKS.get(command.name, lambda options: None)(made.value.args[0])

    return parsed


def shown_on(page: Path) -> list[Command]:
    return commands_of(page.read_text(encoding="utf-8"))


COMMANDS = list(dict.fromkeys(command for page in PAGES for command in shown_on(page)))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join((c.name, *c.arguments))[:90])
def test_a_command_of_a_page_is_taken(
    command: Command, parse: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        parse(command)
    except (SystemExit, UserError) as error:
        pytest.fail(f"{command}: {error} {capsys.readouterr().err.strip().splitlines()[-1:]}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "python -m prompt_aug.prepare SOURCE OUT.parquet",
            "--against --no-benchmarks is required",
        ),
        ("python -m prompt_aug.prepare SOURCE OUT --no-benchmarks", "must end in .parquet"),
        ("python -m prompt_aug.rephrase Q.parquet OUT.parquet", "--model: missing"),
        ("python -m eval.publish RUN", "nothing to do"),
        ("python -m eval.publish RUN --step 20 --card", "unrecognized arguments: --step"),
        ("python -m recipe.plan --gpus 8", "required: example"),
        ("bash scripts/submit.sh --array=0-3 sweep RUN --benchmrak amc", "--benchmrak"),
        ("python scripts/compare_methods.py --jbos 2", "--jbos"),
    ],
)
def test_a_command_that_is_refused_is_seen(
    line: str, said: str, parse: Callable[[Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = commands_of(f"```\n{line}\n```\n")
    with pytest.raises((SystemExit, UserError)) as refused:
        parse(command)
    assert said in f"{refused.value} {capsys.readouterr().err}"


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


def test_commands_are_read_as_the_shell_does() -> None:
    assert [(c.name, c.arguments) for c in commands_of(PAGE)] == [
        ("eval.sweep", ("RUN", "--steps", "8")),
        ("scripts/benchmarks/step.py", ()),
        ("recipe.train", ("toy", "data.train_files=[a, b]")),
        ("recipe.export", ("RUN",)),
        ("recipe.runs", ("FOLDER",)),
        ("recipe.train", ("EXAMPLE", "key=value", "toy")),
    ]


def test_the_pages_show_what_there_is() -> None:
    names = {command.name for command in COMMANDS}
    assert {*JOBS.values(), "eval.score", "recipe.plan", "scripts/experiment.py"} < names
    assert len(COMMANDS) > 80
