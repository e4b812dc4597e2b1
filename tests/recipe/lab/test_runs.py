"""Runs are made once, go on after a kill, and fail without a line: the stages only pretend."""

import functools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_experiment import experiment

from recipe.lab import runs
from recipe.lab.experiment import Experiment
from recipe.lab.runs import binned, read_record, run_all

# Notes in calls.txt what it is called for; writes what the real stage would, unless told to fail.
STAGE = """
import json, os, sys
from pathlib import Path
stage, base = sys.argv[1], Path(sys.argv[2])
words = sys.argv[3:]
run = Path(next((w.partition("=")[2] for w in words if w.startswith("recipe.run_dir=")), words[0]))
with (base / "calls.txt").open("a") as file:
    file.write(f"{stage} {run.name.rpartition('-')[0]}\\n")
if (base / f"fail-{stage}").exists():
    sys.exit(1)
run.mkdir(parents=True, exist_ok=True)
if stage == "simulate":
    assert words[-2:] == ["--measure", "cw_grpo"], words
    (base / "fail-once").exists() and ((base / "fail-once").unlink(), sys.exit(1))
    assert not (run / "metrics.jsonl").exists()
if stage in ("train", "simulate"):
    assert words[0] == "laboratory/cw_grpo", words
    assert "recipe.toy.world=sums" in words, words
    steps = int(next(w.partition("=")[2] for w in words if "total_training_steps" in w))
    seed = int(next(w.partition("=")[2] for w in words if w.startswith("recipe.seed=")))
    lines = [{"step": i + 1, "train/accuracy": seed / 1000 + i} for i in range(steps)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\\n" for x in lines))
    resumed = [{"commit": "abcdef0123"}, {"commit": "99"}]
    (run / "environment.json").write_text(json.dumps({"commit": "abcdef0123", "resumed": resumed}))
if stage in ("measure", "simulate"):
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    last = {"qwen-math": {"pass@1": 0.12345678}}
    (run / "measured.json").write_text(json.dumps(
        {"commit": "0123456789abcdef", "steps": {"0": {}, str(steps): last}}
    ))
"""


class Stub:
    """A folder in which stages pretend; `go` makes what is missing and returns what failed."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.record = base, base / "record.jsonl"
        (base / "stage.py").write_text(STAGE)
        python = (sys.executable, "-IS")  # the stages need no installed package: starts in a third

        def command_of(stage: str) -> list[str]:
            return [*python, str(base / "stage.py"), stage, str(base)]

        monkeypatch.setattr(runs, "command_of", command_of)
        monkeypatch.setattr(runs, "_fork", functools.partial(runs._spawn, "simulate"))

    def go(self, plan: Experiment, seeds: list[int]) -> list[tuple[str, int]]:
        wanted = [(arm, seed) for seed in seeds for arm in plan.arms]
        return run_all(plan, wanted, record=self.record, out=self.base / "runs")

    def calls(self) -> list[str]:
        """What was called since the last look."""
        path = self.base / "calls.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def stages(*runs: str) -> list[str]:
    return [f"{stage} {run}" for run in runs for stage in ("train", "export", "measure")]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    return Stub(tmp_path, monkeypatch)


def test_a_run_on_record_is_not_made_again(stub: Stub) -> None:
    assert stub.go(experiment(), [1000]) == []
    assert stub.calls() == stages("grpo-1000", "kl-1000")
    assert stub.go(experiment(), [1000, 1001]) == []
    assert stub.calls() == stages("grpo-1001", "kl-1001")
    lines = [json.loads(text) for text in stub.record.read_text().splitlines()]
    assert [(x["arm"], x["seed"]) for x in lines] == [
        *(("grpo", 1000), ("kl", 1000), ("grpo", 1001), ("kl", 1001))
    ]
    first: dict[str, Any] = lines[0]
    assert first["commit"] == "abcdef0123+99"  # it went on after an update
    assert first["measured_at"] == "0123456789ab"
    assert first["seconds"] >= 0
    assert first["measured"]["6"]["qwen-math"]["pass@1"] == 0.123457
    # six steps, seed 1000: 1..6; means over five of them, then over what is left
    assert first["curves"] == {"train/accuracy": [3.0, 6.0], "never/logged": []}


@pytest.mark.parametrize(
    ("failing", "again"),
    [
        ("train", ["train", "export", "measure"]),
        ("export", ["export", "measure"]),
        ("measure", ["export", "measure"]),  # exporting what is exported costs nothing
    ],
)
def test_a_failed_stage_leaves_no_line_and_is_what_is_done_next(
    stub: Stub, failing: str, again: list[str]
) -> None:
    (stub.base / f"fail-{failing}").touch()
    assert stub.go(experiment(), [1000]) == [("grpo", 1000), ("kl", 1000)]
    assert not stub.record.exists()
    stub.calls()
    (stub.base / f"fail-{failing}").unlink()
    assert stub.go(experiment(), [1000]) == []
    assert stub.calls() == [f"{stage} {arm}-1000" for arm in ("grpo", "kl") for stage in again]


def test_a_run_whose_last_step_was_not_measured_gets_no_line(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.go(experiment(), [1000])
    stub.record.unlink()
    for path in (stub.base / "runs").glob("grpo*/measured.json"):
        path.write_text('{"commit": "01", "steps": {"0": {}, "3": {}}}')
    assert stub.go(experiment(), [1000]) == [("grpo", 1000)]
    assert "has no step 6, the last one: delete it" in capsys.readouterr().out
    (line,) = stub.record.read_text().splitlines()
    assert json.loads(line)["arm"] == "kl"  # the other run is recorded all the same


def test_a_simulated_run_is_one_stage_and_begins_again_after_a_failure(stub: Stub) -> None:
    plan = experiment().model_copy(update={"simulated": True})
    (stub.base / "fail-once").touch()
    assert stub.go(plan, [1000]) == [("grpo", 1000)]
    assert stub.calls() == ["simulate grpo-1000", "simulate kl-1000"]
    assert stub.go(plan, [1000]) == []
    assert stub.calls() == ["simulate grpo-1000"]
    assert set(read_record(stub.record, plan)) == {("grpo", 1000), ("kl", 1000)}
    assert read_record(stub.record, experiment()) == {}  # no line of a real run


def test_a_run_of_other_settings_does_not_count(stub: Stub) -> None:
    stub.go(experiment(), [1000])
    stub.calls()
    assert read_record(stub.record, experiment(steps=9)) == {}
    stub.go(experiment(steps=9), [1000])
    assert stub.calls() == stages("grpo-1000", "kl-1000")  # in folders of their own
    assert len(stub.record.read_text().splitlines()) == 4
    assert set(read_record(stub.record, experiment())) == {("grpo", 1000), ("kl", 1000)}


def test_a_training_that_says_well_done_too_early_has_no_line(stub: Stub) -> None:
    """An exit code 0 with steps missing: no wrong number comes of it."""
    text = STAGE.replace("for i in range(steps)", "for i in range(steps - 1)")
    (stub.base / "stage.py").write_text(text)
    assert stub.go(experiment(), [1000]) == [("grpo", 1000), ("kl", 1000)]
    assert not stub.record.exists()


WAITS = """
import multiprocessing, os, sys, time
from recipe.lab.runs import end_with_parent

