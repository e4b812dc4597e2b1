"""A LoRA checkpoint of two ranks, exported by the command: the model, the adapter, refusals."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from peft import PeftModel
from tiny_lora import ALPHA, RANK, logits, tuned
from tiny_model import save_tokenizer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from recipe.export import __main__ as export

pytestmark = pytest.mark.config
KINDS = ["untied", "tied"]


def settings(kind: str) -> dict[str, Any]:
    return {"vocab_size": 258, "tie_word_embeddings": kind == "tied"}


def save_shards(model: Any, actor: Path) -> None:
    """Write what verl's checkpoint manager does on each of two ranks, without other processes."""
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        shards = {}
        for name, whole in model.state_dict().items():
            local = [*whole.chunk(2), whole[:0]][rank].clone()
            shape = {"shape": whole.shape, "stride": whole.stride()}
            shards[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, **shape)
        torch.save(shards, actor / f"model_world_size_2_rank_{rank}.pt")
        dist.destroy_process_group()
    model.config.architectures = ["Qwen2ForCausalLM"]
    model.config.save_pretrained(actor / "huggingface")
    save_tokenizer(actor / "huggingface")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two run folders, with tied embeddings and without, and the start model of each."""
    base = tmp_path_factory.mktemp("lora")
    for kind in KINDS:
        run, model = base / kind, tuned(**settings(kind))
        actor = run / "checkpoints" / "global_step_1" / "actor"
        actor.mkdir(parents=True)
        save_shards(model, actor)
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


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def change_shard(actor: Path, change: Any) -> None:
    for path in actor.glob("model_*.pt"):
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)


LAYER = "base_model.model.model.layers.1.mlp.up_proj"
PART_A, PART_B = "lora_A.default.weight", "lora_B.default.weight"
META = "lora_train_meta.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda actor: rewrite(actor / META, json.dumps({"r": RANK, "lora_alpha": 24})),
            "r=3 and lora_alpha=24, but config.yaml has 3 and 12",
        ),
        (lambda actor: (actor / META).unlink(), "r=None and lora_alpha=None"),
        (
            lambda actor: change_shard(actor, lambda s: s.pop(f"{LAYER}.lora_B.default.weight")),
            "not one A and one B per linear layer",
        ),
        (
            lambda actor: change_shard(
                actor, lambda s: s.update({f"{LAYER}.lora_magnitude_vector": torch.ones(3)})
            ),
            "not one A and one B per linear layer",
        ),
        (
            lambda actor: change_shard(
                actor,
                lambda s: s.update(
                    {f"{LAYER}2.{part}": s[f"{LAYER}.{part}"] for part in (PART_A, PART_B)}
                ),
            ),
            "layers that the model has not: model.layers.1.mlp.up_proj2.weight",
        ),
        (
            lambda actor: change_shard(
                actor, lambda s: s[f"{LAYER}.lora_A.default.weight"]._local_tensor.fill_(torch.inf)
            ),
            "not finite",
        ),
    ],
)
def test_a_checkpoint_whose_adapter_is_not_known_is_refused(
    run: Path, damage: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "checkpoints" / "global_step_1" / "actor")
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
