"""A real vLLM server with random weights: the samples of the engine, and a pipeline on hopeless
responses."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rephrase_pipeline import command, write_questions
from tiny_model import save_tiny

from eval.sweep import main as sweep
from prompt_aug.base.files import read_lines
from prompt_aug.questions import make_question, read_parquet, write_parquet
from prompt_aug.rephrase.__main__ import main as rephrase

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
ROOT = Path(__file__).resolve().parents[1]
CLOSED = "http://127.0.0.1:1/v1"  # nothing listens there
# A stop string that is met, and parameters that a server could take from elsewhere.
SAMPLED = ["--temperature=1", "--samples=2", "--top-k=50", "--min-p=0.001", "--stop=a"]
SAMPLED += ["--repetition-penalty=1.1"]

CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
STARTS = 400.0  # seconds; half a minute on an idle machine


def _wait(process: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + STARTS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    save_tiny(folder / "model", seed=5, positions=8192)
    return folder


@pytest.fixture(scope="module")
def url(base: Path) -> Iterator[str]:
    """The base URL at which the model answers as `served`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, log = base / "model", base / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "served", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "8192", "--enforce-eager"]
    # A seeded request with a split prompt kills a CPU server: see eval.ask.engine.
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **CPU})
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


def samples(out: Path, model: str) -> dict[tuple[str, str, int], tuple[str, int, str]]:
    """Every sample of both settings: the folder's name begins with template and temperature."""
    result = {}
    for path in out.glob(f"*/{model}/toy/samples-*.jsonl"):
        for x in read_lines(path)[1:]:
            key = (path.parents[2].name, x["uid"], x["sample"])
            result[key] = (x["response"], x["tokens"], x["finish_reason"])
    return result


def test_a_server_gives_what_the_engine_gives(base: Path, url: str) -> None:
    model, out = base / "model", base / "samples"
    made = [make_question(text=f"{i} + 1?", answers=("1",), source="t") for i in range(24)]
    write_parquet(made, base / "toy.parquet")
    common = [f"--benchmark=toy={base / 'toy.parquet'}", "--max-tokens=32", "--dtype=float32"]
    common += ["--out", str(out)]
    program = "import json, sys\nfrom eval.sweep import main\n"
    program += "own, more = map(json.loads, sys.argv[1:])\nsys.exit(main(own) or main(own + more))"
    own = json.dumps([*common, "--model", str(model)])
    engine = subprocess.Popen([sys.executable, "-c", program, own, json.dumps(SAMPLED)], cwd=ROOT)
    remote = [*common, "--endpoint", url, "--model", "served", "--tokenizer", str(model)]
    assert sweep([*remote, "--max-requests=9"]) == 1
    assert 0 < len(samples(out, "served")) <= 9
    assert sweep(remote) == sweep(remote + SAMPLED) == 0
    assert engine.wait(300) == 0
    result = samples(out, "served")
    assert len(result) == 24 + 48 and result == samples(out, "model")
    assert len({response for response, _, _ in result.values()}) > 24  # they say something


def test_no_candidate_of_random_weights_is_accepted(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, out = write_questions(tmp_path / "q.parquet", 6), tmp_path / "out.parquet"
    more = "--most 3 --answer-tokens 48 --solve served --answers 2 --agree 2"
    options = command(questions, out, url, *more.split())
    options[options.index("scripted")] = "served"
    assert rephrase(options) == 0
    candidates = read_lines(out.with_name("out.parquet.candidates.jsonl"))
    assert len(candidates) == 6 * 3
    assert {c["verdict"] for c in candidates} <= {"reject", "doubtful"}  # what is drawn varies
    assert all(c["reasons"] and c["source"]["model"] == "served" for c in candidates)
    assert {len(q.rephrasings) for q in read_parquet(out)} == {0}
    before = out.read_bytes()
    assert rephrase([CLOSED if word == url else word for word in options]) == 0
    assert out.read_bytes() == before
    assert "questions have fewer than" in capsys.readouterr().out
