"""verl and vLLM on a CPU: the platform, and what closes the gaps of both.

Active only where the environment says ``VERL_PLATFORM=cpu``; see `recipe.patches.cpu.adapters`
for each gap, its reason, and the test that fails when it closes upstream.
"""

import os


def requested() -> bool:
    """True where this process was asked to run on the CPU (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
