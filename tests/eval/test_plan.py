"""Expected standard errors against simulations and by hand."""

import re
from pathlib import Path

import numpy as np
import pytest

from eval.plan import Difficulty, assumed, factor, main, measured
from prompt_aug.base.files import write_json


def test_by_hand() -> None:
    """p = 1/2: Var(x) = 1/12, E[x(1-x)] = 1/6; with n = 2 and Q = 6 SE^2 = (1/12 + 1/12) / 6."""
    uniform = assumed(0.5, 0.5)
    assert uniform.variance == pytest.approx(1 / 12) and uniform.within == pytest.approx(1 / 6)
    assert uniform.error(6, 2) == pytest.approx((1 / 36) ** 0.5)
    # omega^2 = 2 (1/2) / 12, sampling 2 (1/6) / 2.
    assert uniform.gain_error(6, 2) == pytest.approx(((1 / 12 + 1 / 6) / 6) ** 0.5)
    assert factor(0.8) == pytest.approx(1.959964 + 0.841621, abs=1e-5)
    assert factor(0.5) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("correlation", [0.0, 1.0])
def test_errors_and_power_are_those_of_simulated_experiments(correlation: float) -> None:
    rng, questions, samples = np.random.default_rng(0), 30, 8
    x = rng.beta(1, 1, (20_000, questions))
    y = x if correlation else rng.beta(1, 1, x.shape)
    a, b = (rng.binomial(samples, z).mean(axis=1) / samples for z in (x, y))
    found = assumed(0.5, correlation)
    assert found.error(questions, samples) == pytest.approx(a.std(), rel=0.03)
    error = found.gain_error(questions, samples)
    assert error == pytest.approx((b - a).std(), rel=0.03)
    gain = factor(0.8) * error
    assert np.mean(b - a + gain > 1.959964 * error) == pytest.approx(0.8, abs=0.02)


def test_needed_questions_and_samples_are_the_fewest() -> None:
    found = Difficulty(mean=0.4, variance=0.08, correlation=0.7)
    for gain in (0.02, 0.05, 0.2):
        count = found.questions_for(gain, 4, 0.8)
        assert factor(0.8) * found.gain_error(count, 4) <= gain * (1 + 1e-9)
        assert factor(0.8) * found.gain_error(count - 1, 4) > gain
    samples = found.samples_for(0.05, 500, 0.8)
    assert samples is not None and factor(0.8) * found.gain_error(500, samples) <= 0.05
    assert factor(0.8) * found.gain_error(500, samples - 1) > 0.05
    assert found.samples_for(0.05, 30, 0.8) is None  # the questions alone vary more


def test_measured_difficulty_has_no_sampling_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    means = rng.binomial(4, rng.beta(1, 1, 40_000)) / 4
    entry = {"question_means": means.tolist(), "settings": {"samples": 4}}
    write_json(tmp_path / "scores.json", entry)
    found = measured(tmp_path / "scores.json", 0.5)
    assert found.variance == pytest.approx(1 / 12, rel=0.03)
    assert means.var() > 1.3 / 12  # negative control
    assert found.within == pytest.approx(1 / 6, rel=0.03)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--benchmark", "aime24", "--samples", "32"]) == 0
    line = capsys.readouterr().out.splitlines()[2].split()
    assert line[:3] == ["aime24", "30", "32"] and line[-3:] == ["none", "is", "enough"]
    write_json(tmp_path / "s.json", {"question_means": [1, 0], "settings": {"samples": 1}})
    for wrong, said in (
        ("gain=100", "in points"),
        ("gain=0.05", "in points"),  # not a share
        ("accuracy=1.0", "between 0 and 1"),
        ("correlation=2.0", "between 0 and 1"),
        ("samples=0", "1"),
    ):
        assert main(["--benchmark", "aime24", f"--{wrong}"]) == 2
        assert re.search(f"--{wrong}: .*{said}", capsys.readouterr().err)
    assert main(["--benchmark", "aime24", "--gain", "0.5"]) == 0
    assert main(["--benchmark", "aime24", "--like", str(tmp_path / "s.json")]) == 1
    assert "2 questions x 1" in capsys.readouterr().err
