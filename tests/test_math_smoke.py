"""Real questions through the whole job: train two steps, convert, evaluate on a real benchmark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MATH = "SimpleRL-simplelr_qwen_level3to5.{}.parquet"


def command(*arguments: str, timeout: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.e2e
@pytest.mark.timeout(2400)  # a busy machine takes several times longer
def test_real_questions_go_through_the_whole_job(shared_data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    files = shared_data / "math_level3to5"
    questions = tmp_path / "train.parquet"
    source = files / MATH.format("train")  # two of its rows have no answer
    command(
        "prompt_aug.prepare",
        str(source),
        str(questions),
        "--preset=math-level3to5",
        "--no-benchmarks",
        timeout=300,
    )
    command(
        "recipe.train",
        "math_smoke",
        f"data.train_files={questions}",
        f"data.val_files={files / MATH.format('test')}",
        f"recipe.run_dir={run}",
        f"recipe.toy.cache={tmp_path / 'toy'}",
        timeout=1500,
    )
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    manifest = json.loads((run / "data" / "manifest.json").read_text())["train"]
    assert manifest["questions"] > 7000  # of 8519: few are too long
    rollouts = lines(run / "rollouts" / "step_2.jsonl")
    assert len(rollouts) == 16
    assert all(rollout["gold"] and rollout["status"] for rollout in rollouts)
    assert any("\\" in rollout["prompt"].replace("\\boxed", "") for rollout in rollouts)  # LaTeX
    assert max(line["prompt_length/max"] for line in metrics) > 100  # tokens

    command("recipe.export", str(run), timeout=300)
    suite = shared_data / "evaluation_suite" / "math"
    output = command(
        "eval.sweep",
        str(run),
        "--steps=2",
        f"--benchmark=math500={suite}",
        "--max-questions=8",
        timeout=1500,
    )
    assert "math500: accuracy" in output
    (evaluated,) = run.glob("eval/*/step_2")
    scores = json.loads((evaluated / "scores.json").read_text())
    assert scores["benchmarks"]["math500"]["questions"] == 8
    samples = lines(next(evaluated.glob("math500/samples-*.jsonl")))[1:]
    assert len(samples) == 8 and all(sample["response"] for sample in samples)
