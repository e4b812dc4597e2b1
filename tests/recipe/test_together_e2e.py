"""All compatible methods in one run of one step, resumed for a second.

A separate file, so that it runs in parallel with test_methods_e2e.py.
"""

from pathlib import Path

import pytest
from method_runs import TOGETHER, Runner, finite

from prompt_aug.base.files import read_json

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_everything_together_and_resumed(tmp_path: Path) -> None:
    runs = Runner(tmp_path)
    runs.start("together", "ta_grpo", *TOGETHER, "trainer.save_freq=1", steps=1)
    runs.start("together, on", "ta_grpo", *TOGETHER, "trainer.save_freq=1", after="together")
    (first,) = runs.finish("together")
    _, second = runs.finish("together, on")
    assert finite([first, second])
    generated = [m["dynamic_sampling/generated"] for m in (first, second)]
    for m, count in zip((first, second), generated, strict=True):
        accounted = ("kept", "evicted", "discarded")
        assert sum(m[f"dynamic_sampling/{k}"] for k in accounted) == count
        assert m["dynamic_sampling/kept"] + m["dynamic_sampling/filled"] == 4 <= count <= 12
    # Four candidates for every generated question; the counts survive the resume.
    assert second["training/epoch"] == pytest.approx(4 * sum(generated) / questions(runs))
    assert second["curriculum/questions_seen"] > first["curriculum/questions_seen"]
    state = read_json(
        runs.base / "together" / "checkpoints" / "global_step_2" / "recipe_state.json"
    )
    assert len(state["question_stats"]["pass_rates"]) == second["curriculum/questions_seen"]
    assert state["batches_fetched"] == 4 * sum(generated)


def questions(runs: Runner) -> int:
    return read_json(runs.base / "together" / "data" / "manifest.json")["train"]["questions"]
