"""verl and vLLM on a CPU: the platform, and adapters for the gaps of both.

Active only if the environment has ``VERL_PLATFORM=cpu``. `recipe.patches.cpu.adapters` describes
verl's gaps, `recipe.patches.cpu.vllm_plugin` vLLM's.
"""

import os


def requested() -> bool:
    """Return whether this process runs on the CPU (``VERL_PLATFORM=cpu``)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
