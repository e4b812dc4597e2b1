"""rollouts/ and tensors/ are read back as they were written."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_batches import Queue, fetched, record, row

from recipe.run.folder import write_arrays
from recipe.trainer.records import arrays, lines


class Words:
    def decode(self, ids: torch.Tensor) -> str:
        return " ".join(map(str, ids.tolist()))


def test_saved_tensors_read_back_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"g-q_0_0": row(True, 2), "g-q_1_0": row(False, 3, session=1)}
    listed["g-q_1_0"]["extra_fields"]["generated_under"] = [9]
    made = record(fetched(Queue(listed), monkeypatch))
    path = tmp_path / "tensors" / "step_1.npz"
    rewards = torch.tensor([1.0, 0.5])
    write_arrays(path, arrays(made, rewards, torch.zeros(2, 3)))
    read = np.load(path, allow_pickle=False)
    assert read["responses"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert read["generated_under"].tolist() == [[7, 8], [9, -1]]
    assert read["prompts"].tolist() == [[7, 8], [7, 8]]
    assert read["lengths"].tolist() == [2, 3]
    assert read["rewards"].tolist() == [1.0, 0.5]
    assert read["group"].tolist() == ["g-q", "g-q"]
    assert [p.name for p in path.parent.iterdir()] == ["step_1.npz"]
    first, second = lines(made, rewards, step=4, tokenizer=Words())
    assert (first["step"], first["prompt"], first["reward"], first["accuracy"]) == (4, "7 8", 1, 1)
    assert (second["prompt"], second["generated_under"]) == ("7 8", "9")
    assert (second["rollout"], second["length"], second["uid"]) == (1, 3, "q")
