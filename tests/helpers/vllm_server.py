"""A real OpenAI server of vLLM on this machine's CPU, for tests and benchmarks."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
STARTS = 400.0  # seconds; half a minute on an idle machine


@contextlib.contextmanager
def serving_model(model: Path, name: str, log: Path, length: int = 512) -> Iterator[str]:
    """The base URL at which `model` answers under `name`, with prompts and answers of `length`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(length), "--enforce-eager"]
    # A seeded request with a split prompt kills a CPU server: see eval.engine.
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(4096, length))]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **CPU})
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + STARTS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-3000:]}")
