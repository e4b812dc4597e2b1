"""verl's rollout correction of an engine in bfloat16, with covariance weights, KL in the reward and
in the loss (k3), the overlong filter, and Muon.

A separate file, so that it runs in parallel with test_methods_e2e.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from method_runs import CORRECTED, Runner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_rollout_correction_goes_with_weights(tmp_path: Path) -> None:
    runs = Runner(tmp_path)
    runs.start("corrected", "cw_grpo", *CORRECTED)
    metrics = runs.finish("corrected")
    for key in ("actor/loss", "actor/grad_norm", "actor/entropy", "train/accuracy"):
        assert all(np.isfinite(line[key]) for line in metrics)
    assert "weights/effective_tokens" in metrics[-1]
    # KL in the reward is 0 at the first step: the policy is the start model
    first, second = metrics
    assert first["critic/rewards/mean"] == pytest.approx(first["critic/score/mean"], abs=1e-3)
    assert second["critic/rewards/mean"] != pytest.approx(second["critic/score/mean"], abs=1e-3)
    arrays = runs.arrays("corrected", step=2)
    assert arrays["rewards"].mean() == pytest.approx(second["critic/rewards/mean"], abs=1e-5)
    # the overlong filter: no gradient at 20 tokens
    cut_B, signal_B = arrays["lengths"] >= 20, (arrays["advantages"] != 0).any(1)
    assert 0 < cut_B.sum() < len(cut_B)
    assert not signal_B[cut_B].any()
    assert signal_B[~cut_B].any()
    for step, line in enumerate(metrics, start=1):
        corrected(runs.arrays("corrected", step=step), line)


def corrected(arrays: Any, metrics: dict[str, float]) -> None:
    """TIS by token, MIS by token and by sequence, computed again from the log-probabilities."""
    difference_BT = arrays["old_log_probs"].astype(float) - arrays["rollout_log_probs"]
    inside_BT = np.arange(difference_BT.shape[1]) < arrays["lengths"][:, None]
    difference_BT = np.where(inside_BT, difference_BT, 0)
    assert 1e-4 < np.abs(difference_BT[inside_BT]).mean() < 0.1  # the sampler is another policy
    weights_BT = np.minimum(np.exp(difference_BT), 1.01)
    k3_BT = np.exp(difference_BT) - 1 - difference_BT
    rejected_B = k3_BT.sum(1) / arrays["lengths"] > 3e-5
    rejected_BT = (difference_BT**2 / 2 > 1e-4) | rejected_B[:, None]
    assert 0 < rejected_B.mean() < rejected_BT[inside_BT].mean() < 1
    expected = {
        "rollout_is_mean": weights_BT[inside_BT].mean(),
        "rollout_rs_seq_mean_k3_seq_masked_fraction": rejected_B.mean(),
        "rollout_rs_masked_fraction": rejected_BT[inside_BT].mean(),
    }
    found = {name: metrics[f"rollout_corr/{name}"] for name in expected}
    assert found == pytest.approx(expected, abs=1e-4)
    assert not arrays["advantages"][rejected_BT & inside_BT].any()
