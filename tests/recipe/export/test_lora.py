"""A LoRA checkpoint of two ranks, exported by the command: the model, the adapter, refusals."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fake_shards import save_checkpoint
from peft import PeftModel
from tiny_lora import ALPHA, RANK, logits, tuned
from transformers import AutoModelForCausalLM

from recipe.export import __main__ as export

pytestmark = pytest.mark.config
KINDS = ["untied", "tied"]
META = "lora_train_meta.json"


def settings(kind: str) -> dict[str, Any]:
    return {"vocab_size": 258, "tie_word_embeddings": kind == "tied"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two run folders, with tied embeddings and without, and the start model of each."""
    base = tmp_path_factory.mktemp("lora")
    for kind in KINDS:
        run = base / kind
        actor = run / "checkpoints" / "global_step_1" / "actor"
        save_checkpoint(tuned(**settings(kind)), actor)
        (actor / META).write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
        (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
        start = run / "start"
        tuned(**settings(kind)).unload().save_pretrained(start)
        config = {"path": str(start), "lora_rank": RANK, "lora_alpha": ALPHA}
        sections = {"model": config, "rollout": {"dtype": "float32"}}
        (run / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": sections}))
    yield base


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved / "untied", tmp_path / "run", ignore=shutil.ignore_patterns("hf"))
    return tmp_path / "run"


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_adapter_are_the_tuned_model(saved: Path, kind: str) -> None:
    run = saved / kind
    assert export.main([str(run), "--steps", "1"]) == 0
    folder, wanted = run / "hf" / "step_1", logits(tuned(**settings(kind)))
    start = loaded(run / "start")
    torch.testing.assert_close(logits(loaded(folder)), wanted, atol=1e-5, rtol=0)
    assert (logits(start) - wanted).abs().max() > 0.01
    with_adapter = PeftModel.from_pretrained(start, str(folder / "adapter"))
    torch.testing.assert_close(logits(with_adapter), wanted, atol=1e-5, rtol=0)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert "adapter/adapter_model.safetensors" in manifest["files"]
    assert manifest["parameters"] == sum(p.numel() for p in loaded(folder).parameters())


def test_bfloat16_is_the_rounded_sum_and_not_a_sum_of_rounded_weights(run: Path) -> None:
    assert export.main([str(run), "--steps", "1", "--dtype", "bfloat16"]) == 0
    wanted = tuned(**settings("untied")).merge_and_unload().bfloat16().state_dict()
    found = AutoModelForCausalLM.from_pretrained(run / "hf" / "step_1", dtype="auto").state_dict()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


LAYER = "base_model.model.model.layers.1.mlp.up_proj"
PART_A, PART_B = "lora_A.default.weight", "lora_B.default.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # The scale that is stated beside the shards.
        ({"r": RANK, "lora_alpha": 24}, "r=3 and lora_alpha=24, but config.yaml has 3 and 12"),
        (None, "r=None and lora_alpha=None"),  # nothing is stated
        # The tensors of each shard.
        (lambda s: s.pop(f"{LAYER}.{PART_B}"), "not one A and one B per linear layer"),
        (
            lambda s: s.update({f"{LAYER}2.{p}": s[f"{LAYER}.{p}"] for p in (PART_A, PART_B)}),
            "layers that the model has not: model.layers.1.mlp.up_proj2.weight",
        ),
        (lambda s: s[f"{LAYER}.{PART_A}"]._local_tensor.fill_(torch.inf), "not finite"),
    ],
)
def test_a_checkpoint_whose_adapter_is_not_known_is_refused(
    run: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = run / "checkpoints" / "global_step_1" / "actor"
    if change is None:
        (actor / META).unlink()
    elif isinstance(change, dict):
        (actor / META).write_text(json.dumps(change))
    for path in actor.glob("model_*.pt") if callable(change) else []:
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)
    assert export.main([str(run), "--steps", "1"]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "hf" / "step_1").exists()


def test_another_alpha_or_no_adapter_would_be_seen(run: Path) -> None:
    """Negative control: with both records wrong the export is far from the tuned model."""
    config, actor = run / "config.yaml", run / "checkpoints" / "global_step_1" / "actor"
    config.write_text(config.read_text().replace(f"lora_alpha: {ALPHA}", "lora_alpha: 13"))
    (actor / META).write_text(json.dumps({"r": RANK, "lora_alpha": 13}))
    assert export.main([str(run), "--steps", "1"]) == 0
    wanted = logits(tuned(**settings("untied")))
    assert (logits(loaded(run / "hf" / "step_1")) - wanted).abs().max() > 1e-3
