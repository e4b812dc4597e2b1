"""What loads of a checkpoint is compared with the start model's; ends of a turn in an export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_tokenizers import qwen_base
from tiny_model import save_tokenizer

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.turns import end_of_turn
from recipe.machine import model_files
from recipe.run.folder import record_model, recorded_model

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
    record_model(runs[0])
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
    start: Path, tmp_path: Path, own: dict[str, Any] | None, ends: list[int]
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
