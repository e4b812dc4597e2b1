"""A plug-in that cannot be imported ends a process of a run with its own traceback."""

import os
import subprocess
import sys

import pytest

PLATFORM = "recipe.patches.cpu.cpu_platform"
BREAK = f"import sys; sys.modules['{PLATFORM}'] = None; import verl; print('went on')"


@pytest.mark.config  # two imports of verl
def test_a_failure_that_verl_ignores_ends_a_run() -> None:
    """Fails when verl stops ignoring it. Then delete VERL_USE_EXTERNAL_MODULES in recipe.train."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "RAY_"))}
    ours = {"VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    ignored, stopped = (
        subprocess.Popen(
            [sys.executable, "-c", BREAK],
            env={**kept, "VERL_PLATFORM": "cpu", **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for more in ({}, ours)
    )
    assert "went on" in ignored.communicate(timeout=300)[0]
    out, stderr = stopped.communicate(timeout=300)
    assert stopped.returncode != 0 and "went on" not in out
    assert "recipe.patches.cpu.cpu_platform" in stderr and "Traceback" in stderr
