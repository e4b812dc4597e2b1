"""All compatible methods in one LoRA run of two steps, rolled back after them, and exported.

The guard's threshold is so low that the second step is an alarm: the run restarts itself from the
first one with half the learning rate.

A separate file, so that it runs in parallel with test_methods_e2e.py, which trains all parameters.
"""

import pytest
import torch
from method_runs import LORA, TOGETHER, Runner, finite, logprobs
from transformers import AutoModelForCausalLM

from prompt_aug.base.files import read_json, read_lines
from recipe.export.__main__ import main as export
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


GUARD = [
    *("recipe.guard.action=rollback", "recipe.guard.window=1", "recipe.guard.factor=1.0001"),
    *("recipe.guard.rollback.times=1", "trainer.test_freq=1"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runs = Runner(tmp_path_factory.mktemp("together"))
    settings = [*TOGETHER, *LORA, *GUARD, "trainer.save_freq=1", "recipe.save_tensors_every=1"]
    runs.start("together", "ta_grpo", *settings)
    return runs


def test_the_alarm_rolls_the_run_back_with_half_the_rate(runs: Runner) -> None:
    folder = RunFolder(runs.base / "together")
    first, second = runs.finish("together")  # every step once
    (gone,) = read_lines(folder.discarded)
    (record,) = read_lines(folder.rollbacks)
    assert (record["step"], record["to"], gone["step"], gone["rollback"]) == (2, 1, 2, 1)
    assert (gone["guard/breach"], gone["guard/rollbacks"], second["guard/rollbacks"]) == (1, 0, 1)
    assert gone["actor/lr"] == first["actor/lr"] == 1e-3
    assert second["actor/lr"] == 5e-4
    # The counts are those of the checkpoint, not of the discarded step.
    assert second["train/optimizer_steps"] == 2 * first["train/optimizer_steps"]
    assert len(read_json(folder.environment)["resumed"]) == 1


def test_everything_together_and_restarted(runs: Runner) -> None:
    first, second = runs.finish("together")
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


def test_the_engine_of_a_lora_run_samples_from_the_model_that_is_exported(runs: Runner) -> None:
    """The second step's engine has the weights of the first checkpoint, after the restart."""
    runs.finish("together")
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
