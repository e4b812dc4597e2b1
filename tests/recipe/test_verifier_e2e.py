"""Two sources in one training: one has a verifier of its own, the other the project's grader."""

import os
from pathlib import Path

import pandas
import pytest
from method_runs import Runner, finite

from prompt_aug.base.files import read_json, read_lines
from prompt_aug.questions import make_question, write_parquet
from recipe.run.folder import RunFolder

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
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


def test_two_sources_train_and_validate_with_their_own_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HELPERS), prepend=os.pathsep)
    runs, files = Runner(tmp_path), ",".join(data(tmp_path))
    runs.start(
        "own",
        "grpo",
        *(f"data.train_files=[{files}]", f"data.val_files=[{files}]"),
        "recipe.reward.verifiers={own/letters: own_verifiers.letters}",
        "recipe.source_weights={sums: 1, own/letters: 1}",
        *("recipe.reward.format_weight=0.5", "trainer.test_freq=2"),
    )
    metrics = runs.finish("own")
    assert finite(metrics)
    run = RunFolder(tmp_path / "own")
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
        assert line["reward"] <= parts["score"] + 0.5 * line["format"]  # overlong on top
    assert all(line["parts"] == {} for line in seen if line["source"] == "sums")
    for line in metrics:
        shares = [line.get(f"source/{name}/share", 0.0) for name in ("sums", "own/letters")]
        assert sum(shares) == 1.0
    assert metrics[-1]["val/own/letters/questions"] == 4.0
    assert 0 <= metrics[-1]["val/own/letters/part/score"] <= 1
