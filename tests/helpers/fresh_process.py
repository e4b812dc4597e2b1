"""Run a program in a fresh process with the CPU platform: its imports touch no other test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def look(program: str, *arguments: str, **variables: str) -> Any:
    """Return the last line that the process prints, as JSON."""
    names = ("VERL_", "VLLM_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**clean, "VERL_PLATFORM": "cpu", "GLOO_SOCKET_IFNAME": "lo", **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().split("\n")[-1])
