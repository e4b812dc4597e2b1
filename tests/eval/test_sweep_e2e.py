"""The real commands on a random tiny model: a real vLLM engine, a real SIGKILL."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prompt_aug.questions import make_question, write_parquet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
ROOT = Path(__file__).resolve().parents[2]


def save_tiny(folder: Path, tokenizer: Path, seed: int) -> None:
    """A Qwen2 of random weights, a tenth of a million parameters."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # vLLM's CPU attention knows no head of 16 dimensions, but 32
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for step in (0, 10):
        target = folder / "hf" / f"step_{step}"
        save_tiny(target, model, step)
        (target / "manifest.json").write_text(json.dumps({"step": step, "dtype": "float32"}))
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


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def finish(*arguments: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill_in_the_middle(part: Path, *arguments: str) -> int:
    """Start a command, kill it once `part` has samples, and return how many it has."""
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(6000):
            if part.exists() and part.read_bytes().count(b"\n") > 32:
                break
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return part.read_bytes().count(b"\n") - 1


def test_a_killed_sweep_continues_and_gives_what_an_unbroken_one_gives(
    run: Path, tmp_path: Path
) -> None:
    finish("eval.sweep", str(run), "--out", str(tmp_path / "unbroken"))
    part = run / "eval" / "step_0" / "toy.jsonl.part"
    made = kill_in_the_middle(part, "eval.sweep", str(run), "--chunk", "32")
    assert 32 <= made < 512
    assert not (run / "eval" / "step_0" / "scores.json").exists()
    finish("eval.sweep", str(run), "--chunk", "32")
    for step in ("step_0", "step_10"):
        continued = (run / "eval" / step / "toy.jsonl").read_bytes()
        assert continued == (tmp_path / "unbroken" / step / "toy.jsonl").read_bytes()
    prompt_and_rest = json.loads(continued.split(b"\n")[0])
    assert prompt_and_rest["tokens"] == 48 and prompt_and_rest["finish_reason"] == "length"

    out = finish("eval.report", str(run))
    assert "start (step 0)" in out and "step 10" in out
    summary = json.loads((run / "report" / "summary.json").read_text())
    assert [row["step"] for row in summary["checkpoints"]] == [10]
    assert summary["checkpoints"][0]["questions"] == 64


def test_a_real_benchmark_file_is_graded(run: Path, tmp_path: Path, shared_data: Path) -> None:
    suite = shared_data / "evaluation_suite"
    out = finish(
        "eval.sweep", "--model", str(run / "hf" / "step_10"), "--out", str(tmp_path),
        "--benchmark", f"amc={suite / 'amc'}", "--max-tokens", "16", "--dtype", "float32",
    )  # fmt: skip
    assert "(83 of 83 questions x 1)" in out
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["benchmarks"]["amc"]["samples"] == 83
    assert sum(scores["benchmarks"]["amc"]["status_rates"].values()) == pytest.approx(1.0)
