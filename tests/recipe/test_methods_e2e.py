"""Every method, two steps with the real trainer and engine; TA-GRPO's log-probabilities again in
plain transformers; the driver's statistics under other micro-batches and on two FSDP ranks.

All runs share one toy world with a start model of a few updates (tests/helpers/method_runs.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from method_runs import Runner
from transformers import AutoModelForCausalLM

from recipe import run_folder
from recipe.advantages import ADVANTAGES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]
ROOT = Path(__file__).resolve().parents[2]
METHODS = sorted(p.parents[1].name for p in (ROOT / "examples").glob("*/toy/config.yaml"))
# These change the agent loop, the rewards or the sampling, and have a run each; the rest share one.
RUN_ALONE = {
    **{"ta_grpo": "anchored", "grpo_ds": "exhausted, on"},
    **{name: name for name in ("ta_grpo_star", "dapo", "prompt_aug", "one_shot")},
}
LOSSES_RUN = ("clip_cov", "kl_cov", "gspo", "cispo", "sapo", "gmpo")  # the rest: vanilla
ON_TOUR = [name for name in METHODS if name not in RUN_ALONE]
ACTOR = "actor_rollout_ref.actor"
ONE_UPDATE = [f"{ACTOR}.ppo_mini_batch_size=4", "recipe.save_tensors_every=1"]

# Everything at once that may go together: see also test_preflight_algorithm.py.
TOGETHER = [
    *("recipe.augment.mode=per_rollout", "recipe.augment.templates=null"),
    *("recipe.reward.format_weight=1.0", "recipe.overlong_filter=true"),
    *("recipe.weights.name=gaussian_covariance", "recipe.weights.gaussian_covariance.sigma=batch"),
    *("recipe.curriculum.enable=true", "actor_rollout_ref.actor.loss_agg_mode=token-mean"),
    *("algorithm.filter_groups.enable=true", "recipe.dynamic_sampling.max_gen_batches=3"),
    *("algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"),
    *(f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.policy_loss.loss_mode=gspo"),
]
CORRECTED = [  # engine and actor agree to 1e-6 here, so these bounds reject a part of the tokens
    *("algorithm.rollout_correction.rollout_is=token", "recipe.advantage.name=rloo"),
    *("algorithm.rollout_correction.rollout_rs=token_k2", "recipe.history.enable=true"),
    "algorithm.rollout_correction.rollout_rs_threshold=1e-14",
]
NO_SIGNAL = [  # a punishment that is off is 0 for all: no group ever has a signal
    *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=overlong"),
    *("recipe.reward.overlong.enable=false", "recipe.dynamic_sampling.max_gen_batches=2"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("methods"))
    # The first builds the toy world that the others find in the cache.
    runner.start("anchored", "ta_grpo", *ONE_UPDATE)
    runner.futures["anchored"].result()
    runner.start_tour(ON_TOUR)
    replay = [f"skip.rollout_tq.dump_dir={runner.base / 'dump'}", "skip.rollout_tq.steps=[1]"]
    replay += ["skip.rollout_tq.enable=true", "trainer.experiment_name=replayed", *ONE_UPDATE]
    runner.start("whole", "cw_grpo", *replay, steps=1)
    runner.futures["whole"].result()
    runner.start(
        "split",
        "cw_grpo",
        *replay,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        steps=1,
    )
    ranks = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"]
    ranks += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16"]
    runner.start("ranks", "cw_grpo", *replay, *ranks, steps=1)
    saved = "trainer.save_freq=1"
    runner.start("together", "ta_grpo", *TOGETHER, saved, steps=1)
    runner.start("exhausted", "grpo_ds", *NO_SIGNAL, saved, steps=1)
    runner.start("together, on", "ta_grpo", *TOGETHER, saved, after="together")
    stop = "recipe.dynamic_sampling.on_exhausted=stop"
    runner.start("exhausted, stop", "grpo_ds", *NO_SIGNAL, saved, stop, after="exhausted")
    runner.start("corrected", "cw_grpo", *CORRECTED)
    runner.start("exhausted, on", "grpo_ds", *NO_SIGNAL, saved, after="exhausted, stop")
    for method, name in RUN_ALONE.items():
        if method == name:
            runner.start(method, method)
    yield runner
    runner.pool.shutdown(cancel_futures=True)  # after a failure: what has not begun never does


def finite(metrics: list[dict[str, Any]]) -> bool:
    keys = ("actor/loss", "actor/grad_norm", "actor/entropy", "train/accuracy")
    return all(np.isfinite(line[key]) for line in metrics for key in keys)


def unmarked(metrics: dict[str, Any]) -> bool:
    return "weights/zero" not in metrics and "neighbour/1/accuracy" not in metrics


MARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "ta_grpo": lambda m: "neighbour/3/logprob_gap" in m,
    "ta_grpo_star": lambda m: "neighbour/3/accuracy" in m,
    "cw_grpo": lambda m: 0 < m["weights/effective_tokens"] < 1,
    "clip_cov_global": lambda m: "weights/zero" in m,
    "dapo": lambda m: m["dynamic_sampling/generated"] >= 4,
    "hapo": lambda m: "history/reward" in m,
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


@pytest.mark.parametrize("method", ON_TOUR)
def test_two_steps_of_a_method_on_tour(runs: Runner, method: str) -> None:
    place = ON_TOUR.index(method)
    metrics = [m for m in runs.finish("tour") if m["tour/method"] == place]
    assert len(metrics) == 2
    assert finite(metrics)
    assert MARKS.get(method, unmarked)(metrics[-1])
    ran = {key for key in metrics[-1] if key.startswith("actor/ran_")}
    assert ran == {f"actor/ran_{method if method in LOSSES_RUN else 'vanilla'}"}
    if "weights/min" not in metrics[-1]:
        arrays = runs.arrays("tour", step=metrics[-1]["step"])
        name = {"entropy_only": "none"}.get(method, method if method in ADVANTAGES else "grpo")
        _, visit_B = np.unique(arrays["visit"], return_inverse=True)
        expected_B = ADVANTAGES[name](arrays["rewards"], visit_B)
        np.testing.assert_allclose(arrays["advantages"][:, 0], expected_B, atol=1e-9)
        # maxrl: so young a model is paid for shortness alone, which is never above 0
        assert name in ("none", "maxrl") or expected_B.abs().sum() > 0


def test_groups_are_normalised_over_the_rollouts_that_did_not_fail(runs: Runner) -> None:
    """15 of 16 are left (touring_trainer.LOST), and verl's 4 padding rows must not count."""
    whole, fewer, *_ = runs.finish("tour")
    assert (whole["train/responses"], fewer["train/responses"]) == (64, 60)
    arrays = runs.arrays("tour", step=2)
    assert 3 not in arrays["rollout"]
    first_token_B = arrays["advantages"][:, 0]  # the same for all tokens: ON_TOUR[0] has no weights
    signal = 0.0
    for visit in np.unique(arrays["visit"]):
        group = first_token_B[arrays["visit"] == visit]
        assert len(group) == 15
        assert abs(group.sum()) < 1e-6
        signal += abs(group).sum()
    assert signal > 0


