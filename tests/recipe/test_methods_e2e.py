"""Steps of every method with the real trainer and engine; TA-GRPO's log-probabilities by plain
transformers; covariance weights with other micro-batches and on two FSDP ranks. TA-GRPO's run has
its published layer, and is exported and evaluated.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from method_runs import (
    LOSSES_RUN,
    METHODS,
    NAMED_LOSSES,
    RUN_ALONE,
    SEEN_ELSEWHERE,
    SHARED_STEPS,
    SHARING,
    VERLS_LOSSES,
    Runner,
    finite,
    logprobs,
    start_all,
)
from transformers import AutoModelForCausalLM

from prompt_aug.base.files import read_json, read_lines
from prompt_aug.prompts import Prompts
from recipe.algorithms import ADVANTAGES
from recipe.export.__main__ import main as export
from recipe.run.folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("methods"))
    start_all(runner)
    yield runner
    runner.pool.shutdown(cancel_futures=True)  # after a failure: start no more runs


def unmarked(metrics: dict[str, Any]) -> bool:
    return "weights/zero" not in metrics and "rephrasing/1/accuracy" not in metrics


MARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "ta_grpo": lambda m: "rephrasing/3/logprob_gap" in m,
    "cw_grpo": lambda m: 0 < m["weights/effective_tokens"] < 1,
    "balanced": lambda m: m["weights/min"] > 0,
    "high_entropy": lambda m: 0.7 < m["weights/zero"] < 1,
    "clip_cov_global": lambda m: "weights/zero" in m,
    "ppo": lambda m: m["critic/grad_norm"] > 0 and m["critic/values/max"] != 0,
    "pcl": lambda m: m["critic/vf_loss"] > 0 and 0 < m["curriculum/value_error"] < 5,
    "hapo": lambda m: 0 < m["history/known"] <= 1,
    "curriculum": lambda m: m["curriculum/questions_seen"] >= 4,
    "entropy_only": lambda m: m["critic/advantages/max"] == m["critic/advantages/min"] == 0,
    "one_shot": lambda m: m["actor/entropy_loss"] > 0,
}


@pytest.mark.parametrize("method", RUN_ALONE)
def test_two_steps_of_a_method_with_a_run_of_its_own(runs: Runner, method: str) -> None:
    metrics = runs.finish(RUN_ALONE[method])
    assert [m["step"] for m in metrics] == [1, 2]
    assert finite(metrics)
    assert MARKS.get(method, unmarked)(metrics[-1])


def test_every_method_is_run_or_listed_as_tested_elsewhere() -> None:
    assert sorted([*RUN_ALONE, *SHARING, *SEEN_ELSEWHERE]) == METHODS


def steps_of(runs: Runner, method: str) -> list[dict[str, Any]]:
    lines = zip(SHARED_STEPS, runs.finish("shared"), strict=True)
    return [line for name, line in lines if name == method]


@pytest.mark.parametrize("method", [*SHARING, *VERLS_LOSSES])
def test_steps_of_a_method_in_the_shared_run(runs: Runner, method: str) -> None:
    metrics = steps_of(runs, method)
    assert finite(metrics)
    assert MARKS.get(method, unmarked)(metrics[-1])
    ran = {key for key in metrics[-1] if key.startswith("actor/ran_")}
    named = method if method in (*LOSSES_RUN, *VERLS_LOSSES) else "vanilla"
    assert ran == {f"actor/ran_{NAMED_LOSSES.get(method, named)}"}
    if "weights/min" not in metrics[-1]:
        arrays = runs.arrays("shared", step=metrics[-1]["step"])
        named = {"entropy_only": "none", "prompt_aug_gdpo": "gdpo", "ppo": "verl:gae"}
        name = named.get(method, method if method in ADVANTAGES else "grpo")
        if ADVANTAGES.facts(name).inputs:  # not in the arrays; see its unit tests
            return
        _, group_B = np.unique(arrays["group"], return_inverse=True)
        expected_B = ADVANTAGES[name](arrays["rewards"], group_B)
        np.testing.assert_allclose(arrays["advantages"][:, 0], expected_B, atol=1e-9)
        assert name == "none" or expected_B.abs().sum() > 0


def test_failed_rollouts_are_retried(runs: Runner) -> None:
    """One of 16 to every question (shared_run.LOST); the step is still complete."""
    first, second, *_ = runs.finish("shared")
    assert (first["train/responses"], second["train/responses"]) == (64, 64)
    log = (runs.base / "shared" / "logs" / "train.log").read_text()
    assert "failed: RuntimeError: a rollout that the test loses" in log
    arrays = runs.arrays("shared", step=2)
    assert sorted(arrays["rollout"]) == sorted(list(range(16)) * 4)
    first_token_B = arrays["advantages"][:, 0]  # the same for all tokens: SHARING[0] has no weights
    signal = 0.0
    for name in np.unique(arrays["group"]):
        group = first_token_B[arrays["group"] == name]
        assert len(group) == 16
        assert abs(group.sum()) < 1e-6
        signal += abs(group).sum()
    assert signal > 0


def test_the_history_holds_the_steps_before(runs: Runner) -> None:
    """The same four questions in both steps: the second knows those with a correct response."""
    first, second = steps_of(runs, "hapo")
    assert (first["history/known"], first["history/reward"]) == (0, 0)
    arrays = runs.arrays("shared", step=first["step"])
    right = {
        uid for uid, reward in zip(arrays["uid"], arrays["rewards"], strict=True) if reward > 0
    }
    assert second["history/known"] == len(right) / 4 > 0


def test_ta_grpo_takes_old_and_new_logprobs_under_the_question(runs: Runner) -> None:
    metrics, _ = runs.finish("anchored")
    arrays = runs.arrays("anchored")
    config = yaml.safe_load((runs.base / "anchored" / "config.yaml").read_text())
    model = AutoModelForCausalLM.from_pretrained(config["recipe"]["model_path"]).eval()
    under_question = logprobs(model, arrays["prompts"], arrays)
    under_own = logprobs(model, arrays["generated_under"], arrays)
    old = torch.tensor(arrays["old_log_probs"].sum(1))
    engine = torch.tensor(arrays["rollout_log_probs"].sum(1))
    rephrasings = torch.tensor(arrays["rephrasing"] > 0)
    assert rephrasings.double().mean() == 0.75
    torch.testing.assert_close(old, under_question, atol=1e-3, rtol=0)
    torch.testing.assert_close(engine, under_own, atol=1e-3, rtol=0)
    # The prompts differ: with the rephrasing's, the comparison above would fail.
    assert (old - under_own)[rephrasings].abs().median() > 1e-2
    # One optimizer step, so the new policy is the old one: a ratio of 1 means the same prompt.
    assert abs(metrics["actor/ppo_kl"]) < 1e-6
    assert metrics["actor/pg_clipfrac"] == 0
    gaps = [metrics[f"rephrasing/{n}/logprob_gap"] for n in range(4)]
    assert abs(gaps[0]) < 1e-5 < min(map(abs, gaps[1:]))


def test_a_published_layer_is_trained_exported_and_evaluated_with_its_prompts(runs: Runner) -> None:
    metrics, run = runs.finish("anchored"), runs.base / "anchored"
    folder = RunFolder(run)
    trained = Prompts.read(folder.prompts)
    assert (trained.form.style, trained.form.instruction) == ("chat", "user")
    assert {line["template"] for line in read_lines(folder.rollouts(1))} == {"ta-grpo"}
    assert "actor/kl_loss" in metrics[0]
    assert export([str(run)]) == 0
    options = ("--samples", "1", "--max-questions", "4", "--max-tokens", "8")
    command = [sys.executable, "-m", "eval.sweep", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for step in (0, 2):
        (scores,) = (run / "eval").glob(f"*/step_{step}/scores.json")
        settings = read_json(scores)["settings"]
        assert settings["template"] == "ta-grpo"
        assert (settings["style"], settings["instruction"]) == ("chat", "user")
        (samples,) = scores.parent.glob("toy_test/samples-*.jsonl")
        assert len(read_lines(samples)) == 1 + 4  # the first line describes the engine


def test_weights_do_not_depend_on_micro_batches_or_ranks(runs: Runner) -> None:
    """The same rollouts replayed, in two micro-batches, and in eight on two gloo ranks.

    The two ranks resume from the checkpoint that one rank saved after the first step.
    """
    baseline = runs.finish("anchored")[-1]
    expected = runs.arrays("anchored", 2)
    assert 0.1 < baseline["weights/effective_tokens"] < 1  # the weights are not all 1
    metrics = runs.finish("ranks")[-1]
    assert metrics["train/optimizer_steps"] == baseline["train/optimizer_steps"] == 2
    seen = runs.arrays("ranks", 2)
    order, same = (sort_rows(a) for a in (expected, seen))
    for name in ("responses", "rephrasing"):
        np.testing.assert_array_equal(expected[name][order], seen[name][same])
    # float32 log-probabilities of differently padded batches: 1e-5, times weights of order 1
    np.testing.assert_allclose(expected["advantages"][order], seen["advantages"][same], atol=1e-4)
    assert metrics["actor/grad_norm"] == pytest.approx(baseline["actor/grad_norm"], rel=1e-3)


def sort_rows(arrays: Any) -> np.ndarray:
    """An order of rows that does not depend on the group ids, which differ between runs."""
    return np.lexsort([arrays["rephrasing"], *arrays["responses"].T, arrays["uid"]])
