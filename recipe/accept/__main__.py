"""Accept a node: ``python -m recipe.accept [--cpu] [--folder runs/accept] [--only STAGE ...]``.

What to run first on a new site: doctor, a model with random weights, loss and gradient against
float32, trainings of two steps and one, the transfer of weights, the export in both dtypes, an
evaluation. Each stage is a process of its own and reports on its own; after a failure only the
stages that need the failed one are skipped. Then a page of figures, also in FOLDER/accept.md.
``--cpu`` does it with the toy model. Nothing is downloaded. The GPU form was never run
(requirements/README.md).
"""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from prompt_aug.base.commands import make_parser
from prompt_aug.base.files import write_text
from recipe.accept.stages import Figures, Stage, StageError, stages

MARK = ".acceptance"  # in every folder that this command made, and may delete


@dataclass(kw_only=True, slots=True)
class Result:
    """`why` is empty for a stage that went well."""

    name: str
    why: str = ""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)


def run(stage: Stage, logs: Path, failed: set[str]) -> Result:
    """One stage to its end, or to its limit; what it prints goes to its log."""
    missing = [name for name in stage.needs if name in failed]
    if missing:
        return Result(name=stage.name, why=f"not run: {missing[0]} failed")
    began = time.monotonic()
    result = Result(name=stage.name)
    log = logs / f"{stage.name.replace(' ', '_')}.log"
    try:
        if stage.command:
            with log.open("w") as file:
                done = subprocess.run(
                    stage.command, stdout=file, stderr=subprocess.STDOUT, timeout=stage.seconds
                )
            if done.returncode:
                raise StageError(f"exit code {done.returncode}, see {log}")
        result.figures = stage.figures()
    except subprocess.TimeoutExpired:
        result.why = f"not done within {stage.seconds:.0f} s, see {log}"
    except (StageError, OSError, KeyError, ValueError) as error:
        result.why = str(error)
    result.seconds = time.monotonic() - began
    return result


def take(folder: Path, anew: bool) -> bool:
    """Make `folder`, without what an earlier run left there if `anew`; False: not this command's.

    A training run has logs/ too: the mark alone says what may be deleted.
    """
    if folder.exists():
        marked = (folder / MARK).is_file()
        if not marked and (not folder.is_dir() or any(folder.iterdir())):
            return False
        if anew:
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    (folder / "logs").mkdir(exist_ok=True)
    return True


def page(results: list[Result]) -> str:
    """The table of stages and figures, as Markdown."""
    lines = ["| stage | result | seconds |", "|---|---|---:|"]
    lines += [f"| {r.name} | {r.why or 'ok'} | {r.seconds:.0f} |" for r in results]
    lines += ["", "| stage | figure | value |", "|---|---|---:|"]
    lines += [f"| {r.name} | {k} | {v:.4g} |" for r in results for k, v in r.figures.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.accept", __doc__, example="python -m recipe.accept --cpu"
    )
    parser.add_argument("--cpu", action="store_true", help="the toy model on the CPU")
    parser.add_argument("--folder", type=Path, default=Path("runs/accept"), help="deleted first")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="in the folder as it is")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    wanted = stages(folder, options.cpu)
    names = [stage.name for stage in wanted]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only: no stage {', '.join(unknown)}; they are {', '.join(names)}")
    if not take(folder, anew=not options.only):
        print(f"recipe.accept: {folder} is not of an acceptance run: choose another --folder")
        return 1
    results: list[Result] = []
    for stage in wanted:
        if options.only and stage.name not in options.only:
            continue
        result = run(stage, folder / "logs", {r.name for r in results if r.why})
        results.append(result)
        print(f"{result.name}: {result.why or 'ok'}, {result.seconds:.0f} s", flush=True)
    write_text(folder / "accept.md", page(results))
    print(f"\n{page(results)}")
    return int(any(result.why for result in results))


if __name__ == "__main__":
    sys.exit(main())