def logprobs(model: Any, prompts: np.ndarray, arrays: Any) -> torch.Tensor:
    """Sum over the tokens of log pi(response | prompt) for every row, one row at a time."""
    sums = []
    for prompt, response, length in zip(
        prompts, arrays["responses"], arrays["lengths"], strict=True
    ):
        ids = torch.tensor([*prompt[prompt >= 0], *response[:length]])[None]
        with torch.no_grad():
            scores = model(ids).logits[0, -length - 1 : -1].log_softmax(-1)
        sums.append(scores.gather(1, ids[0, -length:, None]).sum())
    return torch.stack(sums).double()


def test_ta_grpo_takes_old_and_new_logprobs_under_the_question(runs: Runner) -> None:
    metrics, _ = runs.finish("anchored")
    arrays = runs.arrays("anchored")
    config = yaml.safe_load((runs.base / "anchored" / "config.yaml").read_text())
    model = AutoModelForCausalLM.from_pretrained(config["recipe"]["model_path"]).eval()
    under_question = logprobs(model, arrays["prompts"], arrays)
    under_own = logprobs(model, arrays["generated_under"], arrays)
    old = torch.tensor(arrays["old_log_probs"].sum(1))
    engine = torch.tensor(arrays["rollout_log_probs"].sum(1))
    neighbours = torch.tensor(arrays["neighbour"] > 0)
    assert neighbours.double().mean() == 0.75
    torch.testing.assert_close(old, under_question, atol=1e-3, rtol=0)
    torch.testing.assert_close(engine, under_own, atol=1e-3, rtol=0)
    # The two prompts do tell: with the neighbour's, the comparison above would fail.
    assert (old - under_own)[neighbours].abs().median() > 1e-2
    # One optimizer step, so the new policy is the old one: a ratio of 1 means the same prompt.
    assert abs(metrics["actor/ppo_kl"]) < 1e-6
    assert metrics["actor/pg_clipfrac"] == 0
    gaps = [metrics[f"neighbour/{n}/logprob_gap"] for n in range(4)]
    assert abs(gaps[0]) < 1e-5 < min(map(abs, gaps[1:]))


