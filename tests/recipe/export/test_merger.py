"""The real export: verl merges the shards of two ranks, with LoRA too; every bit is checked."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from saved_checkpoint import save_checkpoint
from tiny_model import ALPHA, RANK, logits, save_tokenizer, tuned, untrained
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from eval.ask.checkpoints import find, from_model
from eval.ask.checkpoints import verify as sweep_verify
from prompt_aug.base.errors import UserError
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.turns import end_of_turn
from recipe.export.__main__ import main
from recipe.export.verify import MismatchError, verify
from recipe.run.folder import record_model

pytestmark = pytest.mark.config


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


def test_a_swapped_shard(run: Path) -> None:
    actor = run / "checkpoints" / "global_step_2" / "actor"
    shutil.copy(actor / "model_world_size_2_rank_0.pt", actor / "model_world_size_2_rank_1.pt")
    assert main([str(run), "--steps", "2"]) == 1
    assert not (run / "hf" / "step_2").exists()


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A run folder with a start model whose generation_config.json transformers does not write."""
    model, started = untrained(vocab_size=320), tmp_path / "started"
    actor = started / "checkpoints" / "global_step_1" / "actor"
    save_checkpoint(model, actor)  # sets the architecture
    model.save_pretrained(tmp_path / "start")
    save_tokenizer(tmp_path / "start")
    (tmp_path / "start" / GENERATION).write_text('{"temperature": 0.6, "eos_token_id": [1, 7]}')
    (started / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    section = {"model": {"path": str(tmp_path / "start")}, "rollout": {"dtype": "float32"}}
    (started / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": section}))
    return started


GENERATION = "generation_config.json"


@pytest.mark.parametrize(
    ("recorded", "saved"),
    [
        (True, None),  # verl saves none
        (False, None),  # a run of an older version: the start model's of now
        (True, '{"temperature": 0.6, "eos_token_id": 1}'),  # one that an older transformers wrote
    ],
)
def test_an_export_ends_a_turn_as_the_start_model(
    started: Path, recorded: bool, saved: str | None
) -> None:
    if recorded:
        record_model(started)
    if saved:
        (started / "checkpoints/global_step_1/actor/huggingface" / GENERATION).write_text(saved)
    assert main([str(started)]) == 0
    written = json.loads((started / "hf" / "step_1" / GENERATION).read_text())
    ends, before = (
        end_of_turn(load_tokenizer(str(model))).ids
        for model in (started / "hf" / "step_1", started.parent / "start")
    )
    assert 7 in ends and ends == before == {*written["eos_token_id"]}
    assert written["temperature"] == 0.6 and written["eos_token_id"][:2] == [1, 7]
    for checkpoint in find(started):
        sweep_verify(checkpoint)


@pytest.fixture
def of_hub(started: Path) -> Path:
    """The start model of `started` with files as transformers 4 wrote them."""
    start = started.parent / "start"
    config = json.loads((start / "config.json").read_text())
    del config["rope_parameters"], config["dtype"]
    old = {"torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": ROPE}
    (start / "config.json").write_text(json.dumps(config | old))
    template = (start / "chat_template.jinja").read_text()
    (start / "chat_template.jinja").unlink()
    tokenizer = {"eos_token": "<|im_end|>", "additional_special_tokens": [BEGIN]}
    (start / TOKENIZER).write_text(json.dumps({**tokenizer, "chat_template": template}))
    (start / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    saved = started / "checkpoints/global_step_1/actor/huggingface"
    AutoConfig.from_pretrained(start).save_pretrained(saved)
    load_tokenizer(str(start)).save_pretrained(saved)
    return start


TOKENIZER, BEGIN = "tokenizer_config.json", "<|im_start|>"
ROPE = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("case", ["same", "gone", "another tokenizer", "override", "accepted"])
def test_an_export_has_the_files_of_the_start_model_that_load_alike(
    started: Path, of_hub: Path, case: str
) -> None:
    """In transformers 4, files of transformers 5 load otherwise or not at all."""
    saved, config = started / "checkpoints/global_step_1/actor/huggingface", started / "config.yaml"
    if case == "override":
        section = yaml.safe_load(config.read_text())
        section["actor_rollout_ref"]["model"]["override_config"] = {"rms_norm_eps": 0.5}
        config.write_text(yaml.safe_dump(section))
    if case in ("override", "accepted"):
        content = json.loads((saved / "config.json").read_text()) | {"rms_norm_eps": 0.5}
        (saved / "config.json").write_text(json.dumps(content))
    record_model(started)
    own = {p.name: p.read_bytes() for p in of_hub.glob("*token*")}
    before = json.loads((of_hub / "config.json").read_text())
    if case == "another tokenizer":  # than when the run began
        (of_hub / TOKENIZER).write_text('{"eos_token": "A"}')
    if case == "gone":
        of_hub.rename(of_hub.with_name("moved"))
    accept = ["--accept", "config.json"] if case == "accepted" else []
    assert main([str(started), "--steps", "1", *accept]) == 0
    folder = started / "hf" / "step_1"
    for checkpoint in find(started, [1]):
        sweep_verify(checkpoint)
    kept = case in ("gone", "another tokenizer")
    assert kept == (folder / "chat_template.jinja").exists()
    assert kept != ({p.name: p.read_bytes() for p in folder.glob("*token*")} == own)
    assert json.loads((folder / TOKENIZER).read_text())["additional_special_tokens"] == [BEGIN]
    written = json.loads((folder / "config.json").read_text())
    assert (written["rope_theta"], written["rope_scaling"]) == (5e5, ROPE)
    if case in ("override", "accepted"):
        assert (written["rms_norm_eps"], written["dtype"]) == (0.5, "float32")
    else:
        assert written == before | {"torch_dtype": "float32"}


def test_a_start_model_that_has_changed_since_the_run_began_is_no_step_0(started: Path) -> None:
    record_model(started)
    config = started.parent / "start" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.5}))
    assert main([str(started), "--steps", "0"]) == 1
    assert main([str(started), "--steps", "0", "--accept", "config.json"]) == 0
    (config.parent / "README.md").write_text("a card, which no loading reads")
    sweep_verify(find(started)[0])


