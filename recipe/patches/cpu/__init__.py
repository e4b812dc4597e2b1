"""verl and vLLM on a CPU: the platform, and adapters for the gaps of both.

Active only if the environment has ``VERL_PLATFORM=cpu``; see `recipe.patches.cpu.adapters`
for each gap, its reason, and the test that fails when it closes upstream.
"""

import os


def requested() -> bool:
    """Return whether this process runs on the CPU (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
