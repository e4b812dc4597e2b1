"""All compatible methods in one LoRA run of two steps, the second after a resume, and exported.

A separate file, so that it runs in parallel with test_methods_e2e.py, which trains all parameters.
"""

import numpy as np
import pytest
import torch
from method_runs import LORA, TOGETHER, Runner, finite, logprobs
from transformers import AutoModelForCausalLM

from prompt_aug.base.files import read_json, read_lines
from recipe.export.__main__ import main as export
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runs = Runner(tmp_path_factory.mktemp("together"))
    settings = [*TOGETHER, *LORA, "trainer.save_freq=1", "recipe.save_tensors_every=1"]
    runs.start("together", "ta_grpo", *settings, steps=1)
    runs.start("together, resumed", "ta_grpo", *settings, after="together")
    return runs


def test_everything_together_and_restarted(runs: Runner) -> None:
    first, second = runs.finish("together, resumed")
    assert finite([first, second])
    generated = [m["dynamic_sampling/generated"] for m in (first, second)]
    for m, count in zip((first, second), generated, strict=True):
        accounted = ("kept", "evicted", "discarded")
        assert sum(m[f"dynamic_sampling/{k}"] for k in accounted) == count
        assert m["dynamic_sampling/kept"] + m["dynamic_sampling/filled"] == 4 <= count <= 12
    # Four candidates for every generated question; the counts survive the resume.
    assert second["training/epoch"] == pytest.approx(4 * sum(generated) / 80)
    assert second["curriculum/questions_seen"] > first["curriculum/questions_seen"]
    state = read_json(
        runs.base / "together" / "checkpoints" / "global_step_2" / "recipe_state.json"
    )
    assert len(state["question_stats"]["pass_rates"]) == second["curriculum/questions_seen"]
    assert state["batches_fetched"] == 4 * sum(generated)


def test_dynamic_sampling_trains_on_groups_with_variance(runs: Runner) -> None:
    """Variance of the accuracies. Groups without it fill the batch and have advantage 0."""
    for m in runs.finish("together, resumed"):
        arrays = runs.arrays("together", step=m["step"])
        rows = read_lines(RunFolder(runs.base / "together").rollouts(m["step"]))
        right = np.array([row["accuracy"] for row in rows])
        groups = [arrays["group"] == name for name in np.unique(arrays["group"])]
        mixed = [len(set(right[group])) == 2 for group in groups]
        assert mixed == [bool((arrays["advantages"][group] != 0).any()) for group in groups]
        assert (sum(mixed), len(groups)) == (m["dynamic_sampling/kept"], 4)


def test_the_engine_of_a_lora_run_samples_from_the_model_that_is_exported(runs: Runner) -> None:
    """The second step's engine has the weights of the first checkpoint, after the restart."""
    runs.finish("together, resumed")
    folder = runs.base / "together"
    assert export([str(folder), "--steps", "0", "1", "2"]) == 0
    start = read_json(folder / "hf" / "step_0" / "manifest.json")["model_path"]
    arrays = runs.arrays("together", step=2)
    engine = torch.tensor(arrays["rollout_log_probs"].sum(1))
    gaps = [
        (logprobs(model.eval(), arrays["generated_under"], arrays) - engine).abs().max()
        for path in (start, folder / "hf" / "step_1", folder / "hf" / "step_2")
        if (model := AutoModelForCausalLM.from_pretrained(path))
    ]
    assert gaps[1] < 1e-3 < 1e-2 < min(gaps[0], gaps[2])
