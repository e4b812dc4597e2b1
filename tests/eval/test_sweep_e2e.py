"""The real commands on a random tiny model: a real vLLM engine, a real SIGKILL."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_model import save_tiny

from prompt_aug.base.files import digests, read_json, read_lines, write_json
from prompt_aug.questions import make_question, write_parquet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
STEPS = (0, 10)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for step in STEPS:
        target = folder / "hf" / f"step_{step}"
        save_tiny(target, step)
        files = digests(list(target.iterdir()), target)
        write_json(target / "manifest.json", {"step": step, "dtype": "float32", "files": files})
    questions = [
        make_question(text=f"What is {i} + {i}?", answers=(str(2 * i),), source="toy")
        for i in range(64)
    ]
    write_parquet(questions, folder / "toy.parquet")
    (folder / "config.yaml").write_text(
        "recipe: {seed: 7}\neval: {template: open-r1, temperature: 1.0, max_tokens: 48, seed: 7,\n"
        f"  dtype: float32, benchmarks: [{{name: toy, path: {folder}/toy.parquet, samples: 8}}]}}\n"
    )
    return folder


def finish(*arguments: str, **variables: str) -> str:
    command = [sys.executable, *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples_in(folder: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Every sample in the files of all workers; none stands twice."""
    lines = [x for path in folder.glob("samples-*.jsonl") for x in read_lines(path)[1:]]
    result = {(line["uid"], line["sample"]): line for line in lines}
    assert len(result) == len(lines)
    return result


def kill_in_the_middle(out: Path, *arguments: str) -> int:
    """Start a command, kill it once there are samples, and return how many there are."""
    command, null = [sys.executable, *arguments], subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, stdout=null, stderr=null)
    try:
        for _ in range(6000):
            if list(out.glob("*/step_*/toy/samples-*.jsonl")):
                break
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return sum(len(samples_in(folder)) for folder in out.glob("*/step_*/toy"))


def test_killed_and_with_one_engine_it_gives_what_a_fresh_engine_for_each_gives(
    run: Path, tmp_path: Path
) -> None:
    fresh = tmp_path / "fresh"
    output = finish("-m", "eval.sweep", str(run), "--out", str(fresh), "--workers", "2")
    assert output.count("engine: 1 started, weights reloaded 0 times") == 2
    made = kill_in_the_middle(run / "eval", "-m", "eval.sweep", str(run))
    assert 0 < made < len(STEPS) * 512
    assert len(list(run.glob("eval/*/step_*/scores.json"))) < len(STEPS)
    output = finish("-m", "eval.sweep", str(run))
    assert "engine: 1 started, weights reloaded 1 times" in output and "restarted" not in output
    answers = []
    for step in STEPS:
        (ours,), (theirs,) = run.glob(f"eval/*/step_{step}"), fresh.glob(f"*/step_{step}")
        assert samples_in(ours / "toy") == samples_in(theirs / "toy")
        grades = (ours / "toy" / "grades.jsonl").read_bytes()
        assert grades == (theirs / "toy" / "grades.jsonl").read_bytes()
        answers.append([line["response"] for line in samples_in(ours / "toy").values()])
    # Negative control: other weights give other answers, so the equality above says something.
    assert answers[0] != answers[1]
    (head, *_), *_ = [read_lines(path) for path in fresh.glob("*/step_0/toy/samples-*.jsonl")]
    assert head["engine"]["dtype"] == "float32" and head["engine"]["vllm"]

    out = finish("-m", "eval.report", str(run))
    assert "start (step 0)" in out and "step 10" in out
    summary = read_json(run / "report" / "summary.json")
    assert [row["step"] for row in summary["checkpoints"]] == [10]
    assert summary["checkpoints"][0]["questions"] == 64


def test_the_old_head_of_a_reload_is_found_out_and_an_engine_started(
    run: Path, tmp_path: Path
) -> None:
    """vLLM on a CPU keeps the packed copy of a tied head; without ours the proof must fail.

    With VERL_PLATFORM=cpu, which evaluation sets where nothing is set, weights are not packed.
    """
    program = (
        "import sys\nfrom eval import sweep\nfrom eval.ask import engine\n"
        "engine._pack_head_again = lambda worker: None\n"
        "sys.exit(sweep.main(sys.argv[1:]))"
    )
    options = [str(run), "--out", str(tmp_path), "--max-questions", "2", "--steps", "0", "10"]
    output = finish("-c", program, *options, VERL_PLATFORM="")
    assert "nats per token away from" in output
    assert "engine: 2 started, weights reloaded 0 times" in output
