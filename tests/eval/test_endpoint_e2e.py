"""A real vLLM server against the engine of this process: equal samples, also after a resume."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import save_tiny
from vllm_server import serving_model

from prompt_aug.base.files import read_lines
from prompt_aug.questions import make_question, write_parquet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
ROOT = Path(__file__).resolve().parents[2]
# A stop string that is met, and parameters that a server could take from elsewhere.
SAMPLED = ("--temperature=1", "--samples=2", "--top-k=50", "--min-p=0.001", "--stop=a",
           "--repetition-penalty=1.1")  # fmt: skip


def samples(out: Path, model: str) -> dict[tuple[str, str, int], tuple[str, int, str]]:
    """Every sample of both settings: the folder's name begins with template and temperature."""
    found = {}
    for path in out.glob(f"*/{model}/toy/samples-*.jsonl"):
        for x in read_lines(path)[1:]:
            key = (path.parents[2].name, x["uid"], x["sample"])
            found[key] = (x["response"], x["tokens"], x["finish_reason"])
    return found


def test_a_server_gives_what_the_engine_gives(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    save_tiny(model, seed=5)
    made = [make_question(text=f"{i} + 1?", answers=("1",), source="t") for i in range(24)]
    write_parquet(made, tmp_path / "q.parquet")
    common = [sys.executable, "-m", "eval.sweep", f"--benchmark=toy={tmp_path / 'q.parquet'}",
              "--max-tokens=32", "--dtype=float32", "--out", str(out)]  # fmt: skip
    own = [[*common, "--model", str(model), *more] for more in ((), SAMPLED)]
    engine = subprocess.Popen(own[0], cwd=ROOT)  # starts while the server does
    with serving_model(model, "served", tmp_path / "log", length=1024) as url:
        assert engine.wait(300) == 0
        remote = [*common, "--endpoint", url, "--model", "served", "--tokenizer", str(model)]
        assert subprocess.run([*remote, "--max-requests=9"], cwd=ROOT).returncode == 1
        assert 0 < len(samples(out, "served")) <= 9
        subprocess.run(remote, cwd=ROOT, check=True)
        subprocess.run([*remote, *SAMPLED], cwd=ROOT, check=True)
    subprocess.run(own[1], cwd=ROOT, check=True)
    found = samples(out, "served")
    assert len(found) == 24 + 48 and found == samples(out, "model")
    assert len({response for response, _, _ in found.values()}) > 24  # they say something
