"""A real vLLM server against the engine of this process: equal samples, also after a resume."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import save_tiny
from vllm_server import serving_model

from eval.sweep import main
from prompt_aug.base.files import read_lines
from prompt_aug.questions import make_question, write_parquet

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
ROOT = Path(__file__).resolve().parents[2]
# A stop string that is met, and parameters that a server could take from elsewhere.
SAMPLED = ["--temperature=1", "--samples=2", "--top-k=50", "--min-p=0.001", "--stop=a"]
SAMPLED += ["--repetition-penalty=1.1"]


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
    common = [f"--benchmark=toy={tmp_path / 'q.parquet'}", "--max-tokens=32", "--dtype=float32"]
    common += ["--out", str(out)]
    own = [*common, "--model", str(model)]
    program = (
        "import json, sys\nfrom eval.sweep import main\nown, more = map(json.loads, sys.argv[1:])\n"
    )
    program += "sys.exit(main(own) or main(own + more))"
    engine = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(own), json.dumps(SAMPLED)], cwd=ROOT
    )
    with serving_model(model, "served", tmp_path / "log", length=1024) as url:
        remote = [*common, "--endpoint", url, "--model", "served", "--tokenizer", str(model)]
        assert main([*remote, "--max-requests=9"]) == 1
        assert 0 < len(samples(out, "served")) <= 9
        assert main(remote) == main(remote + SAMPLED) == 0
    assert engine.wait(300) == 0
    found = samples(out, "served")
    assert len(found) == 24 + 48 and found == samples(out, "model")
    assert len({response for response, _, _ in found.values()}) > 24  # they say something
