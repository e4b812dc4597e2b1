"""Run a protocol of a study: train, export and evaluate its arms, and keep a line of each result.

    python scripts/study.py examples/smollm2/study/CW_GRPO.yaml --work ~/study

A block is a seed with all its arms, from one start model, on one machine; the arms that decide run
first, for all seeds. All commands run in a git worktree of the protocol's commit `code`, in WORK.
PROTOCOL.jsonl gets a line for each step and question set of a run; then its checkpoints are
deleted. After a kill, the same command resumes. SVAMP, PARAMAWPS: absolute, see smollm2.sh.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from eval.scores.score import Scored
from eval.show.arms import key, lines_of, read_protocol
from eval.show.data import choose_evaluation
from prompt_aug.base.commands import make_parser, nonempty_path, run_command
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import append_lines, sha256
from prompt_aug.typed import as_list
from recipe.machine.host import ROOT, cpu, multiplies_bfloat16
from recipe.run.folder import RunFolder, read_config, read_metrics, select

MODEL = "models/smollm2-warm/model.safetensors"  # made by `scripts/smollm2.sh start`
METRICS = {
    **{"reward": "critic/score/mean", "length": "response_length/mean"},
    **{"clip": "actor/pg_clipfrac", "seconds": "perf/time_per_step"},
    **{name: f"actor/{name}" for name in ("entropy", "grad_norm", "lr")},
}


def call(command: Sequence[str], folder: Path, **variables: str) -> str:
    """Run a command in `folder`; return the output of git. Raises UserError if it fails."""
    output, env = subprocess.PIPE if command[0] == "git" else None, os.environ | variables
    done = subprocess.run(command, cwd=folder, env=env, stdout=output, text=True)
    if done.returncode:
        raise UserError(f"exit code {done.returncode}: {' '.join(command)}")
    return (done.stdout or "").strip()


class Study:
    """The runs of a protocol that are not in its lines yet."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path.resolve(), work.resolve()
        self.protocol, self.sha = read_protocol(path)[0], sha256(path)
        if self.work.is_relative_to(ROOT):
            raise UsageError(f"--work {work}: inside the checkout. Name a folder outside.")
        if not (commit := self.protocol.code):
            raise UsageError(f"{path}: code=null. Do what its rule says, then enter a commit.")
        if call(["git", "status", "--porcelain", "--", str(self.path)], ROOT):
            raise UserError(f"{path}: has changes. Commit the protocol before its first run.")
        self.code, part = self.work / f"code-{commit[:12]}", self.work / "code.part"
        with self.alone():
            if not self.code.exists():  # -f -f: of a killed start, git may know it, locked
                shutil.rmtree(part, ignore_errors=True)
                call(["git", "worktree", "add", "-f", "-f", "--detach", str(part), commit], ROOT)
                call(["git", "worktree", "move", "-f", str(part), str(self.code)], ROOT)
        head = call(["git", "rev-parse", "HEAD"], self.code)
        if not head.startswith(commit) or call(["git", "status", "--porcelain"], self.code):
            raise UserError(f"{self.code}: is not commit {commit}, unchanged. Delete the folder.")

    def alone(self, part: str = "study") -> FileLock:
        """The lock of what array jobs share in WORK, or of a run."""
        self.work.mkdir(parents=True, exist_ok=True)
        return FileLock(self.work / f"{part}.lock")

    def do(self, *command: str) -> None:
        print(f"== {' '.join(command)}", flush=True)
        call(command, self.code, PYTHONPATH=str(self.code), RECIPE_PYTHON=sys.executable)

    def one(self, arm: str, seed: int) -> None:
        """Run an arm of a seed unless it has its lines."""
        folder = self.work / f"{self.protocol.claim}-{self.code.name}" / f"{arm}_{seed}"
        lines = [line for line in read_protocol(self.path)[1] if line["block"] == seed]
        asked = self.protocol.keys(arm, seed)
        if missing := asked - {key(line) for line in lines}:  # a whole one may be another machine's
            here = {"block": seed, "cpu": cpu(), "start_sha": sha256(self.start_model())}
            if any(line[name] != here[name] for line in lines for name in here):
                begun = f"seed {seed}: begun with another start model or processor"
                raise UserError(f"{begun}. Continue there, or remove its lines.")
            if missing != asked and not RunFolder(folder).checkpoints.exists():
                raise UserError(f"{arm}_{seed}: lacks lines. To repeat it, remove all that it has.")
            self.run(arm, seed, folder)
            made = [line for line in self.lines(arm, folder, here) if key(line) in missing]
            if odd := missing ^ {x for x, n in Counter(map(key, made)).items() if n == 1}:
                raise UserError(f"{folder}/eval: not evaluated once: {sorted(odd)}. Delete it.")
            with self.alone():
                append_lines(self.path.with_suffix(".jsonl"), made, sync=True)
        for weights in (RunFolder(folder).checkpoints, RunFolder(folder).exports):
            shutil.rmtree(weights, ignore_errors=True)

    def start_model(self) -> Path:
        """Return the weights that all runs begin with; those of smollm2 are made first."""
        settings = dict(text.partition("=")[::2] for text in self.protocol.settings)
        if model := settings.get("recipe.model_path"):
            if weights := sorted((self.code / model).glob("*.safetensors")):
                return weights[0]
            raise UsageError(f"{self.path}: recipe.model_path={model}: no *.safetensors there.")
        with self.alone():
            self.do("bash", "scripts/smollm2.sh", "start")
        return self.code / MODEL

    def run(self, arm: str, seed: int, folder: Path) -> None:
        """Train, export and evaluate a run."""
        python, settings = [sys.executable, "-m"], self.protocol.arms[arm].settings
        given = [*settings, f"recipe.seed={seed}", f"recipe.run_dir={folder}"]
        self.do(*python, "recipe.train", *self.protocol.settings, *given)
        self.do(*python, "recipe.export", str(folder))
        asked = {step for _, _, _, step in self.protocol.keys(arm, seed)}
        for sweep in self.protocol.evaluations:
            if steps := [str(step) for step in sweep.steps if step in asked]:
                decode = [f"--temperature={sweep.temperature}", f"--top-p={sweep.top_p}"]
                sets = [f"--benchmark={benchmark}" for benchmark in sweep.benchmarks]
                self.do(*python, "eval.sweep", str(folder), *decode, "--steps", *steps, *sets)

    def lines(self, arm: str, folder: Path, here: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the lines of a run, with what is needed to judge and to repeat it."""
        config, made = read_config(folder), []
        files = as_list(select(config, "data.train_files"))
        data = b"".join((self.code / x).read_bytes() for x in files)
        about = {
            **{**here, "protocol_sha": self.sha, "commit": self.protocol.code},
            "lock_sha": sha256(self.code / "requirements/cpu.txt"),
            "dtype": select(config, "actor_rollout_ref.rollout.dtype"),
            "data_sha": hashlib.sha256(data).hexdigest(),
            "train": train_summary(folder),
        }
        for settings in sorted(path.name for path in RunFolder(folder).evaluation.iterdir()):
            scored = choose_evaluation(folder, settings, [])
            for line in lines_of(arm, folder, scored):
                made.append({**line, **sampled(scored[line["step"]], line["set"]), **about})
        return made


def train_summary(folder: Path) -> dict[str, list[float | None]]:
    """Return the means of ten steps each; None where a metric is missing."""
    lines, means = read_metrics(folder), {}
    for name, of in METRICS.items():
        tens = np.array_split([line.get(of, np.nan) for line in lines], range(10, len(lines), 10))
        finite = [ten[np.isfinite(ten)] for ten in tens]
        means[name] = [float(f"{ten.mean():.4g}") if ten.size else None for ten in finite]
    return means


def sampled(scored: Scored, name: str) -> dict[str, Any]:
    """Return digest, truncated share, and number of different responses to a question."""
    digest, distinct = hashlib.sha256(), []
    for _, samples in scored.samples(name):
        texts = [" ".join(sample.get("response", "").split()) for sample in samples]
        digest.update("\0".join(texts).encode())
        distinct.append(len(set(texts)))
    rates = {"truncated": scored.benchmarks[name]["truncation_rate"]}
    return rates | {"samples_sha": digest.hexdigest(), "distinct": float(np.mean(distinct))}


def study(given: argparse.Namespace) -> None:
    if not (given.any_processor or multiplies_bfloat16()):
        raise UsageError(
            "this processor has no bfloat16 products (AMX or AVX-512): all would be in float32, a "
            "step twice as long, and the start model another one. To run anyway: --any-processor."
        )
    runs = Study(given.protocol, given.work)
    primary, arms = runs.protocol.primary, runs.protocol.arms
    seeds = sorted({seed for arm in arms.values() for seed in arm.seeds})
    if given.index is not None and not 0 <= given.index < len(seeds):
        raise UsageError(f"--index {given.index}: the blocks are 0 to {len(seeds) - 1}")
    asked = seeds if given.index is None else [seeds[given.index]]
    for names, seed in product((primary.arms if primary else (), arms), asked):
        for arm in (arm for arm in runs.protocol.block(seed) if arm in names):
            with runs.alone(f"{runs.protocol.claim}-{arm}_{seed}"):  # else two tasks train the same
                runs.one(arm, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python scripts/study.py examples/smollm2/study/CW_GRPO.yaml --work ~/study"
    parser = make_parser("python scripts/study.py", __doc__, example=example)
    add = parser.add_argument
    add("protocol", type=Path, help="yaml file; its lines are beside it")
    add("--work", type=nonempty_path, required=True, help="folder of the worktree and the runs")
    add("--index", type=int, help="only this block, from 0, as in a SLURM array")
    add("--any-processor", action="store_true", help="also without bfloat16 products")
    given = parser.parse_args(arguments)
    return run_command("study", lambda: study(given), interrupted="the same command resumes")


if __name__ == "__main__":
    sys.exit(main())
