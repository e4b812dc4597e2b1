"""Load the commands of this project, and parse those that a page shows."""

import importlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]

FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(
    r"```(?:yaml|python|csv)\n((?:# @package _global_\n)?)# (mine/\S+)\n(.*?)```", re.DOTALL
)
SHOWN = re.compile(r"\bpython |\bsubmit\.sh ")
QUOTED = re.compile(r"`([^`]+)`")
OPTIONAL = re.compile(r"(?<![=\w])\[([^\]]*)\]")  # not a list of hydra
PACKAGES = ("recipe", "eval", "prompt_aug")
JOBS = {
    "train": "recipe.train",
    "sweep": "eval.sweep",
    "export": "recipe.export",
    "rephrase": "prompt_aug.rephrase",
    "doctor": "recipe.doctor",
}
PLACEHOLDERS = {  # others are valid as they are
    **{"N": "8", "URL": "http://localhost:8000/v1", "EXAMPLE": "toy", "METHOD": "grpo"},
    **{"COMMAND": "toy", "method=NAME": "method=grpo", "key=value": "recipe.seed=1"},
    "KEY=VALUE": "recipe.seed=1",
}
# Required arguments that "..." stands for.
DOTS = {
    "prompt_aug.prepare": ["out.parquet", "--no-benchmarks"],
    "prompt_aug.rephrase": ["questions.parquet", "out.parquet", "--model", "NAME"],
    "recipe.train": [],
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A module or the path of a script, and its arguments."""

    name: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.name, *self.arguments))


def fenced_lines(text: str) -> list[str]:
    """Return the lines of all fenced blocks, with continued lines joined."""
    return "".join(FENCED.findall(text)).replace("\\\n", " ").splitlines()


def commands_of(text: str) -> list[Command]:
    """Return the commands in fenced blocks and between backticks in prose."""
    lines = fenced_lines(text)
    lines += [quoted.replace("\n", " ") for quoted in QUOTED.findall(FENCED.sub("", text))]
    shown = [part for line in lines if SHOWN.search(line) for part in line.split(" && ")]
    return [command for part in shown for command in [command_of(part)] if command]


def command_of(line: str) -> Command | None:
    """Return the command of a line with placeholders filled; None if it is not ours."""
    words = shlex.split(OPTIONAL.sub(r"\1", line.removeprefix("$ ")), comments=True)
    words = [re.sub("^~(?=/)", str(Path.home()), word) for word in words]  # as a shell does
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    match words:
        case ["python", "-m", name, *rest] if name.partition(".")[0] in PACKAGES:
            pass
        case ["python", "scripts/bench.py", command, *rest]:
            name = f"scripts/bench.py {command}"
        case ["python", name, *rest] if name.startswith("scripts/"):
            pass
        case ["bash", "scripts/submit.sh", *rest]:
            job = next(i for i, word in enumerate(rest) if not word.startswith("--"))
            options, name, rest = rest[:job], JOBS[rest[job]], rest[job + 1 :]
            if name == "prompt_aug.rephrase":  # added by scripts/rephrase.sbatch
                rest += ["--model", "NAME"]
            for option in options:
                if option.startswith("--nodes=") and name == "recipe.train":  # by train.sbatch
                    own = "actor_rollout_ref.rollout.nnodes=1" in rest  # of the engines
                    nodes = int(option.removeprefix("--nodes=")) - own
                    rest += [f"trainer.nnodes={nodes}", "trainer.n_gpus_per_node=8"]
        case _:
            return None
    filled: list[str] = []
    for word in rest:
        filled += DOTS.get(name, []) if word == "..." else [PLACEHOLDERS.get(word, word)]
    return Command(name=name, arguments=tuple(filled))


def write_files(text: str, folder: Path) -> None:
    """Write the files of ``mine/`` that a page shows into `folder`."""
    for package, name, content in FILE.findall(text):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(package + content, encoding="utf-8")


class ParsedError(Exception):
    """Stops a command in place of parsing, or after it; `args[0]` is the parser or its result."""


def load_command(name: str) -> ModuleType | SimpleNamespace:
    """Load a command, as ``eval.sweep``, ``recipe/train.py`` or ``scripts/bench.py step``."""
    path, _, subcommand = name.partition(" ")
    if subcommand:
        return SimpleNamespace(main=lambda: importlib.import_module("bench").main([subcommand]))
    if name.startswith("scripts/"):
        return importlib.import_module(Path(path).stem)
    module = name.removesuffix(".py").replace("/", ".")
    package = (ROOT / module.replace(".", "/") / "__main__.py").is_file()
    return importlib.import_module(f"{module}.__main__" if package else module)