def wait():
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    multiprocessing.get_context("forkserver").Process(target=wait).start()
    time.sleep(600)
"""


def test_a_forked_run_ends_with_a_killed_experiment(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    parent = subprocess.Popen(
        [sys.executable, "waits.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    run = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    run.wait(timeout=30)  # raises if it is still there


def test_an_interrupt_begins_no_further_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[int] = []

    def run_arm(plan: Any, arm: Any, seed: int, *_: Any) -> None:
        begun.append(seed)
        if seed == 1000:
            raise KeyboardInterrupt
        time.sleep(0.2)

    monkeypatch.setattr(runs, "run_arm", run_arm)
    plan = experiment()
    todo = [(plan.arms[0], seed) for seed in range(1000, 1020)]
    with pytest.raises(KeyboardInterrupt):
        run_all(plan, todo, record=tmp_path / "record.jsonl", out=tmp_path)
    assert len(begun) < 5


@pytest.mark.parametrize(("jobs", "order"), [(1, "g0 k0 g1 k1 g2 k2"), (2, "g0 g1 k0 k1 g2 k2")])
def test_parallel_jobs_teach_different_start_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: int, order: str
) -> None:
    plan = experiment().model_copy(update={"worlds": 2})  # seeds 1000 and 1002 share one
    wanted = [(arm, seed) for seed in (1000, 1001, 1002) for arm in plan.arms]
    monkeypatch.setattr(runs, "run_arm", lambda *_: None)
    failed = run_all(plan, wanted, record=tmp_path / "x", out=tmp_path, jobs=jobs)
    assert " ".join(f"{arm[0]}{seed - 1000}" for arm, seed in failed) == order


def test_bins_leave_out_what_was_not_logged() -> None:
    metrics = [{"step": i, "a": float(i), **({"b": 1.0} if i == 2 else {})} for i in range(1, 8)]
    metrics[0]["a"] = float("nan")
    assert binned(metrics, "a") == [3.5, 6.5]  # steps 2 to 5, 6 and 7
    metrics += [{"step": 12, "a": 1.0}]
    assert binned(metrics, "a") == [3.5, 6.5, 1.0]
    assert binned([*metrics[:2], {"step": 11, "a": 4.0}], "a") == [2.0, None, 4.0]
    assert binned(metrics, "b") == [1.0, None, None]  # all bins, so that a figure knows their steps
    assert binned(metrics, "c") == []
