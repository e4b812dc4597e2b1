"""verl's rollout correction with covariance weights, KL in the reward and the overlong filter.

A separate file, so that it runs in parallel with test_methods_e2e.py.
"""

from pathlib import Path

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
    rejected = [m["rollout_corr/rollout_rs_masked_fraction"] for m in metrics]
    assert all(0 < share < 1 for share in rejected)
