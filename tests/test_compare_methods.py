"""scripts/compare_methods.py: its figures by hand, and a record that is not made twice."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from load_script import load_script


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    return load_script("compare_methods")


def step(number: int, accuracy: float, **more: float) -> dict[str, Any]:
    return {
        **{"step": number, "train/accuracy": accuracy, "critic/score/mean": 2 * accuracy},
        **{"train/entropy": 0.5, "train/no_signal_groups": 0.25, "train/groups": 4.0},
        **{"val/toy_arithmetic/accuracy": 0.75, **more},
    }


def test_figures_by_hand(compare: ModuleType) -> None:
    # 12 steps of accuracy 0.0, 0.1, ..., 1.1: the first five mean 0.2, the last ten 0.65
    seen = compare.figures([step(i + 1, i / 10) for i in range(12)])
    assert seen == pytest.approx(
        {
            **{"accuracy, first 5": 0.2, "accuracy": 0.65, "reward": 1.3, "held out": 0.75},
            **{"entropy": 0.5, "no signal": 0.25, "generated": 1.0},
        }
    )


def test_dynamic_sampling_counts_what_was_generated(compare: ModuleType) -> None:
    counts = {"dynamic_sampling/evicted": 6.0, "dynamic_sampling/generated": 10.0}
    seen = compare.figures([step(i, 0.5, **counts) for i in range(1, 4)])
    assert seen["no signal"] == pytest.approx(0.6)  # not the 0.25 of the groups kept
    assert seen["generated"] == pytest.approx(2.5)


def test_runs_on_record_are_not_made_again(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made: list[tuple[str, int]] = []

    def train(method: str, seed: int, steps: int, out: Path, threads: int) -> None:
        made.append((method, seed))
        if (method, seed) == ("rloo", 1):
            return  # a run that failed
        folder = out / f"{method}-{seed}"
        folder.mkdir(parents=True)
        lines = [json.dumps(step(i + 1, 0.5 + seed / 10)) for i in range(steps)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "environment.json").write_text('{"commit": "abc"}')

    monkeypatch.setattr(compare, "train", train)
    record = tmp_path / "record.jsonl"
    arguments = ["compare_methods.py", "--methods", "grpo", "rloo", "--seeds", "0", "1"]
    arguments += ["--steps", "3", "--out", str(tmp_path / "runs"), "--record", str(record)]
    monkeypatch.setattr(sys, "argv", arguments)
    compare.main()
    compare.main()
    assert made == [("grpo", 0), ("rloo", 0), ("grpo", 1), ("rloo", 1), ("rloo", 1)]
    assert [json.loads(line)["commit"] for line in record.read_text().splitlines()] == ["abc"] * 3
    said = capsys.readouterr().out
    assert "rloo seed 1: failed" in said
    # mean of 0.5 and 0.6, standard deviation 0.1 / sqrt(2)
    assert "| grpo | 2 | 0.550 ± 0.071 | 0.550 ± 0.071 |" in said
    assert "| rloo | 1 |" in said
