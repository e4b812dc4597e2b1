"""The signal of a step depends on the settings, earlier steps and filler groups."""

from pathlib import Path
from typing import Any

import pytest
from rollout_batches import Queue, fetched, row

from recipe.run.folder import RunFolder
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.training_signal import signal_of


def test_the_signal_of_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toy_config: Any
) -> None:
    """Two groups with one right response each; the first is a filler group."""
    config, seeds = toy_config.copy(), set()
    config.recipe.run_dir, config.recipe.save_tensors_every = str(tmp_path), 2
    config.recipe.history.enable = True
    rows = {
        f"{group}_{i}_0": row(i == 0, 2 + i, question=question, session=i)
        for group, question in (("a", "p"), ("b", "q"))
        for i in range(2)
    }
    for seed, step in ((1, 2), (1, 3), (2, 2)):
        config.recipe.seed = seed
        stats, queue = QuestionStats(config.recipe), Queue(rows)
        stats.load({"shortest": {"q": 1}})
        rollouts, _, columns = signal_of(
            fetched(queue, monkeypatch),
            config,
            step=step,
            stats=stats,
            filled_groups={"a"},
            kl_controller=None,
            weight_logprobs=None,
            metrics={},
        )
        seeds.add(rollouts.seed)
        assert rollouts.shortest == [None, None, 1, 1]
        trained = columns["advantages"].abs().sum(1) > 0
        assert trained.tolist() == [False, False, True, True]
    assert len(seeds) == 3
    assert [path.name for path in RunFolder(tmp_path).tensors(2).parent.iterdir()] == ["step_2.npz"]
