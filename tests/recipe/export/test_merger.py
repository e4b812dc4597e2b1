"""The real export: verl merges the shards of two ranks, every bit is checked.

The check itself is in test_verify.py; test_shards.py has shards that FSDP2 wrote.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from fake_shards import save_checkpoint
from tiny_model import untrained
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.export.__main__ import main
from recipe.export.verify import MismatchError, verify

pytestmark = pytest.mark.config

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the steps 1 (tied embeddings) and 2 (untied) of two ranks."""
    run = tmp_path_factory.mktemp("export") / "run"
    for step, tied in ((1, True), (2, False)):
        # Odd numbers of rows: pieces of unequal size on the two ranks.
        odd = {"vocab_size": 259, "intermediate_size": 21}
        model = untrained(**odd, tie_word_embeddings=tied)
        actor = run / "checkpoints" / f"global_step_{step}" / "actor"
        save_checkpoint(model, actor)
        torch.save(model.state_dict(), actor / "whole.pt")
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    settings = {"model": {"path": "some/model"}, "rollout": {"dtype": "float32"}}
    (run / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": settings}))
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def check_weights(run: Path, step: int, dtype: str) -> None:
    """The exported model, loaded by transformers, equals the model before it was sharded."""
    folder = run / "hf" / f"step_{step}"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")  # what config.json says
    path = run / "checkpoints" / f"global_step_{step}" / "actor" / "whole.pt"
    before = torch.load(path, weights_only=True)
    after = model.state_dict()
    assert set(after) == set(before)
    for name, value in before.items():
        assert after[name].dtype == getattr(torch, dtype)
        assert torch.equal(after[name], value.to(after[name].dtype)), name
    assert AutoTokenizer.from_pretrained(folder).decode([0, 1]) != ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_of_two_ranks_become_the_model_they_were(run: Path, dtype: str) -> None:
    assert main([str(run), "--dtype", dtype]) == 0
    for step in (1, 2):
        check_weights(run, step, dtype)
        manifest = json.loads((run / "hf" / f"step_{step}" / "manifest.json").read_text())
        assert (manifest["dtype"], manifest["world_size"]) == (dtype, 2)
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(manifest["files"])
    start = json.loads((run / "hf" / "step_0" / "manifest.json").read_text())
    assert start["model_path"] == "some/model"
    source, target = run / "checkpoints" / "global_step_2" / "actor", run / "hf" / "step_2"
    (target / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(MismatchError, match="tokenizer"):
        verify(source, target, getattr(torch, dtype), 2, AutoModelForCausalLM)


def test_a_corrupt_shard_and_a_swapped_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (run / "checkpoints" / f"global_step_{step}" / "actor" for step in (1, 2))
    damaged = one / "model_world_size_2_rank_1.pt"
    damaged.write_bytes(damaged.read_bytes()[:-2000])
    assert main([str(run)]) == 1
    said = capsys.readouterr().err
    assert f"step 1: {one.parent}: actor/{damaged.name} is cut" in said
    assert "Traceback" not in said
    check_weights(run, 2, "float32")
    assert not (run / "hf" / "step_1").exists()
    shutil.rmtree(run / "hf")
    shutil.copy(two / "model_world_size_2_rank_0.pt", two / "model_world_size_2_rank_1.pt")
    assert main([str(run), "--steps", "2"]) == 1
    assert not (run / "hf" / "step_2").exists()
