"""Whole and damaged checkpoints, from which one a run goes on, and which ones are deleted.

What loads of a checkpoint is compared with the start model's; ends of a turn in an export.
"""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_tokenizers import qwen_base
from saved_checkpoint import save
from tiny_model import save_tokenizer

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.turns import end_of_turn
from recipe.errors import ConfigError
from recipe.machine import model_files
from recipe.run import checkpoints
from recipe.run.folder import RunFolder, record_model, recorded_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 2, 10 and 12, the last one tracked."""
    for step in (2, 10, 12):
        save(tmp_path, step, ranks=2)
    (tmp_path / checkpoints.TRACKER).write_text("12")
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    """Change the first number of a shard, which torch.load then returns in silence."""
    with zipfile.ZipFile(path) as archive:
        place = next(x for x in archive.infolist() if "/data/" in x.filename)
    content = bytearray(path.read_bytes())
    start = content.index(place.filename.encode(), place.header_offset)
    tensor = content.index(struct.pack("<f", 1.0), start)
    content[tensor : tensor + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(content)
    assert torch.load(path)["w"][0] != 1


HARM = {
    "a tensor flipped": lambda p: flip(p / "actor/model_world_size_2_rank_1.pt"),
    "a shard cut": lambda p: cut(p / "actor/model_world_size_2_rank_1.pt"),
    "an empty shard": lambda p: (p / "actor/optim_world_size_2_rank_0.pt").write_bytes(b""),
    "no shard of a rank": lambda p: (p / "actor/extra_state_world_size_2_rank_1.pt").unlink(),
    "no data loader": lambda p: (p / "data.pt").unlink(),
    "a data loader cut": lambda p: cut(p / "data.pt"),
    "no state": lambda p: (p / "recipe_state.json").unlink(),
    "a state cut": lambda p: (p / "recipe_state.json").write_text('{"memory": {'),
    "a state of another kind": lambda p: (p / "recipe_state.json").write_text("[]"),
    "an empty state": lambda p: (p / "recipe_state.json").write_text("{}"),
    "a line of another kind": lambda p: (p / "recipe_state.json").write_text(
        '{"batches_fetched": 1, "line": []}'
    ),
    "statistics of another kind": lambda p: (p / "recipe_state.json").write_text(
        '{"batches_fetched": 1, "question_stats": {"shortest": []}}'
    ),
    "no ranks": lambda p: (p / "actor/fsdp_config.json").write_text('{"world_size": 0}'),
    "ranks as text": lambda p: (p / "actor/fsdp_config.json").write_text('{"world_size": "2"}'),
    "no description": lambda p: (p / "actor/fsdp_config.json").unlink(),
    "a description cut": lambda p: (p / "actor/fsdp_config.json").write_text('{"FSDP_'),
    "gone": lambda p: p.rename(p.with_name("elsewhere")),
}


def test_whole_checkpoints_are_left_alone(folder: Path) -> None:
    assert [checkpoints.damage(folder / f"global_step_{n}") for n in (2, 10, 12)] == [None] * 3
    for tracked in ("12", "2"):  # a user who goes back by hand is believed
        (folder / checkpoints.TRACKER).write_text(tracked)
        assert checkpoints.repair(folder) == []
        assert (folder / checkpoints.TRACKER).read_text() == tracked


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_last_checkpoint_falls_back_to_the_whole_one_before(
    folder: Path, harm: str
) -> None:
    HARM[harm](folder / "global_step_12")
    messages = checkpoints.repair(folder)
    assert (
        len(messages) == 1
        and "step 12 is not whole" in messages[0]
        and "from step 10" in messages[0]
    )
    assert (folder / checkpoints.TRACKER).read_text() == "10"  # by number: "2" is later by name
    assert checkpoints.repair(folder) == []


@pytest.mark.parametrize(
    ("tracker", "harmed", "chosen"),
    [
        *((None, [12], 10), ("", [12], 10), ("1x", [12], 10)),  # an illegible tracker
        ("10", [10], 2),  # one of an abandoned branch comes last, but before nothing
        ("10", [10, 2], 12),
    ],
)
def test_the_checkpoint_to_resume_from(
    folder: Path, tracker: str | None, harmed: list[int], chosen: int
) -> None:
    (folder / checkpoints.TRACKER).unlink()
    if tracker is not None:
        (folder / checkpoints.TRACKER).write_text(tracker)
    for step in harmed:
        (folder / f"global_step_{step}" / "data.pt").unlink()  # a kill in the middle of saving
    assert f"from step {chosen}" in checkpoints.repair(folder)[0]
    assert (folder / checkpoints.TRACKER).read_text() == str(chosen)


def test_with_nothing_whole_a_run_never_starts_from_scratch_by_itself(folder: Path) -> None:
    for step in (2, 10, 12):
        HARM["no data loader"](folder / f"global_step_{step}")
    for tracker, message in (("12", "names step 12.*step 2: data.pt is missing"), ("", "is there")):
        (folder / checkpoints.TRACKER).write_text(tracker)
        with pytest.raises(ConfigError, match=message):
            checkpoints.repair(folder)
    assert (folder / checkpoints.TRACKER).exists()


def test_a_first_checkpoint_that_a_kill_cut_is_no_reason_not_to_start(tmp_path: Path) -> None:
    assert checkpoints.repair(tmp_path / "none") == []
    (save(tmp_path, 5) / "data.pt").unlink()
    assert "step 5 is not whole" in checkpoints.repair(tmp_path)[0]
    assert not (tmp_path / checkpoints.TRACKER).exists()


def test_saving_over_an_old_try_is_never_taken_for_whole(folder: Path) -> None:
    checkpoints.begin(folder / "global_step_12")
    assert checkpoints.damage(folder / "global_step_12") == "data.pt is missing"
    checkpoints.begin(folder / "global_step_14")


@pytest.mark.parametrize(
    ("tracked", "last", "every", "best", "gone"),
    [
        (50, None, None, None, []),
        (50, 1, None, None, [10, 20, 30, 40]),
        (50, 2, None, None, [10, 20, 30]),
        (50, 2, 20, None, [10, 30]),
        (50, 2, 20, 10, [30]),
        (50, 9, None, None, []),
        (30, 1, None, None, [10, 20]),
        (None, 1, None, None, []),
    ],
)
def test_retention(
    tracked: int | None, last: int | None, every: int | None, best: int | None, gone: list[int]
) -> None:
    # Those after the tracked one are being written, or of a branch that was left: not touched.
    assert checkpoints.surplus([30, 10, 50, 40, 20, 60], tracked, last, every, best) == gone


def test_a_deletion_that_a_kill_cut_leaves_no_half_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *a, **k: None)  # killed right after the renaming
        checkpoints.delete(folder, [2])
    assert checkpoints.saved_steps(folder) == [10, 12]
    assert len(list(folder.glob(".deleted_*"))) == 1
    checkpoints.repair(folder)
    assert not list(folder.glob(".deleted_*"))


# ------------------------------------------------------------------------- model files

CONFIG = {
    **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "eos_token_id": [1, 7]},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16"},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32},
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "start"
    save_tokenizer(folder)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"temperature": 0.6, "eos_token_id": [1, 7]})
    return folder


def copied(start: Path, folder: Path) -> Path:
    """A checkpoint as verl saves it: transformers writes both configurations anew."""
    from transformers import AutoConfig

    load_tokenizer(str(start)).save_pretrained(folder)
    config = AutoConfig.from_pretrained(start, attn_implementation="sdpa")
    config.bos_token_id, config.eos_token_id, config.dtype = None, 1, "float32"
    config.attn_implementation = "sdpa"
    config.save_pretrained(folder)
    write_json(folder / "generation_config.json", {"do_sample": True, "eos_token_id": [1, 7]})
    return folder


def edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        content = read_json(folder / name)
        change(content)
        write_json(folder / name, content)

    return apply


def field(name: str, value: Any) -> tuple[str, Callable[[Path], object]]:
    return "config.json", edit("config.json", lambda config: config.update({name: value}))


def text(name: str, content: str | None) -> tuple[str, Callable[[Path], object]]:
    """Replace a file, or delete it."""
    if content is None:
        return name, lambda folder: (folder / name).unlink()
    return name, lambda folder: (folder / name).write_text(content)


def swap(tokenizer: Any) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]


DAMAGES = [
    text("chat_template.jinja", None),
    text("chat_template.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    ("tokenizer.json", edit("tokenizer.json", swap)),
    *(text(name, "") for name in ("tokenizer.json", "tokenizer_config.json", "config.json")),
    *(text(name, None) for name in ("tokenizer.json", "config.json")),
    ("tokenizer_config.json", edit("tokenizer_config.json", lambda t: t.update(eos_token="A"))),
    field("rms_norm_eps", 1e-5),
    field("rms_norm_eps", "none"),
    field("rope_parameters", {"rope_theta": 500000.0, "rope_type": "default"}),
    field("num_key_value_heads", 4),
    field("hidden_act", "gelu"),
    field("tie_word_embeddings", True),
    field("use_sliding_window", True),
    field("a_field_of_another_version", 1),
    field("model_type", "qwen3"),
    field("architectures", None),
    ("generation_config.json", edit("generation_config.json", lambda g: g.update(eos_token_id=5))),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_file_that_loads_otherwise_is_named_unless_it_is_accepted(
    start: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    record = json.loads(json.dumps(model_files.describe(str(start))))
    checkpoint = copied(start, tmp_path / "checkpoint")
    assert model_files.compare(str(checkpoint), record, ()) == {}
    damage(checkpoint)
    with pytest.raises(UserError, match=name.replace(".", r"\.")) as raised:
        model_files.compare(str(checkpoint), record, ())
    assert "\n" not in str(raised.value)


def test_a_wanted_change_is_returned(start: Path, tmp_path: Path) -> None:
    record, checkpoint = model_files.describe(str(start)), copied(start, tmp_path / "checkpoint")
    field("rms_norm_eps", 1e-5)[1](checkpoint)
    found = model_files.compare(str(checkpoint), record, ["config.json"])
    assert [*found] == ["config.json"] and "1e-05" in found["config.json"]
    record = model_files.describe(str(start), ["rms_norm_eps"])  # the run sets it itself
    assert model_files.compare(str(checkpoint), record, ()) == {}


def test_a_run_records_its_start_model_once(start: Path, tmp_path: Path) -> None:
    model, runs = copied(start, tmp_path / "model"), [tmp_path / "new", tmp_path / "old"]
    section = {"path": str(model), "override_config": {"attn_implementation": "sdpa"}}
    for run in runs:
        run.mkdir()
        (run / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": {"model": section}}))
    write_json(RunFolder(runs[0]).model, {})  # of a start with another model, without a checkpoint
    record_model(runs[0], anew=True)
    before = model_files.describe(str(model))["config"]
    field("rms_norm_eps", 1e-5)[1](model)
    record_model(runs[0])  # a resumed start
    (new, no_note), (old, note) = map(recorded_model, runs)
    assert (new or {})["config"] == before != (old or {})["config"] and not no_note and note
    (model / "tokenizer.json").unlink()
    recorded_model.cache_clear()
    assert recorded_model(runs[1])[0] is None and recorded_model(runs[0])[0] == new


PAD = 258  # Qwen2's tokenizer adds <|endoftext|>, which ends a response as well


@pytest.mark.parametrize(
    ("own", "ends"),
    [
        # transformers reads temperature without do_sample, and refuses to write it
        ({"temperature": 0.6, "eos_token_id": [1, 7], "pad_token_id": 3}, [1, 7, PAD]),
        ({"eos_token_id": 7, "bos_token_id": 4}, [7, 1, PAD]),
        ({}, [1, PAD]),  # as in transformers, config.json does not count
        (None, [1, 7, PAD]),  # but does without the file
    ],
)
def test_an_export_keeps_the_ids_of_the_start_model(
    tmp_path: Path, own: dict[str, Any] | None, ends: list[int]
) -> None:
    save_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {**CONFIG, "pad_token_id": 5})
    if own is not None:
        write_json(tmp_path / "generation_config.json", own)
    record = model_files.describe(str(tmp_path))
    model_files.write_generation(tmp_path, record)
    own = {"pad_token_id": 5} if own is None else own
    assert read_json(tmp_path / "generation_config.json") == {**own, "eos_token_id": ends}
    assert end_of_turn(load_tokenizer(str(tmp_path))).ids == {*record["ends"]}


def test_an_export_of_a_base_model_ends_where_the_run_trained_it_to_end(tmp_path: Path) -> None:
    made = qwen_base()
    made.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", CONFIG)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": made.eos_token_id})
    model_files.write_generation(tmp_path, model_files.describe(str(tmp_path)))
    eos = read_json(tmp_path / "generation_config.json")["eos_token_id"]
    assert eos[0] == made.eos_token_id and made.convert_tokens_to_ids("<|im_end|>") in eos
