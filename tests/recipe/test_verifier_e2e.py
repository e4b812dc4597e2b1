"""One run of CW-GRPO's published layer: two sources, one with a verifier of its own; verl's rollout
correction of an engine in bfloat16, with covariance weights, KL in the reward and in the loss (k3),
and the overlong filter.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from method_runs import CORRECTED, Runner, finite, published

from prompt_aug.base.files import read_json, read_lines
from prompt_aug.prompts import Prompts
from prompt_aug.questions import make_question, write_parquet
from recipe.run.folder import RunFolder

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
LIMIT = 60  # tokens of a response: some are truncated and some are not
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def data(folder: Path) -> list[str]:
    """Parquet files of two sources; the second is a file of the user, with columns of its own."""
    sums = [
        make_question(text=f"What is {i} + 1?", answers=(str(i + 1),), source="sums")
        for i in range(12)
    ]
    write_parquet(sums, folder / "sums.parquet")
    letters = [
        {
            "data_source": "own/letters",
            "prompt": [{"role": "user", "content": f"Write letters, question {i}."}],
            "reward_model": {"ground_truth": {"letters": list("0123456789")}},
            "count": 3 + i % 2,
        }
        for i in range(4)
    ]
    pandas.DataFrame(letters).to_parquet(folder / "letters.parquet")
    return [str(folder / "sums.parquet"), str(folder / "letters.parquet")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("settings")
    runs, files = Runner(folder), ",".join(data(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HELPERS), prepend=os.pathsep)
        runs.start(
            "own",
            "cw_grpo",
            *(*published("cw_grpo", LIMIT), *CORRECTED),
            *(f"data.train_files=[{files}]", f"data.val_files=[{files}]"),
            "recipe.reward.verifiers={own/letters: own_verifiers.letters}",
            "recipe.source_weights={sums: 1, own/letters: 1}",
            *("recipe.reward.format_weight=0.5", "trainer.test_freq=2"),
        )
        runs.futures["own"].result()
    yield runs


def test_two_sources_train_and_validate_with_their_own_verifiers(runs: Runner) -> None:
    metrics = runs.finish("own")
    assert finite(metrics)
    run = RunFolder(runs.base / "own")
    manifest = read_json(run.data_manifest)
    assert manifest["train"]["rows_of_source"] == {"own/letters": 12, "sums": 12}
    assert manifest["verifiers"]["functions"] == {"own/letters": "own_verifiers.letters"}
    seen = [line for step in (1, 2) for line in read_lines(run.rollouts(step))]
    own = [line for line in seen if line["source"] == "own/letters"]
    assert 0 < len(own) < len(seen)
    for line in own:
        parts = line["parts"]
        assert parts["length"] == len(line["response"])
        assert line["status"] == ("correct" if parts["score"] == 1 else "wrong")
        if line in seen[: len(seen) // 2]:  # in step 2 a negative KL term may add to it
            assert line["reward"] <= parts["score"] + 0.5 * line["format"]  # overlong on top
    assert all(line["parts"] == {} for line in seen if line["source"] == "sums")
    for line in metrics:
        shares = [line.get(f"source/{name}/share", 0.0) for name in ("sums", "own/letters")]
        assert sum(shares) == 1.0
    assert metrics[-1]["val/own/letters/questions"] == 4.0
    assert 0 <= metrics[-1]["val/own/letters/part/score"] <= 1


def test_the_published_layer_sets_the_prompts(runs: Runner) -> None:
    (first, _), folder = runs.finish("own"), RunFolder(runs.base / "own")
    prompts = Prompts.read(folder.prompts)
    assert (prompts.form.style, prompts.form.instruction) == ("chat", "system")
    assert {line["template"] for line in read_lines(folder.rollouts(1))} == {"cw-grpo"}
    assert "actor/kl_loss" in first


def test_rollout_correction_goes_with_weights(runs: Runner) -> None:
    metrics = runs.finish("own")
    assert "weights/effective_tokens" in metrics[-1]
    # KL in the reward is 0 at the first step: the policy is the start model
    first, second = metrics
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-3)
    assert second["critic/rewards/mean"] != pytest.approx(second["critic/score/mean"], abs=1e-3)
    arrays = runs.arrays("own", step=2)
    assert arrays["rewards"].mean() == pytest.approx(second["critic/rewards/mean"], abs=1e-5)
    # the overlong filter: no gradient at the limit, unless a response ends there as shorter ones do
    lengths_B, signal_B = arrays["lengths"], (arrays["advantages"] != 0).any(1)
    last_B = arrays["responses"][np.arange(len(lengths_B)), lengths_B - 1]
    cut_B = (lengths_B >= LIMIT) & ~np.isin(last_B, last_B[lengths_B < LIMIT])
    assert 0 < cut_B.sum() < len(cut_B)
    assert not signal_B[cut_B].any()
    assert signal_B[~cut_B].any()
    for step, line in enumerate(metrics, start=1):
        corrected(runs.arrays("own", step=step), line)


def corrected(arrays: Any, metrics: dict[str, float]) -> None:
    """TIS by token, MIS by token and by sequence, computed again from the log-probabilities."""
    difference_BT = arrays["old_log_probs"].astype(float) - arrays["rollout_log_probs"]
    inside_BT = np.arange(difference_BT.shape[1]) < arrays["lengths"][:, None]
    difference_BT = np.where(inside_BT, difference_BT, 0)
    assert 1e-4 < np.abs(difference_BT[inside_BT]).mean() < 0.1  # the sampler is another policy
    weights_BT = np.minimum(np.exp(difference_BT), 1.01)
    k3_BT = np.exp(difference_BT) - 1 - difference_BT
    rejected_B = k3_BT.sum(1) / arrays["lengths"] > 4.5e-4
    rejected_BT = (difference_BT**2 / 2 > 1e-3) | rejected_B[:, None]
    assert 0 < rejected_B.mean() < 1
    expected = {
        "rollout_is_mean": weights_BT[inside_BT].mean(),
        "rollout_rs_seq_mean_k3_seq_masked_fraction": rejected_B.mean(),
        "rollout_rs_masked_fraction": rejected_BT[inside_BT].mean(),
    }
    computed = {name: metrics[f"rollout_corr/{name}"] for name in expected}
    assert computed == pytest.approx(expected, abs=1e-4)
    assert not arrays["advantages"][rejected_BT & inside_BT].any()