def test_a_wanted_change_of_the_checkpoint_is_accepted_and_stands_in_the_manifest(
    started: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_model(started)
    folder, name = started / "checkpoints/global_step_1/actor/huggingface", "chat_template.jinja"
    (folder / name).write_text((folder / name).read_text().replace("user", "person") + " ")
    assert main([str(started)]) == 1
    error = capsys.readouterr().err
    assert error.count(f"{name}: ") == 1 and f"--accept {name}" in error
    assert not (started / "hf" / "step_1").exists()
    assert main([str(started), "--accept", name, "tokenizer.json"]) == 0
    manifest = started / "hf" / "step_1" / "manifest.json"
    record = json.loads(manifest.read_text())
    assert [*record["accepted"]] == [name]
    for checkpoint in find(started):
        sweep_verify(checkpoint)
    # An export that another version made without a look at these files.
    manifest.write_text(json.dumps({**record, "accepted": {}}))
    for checkpoint in (*find(started, [1]), from_model(str(manifest.parent))):
        with pytest.raises(UserError, match=r"chat_template\.jinja: "):
            sweep_verify(checkpoint)


KINDS = ["untied", "tied"]
META = "lora_train_meta.json"


def settings(kind: str) -> dict[str, Any]:
    return {"vocab_size": 258, "tie_word_embeddings": kind == "tied"}


@pytest.fixture(scope="module")
def saved_lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two run folders, with tied embeddings and without, and the start model of each."""
    base = tmp_path_factory.mktemp("lora")
    for kind in KINDS:
        lora_run = base / kind
        actor = lora_run / "checkpoints" / "global_step_1" / "actor"
        save_checkpoint(tuned(**settings(kind)), actor)
        (actor / META).write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA}))
        (lora_run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
        start = lora_run / "start"
        tuned(**settings(kind)).unload().save_pretrained(start)
        config = {"path": str(start), "lora_rank": RANK, "lora_alpha": ALPHA}
        sections = {"model": config, "rollout": {"dtype": "float32"}}
        (lora_run / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": sections}))
    return base


@pytest.fixture
def lora_run(saved_lora: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved_lora / "untied", tmp_path / "run", ignore=shutil.ignore_patterns("hf"))
    return tmp_path / "run"


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_adapter_are_the_tuned_model(
    saved_lora: Path, tmp_path: Path, kind: str
) -> None:
    lora_run = saved_lora / kind
    assert main([str(lora_run), "--steps", "1"]) == 0
    folder, wanted = lora_run / "hf" / "step_1", logits(tuned(**settings(kind)))
    start = loaded(lora_run / "start")
    torch.testing.assert_close(logits(loaded(folder)), wanted, atol=1e-5, rtol=0)
    assert (logits(start) - wanted).abs().max() > 0.01
    with_adapter = PeftModel.from_pretrained(start, str(folder / "adapter"))
    torch.testing.assert_close(logits(with_adapter), wanted, atol=1e-5, rtol=0)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert "adapter/adapter_model.safetensors" in manifest["files"]
    assert manifest["parameters"] == sum(p.numel() for p in loaded(folder).parameters())
    (tmp_path / "written").touch()
    modes = {path.stat().st_mode for path in folder.rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "written").stat().st_mode}  # other users may read them


def test_bfloat16_is_the_rounded_sum_and_not_a_sum_of_rounded_weights(lora_run: Path) -> None:
    assert main([str(lora_run), "--steps", "1", "--dtype", "bfloat16"]) == 0
    wanted = tuned(**settings("untied")).merge_and_unload().bfloat16().state_dict()
    result = AutoModelForCausalLM.from_pretrained(
        lora_run / "hf" / "step_1", dtype="auto"
    ).state_dict()
    for name, value in wanted.items():
        assert torch.equal(result[name], value), name


LAYER = "base_model.model.model.layers.1.mlp.up_proj"
PART_A, PART_B = "lora_A.default.weight", "lora_B.default.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # The scale that is stated beside the shards.
        ({"r": RANK, "lora_alpha": 24}, "r=3 and lora_alpha=24, but config.yaml has 3 and 12"),
        # The tensors of each shard.
        (
            lambda s: s.update({f"{LAYER}2.{p}": s[f"{LAYER}.{p}"] for p in (PART_A, PART_B)}),
            "layers that the model has not: model.layers.1.mlp.up_proj2.weight",
        ),
        (lambda s: s[f"{LAYER}.{PART_A}"]._local_tensor.fill_(torch.inf), "not finite"),
    ],
)
def test_a_checkpoint_whose_adapter_is_not_known_is_refused(
    lora_run: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    actor = lora_run / "checkpoints" / "global_step_1" / "actor"
    if isinstance(change, dict):
        (actor / META).write_text(json.dumps(change))
    for path in actor.glob("model_*.pt") if callable(change) else []:
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)
    assert main([str(lora_run), "--steps", "1"]) == 1
    assert message in capsys.readouterr().err
    assert not (lora_run / "hf" / "step_1").exists()


def test_another_alpha_or_no_adapter_would_be_seen(lora_run: Path) -> None:
    """Negative control: with both records wrong the export is far from the tuned model."""
    config, actor = lora_run / "config.yaml", lora_run / "checkpoints" / "global_step_1" / "actor"
    config.write_text(config.read_text().replace(f"lora_alpha: {ALPHA}", "lora_alpha: 13"))
    (actor / META).write_text(json.dumps({"r": RANK, "lora_alpha": 13}))
    assert main([str(lora_run), "--steps", "1"]) == 0
    wanted = logits(tuned(**settings("untied")))
    assert (logits(loaded(lora_run / "hf" / "step_1")) - wanted).abs().max() > 1e-3