def test_weights_do_not_depend_on_micro_batches_or_ranks(runs: Runner) -> None:
    """The same rollouts, replayed: in two micro-batches, in eight, and on two gloo ranks."""
    (whole,) = runs.finish("whole")
    expected = runs.arrays("whole")
    assert 0.1 < whole["weights/effective_tokens"] < 1  # there are weights to compare
    for name in ("split", "ranks"):
        (metrics,) = runs.finish(name)
        seen = runs.arrays(name)
        order, same = (sort_rows(a) for a in (expected, seen))
        np.testing.assert_array_equal(expected["responses"][order], seen["responses"][same])
        # float32 log-probabilities of differently padded batches: 1e-5, times weights of order 1
        np.testing.assert_allclose(
            expected["advantages"][order], seen["advantages"][same], atol=1e-4
        )
        assert metrics["actor/grad_norm"] == pytest.approx(whole["actor/grad_norm"], rel=1e-3)


def sort_rows(arrays: Any) -> np.ndarray:
    """An order of rows that does not depend on the visits' ids, which differ from run to run."""
    return np.lexsort([*arrays["responses"].T, arrays["uid"]])


def test_everything_together_and_resumed(runs: Runner) -> None:
    (first,) = runs.finish("together")
    _, second = runs.finish("together, on")
    assert finite([first, second])
    generated = [m["dynamic_sampling/generated"] for m in (first, second)]
    for m, count in zip((first, second), generated, strict=True):
        accounted = ("kept", "evicted", "discarded")
        assert sum(m[f"dynamic_sampling/{k}"] for k in accounted) == count
        assert m["dynamic_sampling/kept"] + m["dynamic_sampling/filled"] == 4 <= count <= 12
    # Four candidates for every question generated, all of them visited: counts survive a resume.
    assert second["training/epoch"] == pytest.approx(4 * sum(generated) / questions(runs))
    assert second["curriculum/questions_seen"] > first["curriculum/questions_seen"]
    state = run_folder.read_json(
        runs.base / "together" / "checkpoints" / "global_step_2" / "recipe_state.json"
    )
    assert len(state["memory"]["pass_rates"]) == second["curriculum/questions_seen"]
    assert state["batches_fetched"] == 4 * sum(generated)


def questions(runs: Runner) -> int:
    return run_folder.read_json(runs.base / "together" / "data" / "manifest.json")["train"][
        "questions"
    ]


def test_rollout_correction_goes_with_weights(runs: Runner) -> None:
    metrics = runs.finish("corrected")
    assert finite(metrics)
    assert "weights/effective_tokens" in metrics[-1]
    rejected = [m["rollout_corr/rollout_rs_masked_fraction"] for m in metrics]
    assert all(0 < share < 1 for share in rejected)


def test_dynamic_sampling_without_any_signal_ends_as_asked_and_goes_on(runs: Runner) -> None:
    (first,) = runs.finish("exhausted")
    assert first["dynamic_sampling/filled"] == first["train/groups"] == 4
    assert first["dynamic_sampling/generated"] == first["dynamic_sampling/evicted_equal"] == 8
    assert len(runs.finish("exhausted, stop", code=1)) == 1
    told = runs.text("exhausted, stop")
    assert "generated 8 questions in one step: 0 of the 4 wanted have a signal" in told
    assert "set recipe.dynamic_sampling.on_exhausted=train" in told
    assert "saved, and the command goes on from it" in told
    _, second = runs.finish("exhausted, on")
    assert second["dynamic_sampling/filled"] == 4
