"""Which exports are finished, and that they are the exported files."""

from pathlib import Path

import pytest

from eval import EvaluationError
from eval.checkpoints import find, from_model, verify
from prompt_aug.base.files import digests, read_json, write_json

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"tokens",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"chat",
    "generation_config.json": b'{"eos_token_id": 1}',
}


def export(run: Path, step: int, *, done: bool = True, weights: bytes = b"weights") -> Path:
    folder = run / "hf" / f"step_{step}"
    folder.mkdir(parents=True)
    for name, content in {**FILES, "model.safetensors": weights}.items():
        (folder / name).write_bytes(content)
    if done:
        files = digests(list(folder.iterdir()), folder)
        write_json(folder / "manifest.json", {"step": step, "files": files})
    return folder


def test_only_exports_with_a_manifest_are_finished(tmp_path: Path) -> None:
    for step in (10, 2, 30):
        export(tmp_path, step, done=step != 30)
    (tmp_path / "hf" / ".step_40.tmp").mkdir()
    result = find(tmp_path)
    assert [checkpoint.step for checkpoint in result] == [2, 10]
    with pytest.raises(EvaluationError, match=r"\[11\].*\[2, 10\]"):
        find(tmp_path, [10, 11])
    with pytest.raises(EvaluationError, match=r"recipe\.export"):
        find(tmp_path / "empty")


def test_a_manifest_may_name_weights_elsewhere(tmp_path: Path) -> None:
    model = export(tmp_path / "other", 7)
    files = read_json(model / "manifest.json")["files"]
    for step, path in enumerate((str(model), "../../../other/hf/step_7", "some/model")):
        record = {"step": step, "model_path": path, "files": files}
        write_json(tmp_path / "run" / "hf" / f"step_{step}" / "manifest.json", record)
    result = find(tmp_path / "run")
    assert [Path(checkpoint.model) for checkpoint in result[:2]] == [model, model]
    assert result[2].identity == {"model": "some/model"}  # a hub id has no files to verify
    for checkpoint in result:
        verify(checkpoint)
    (model / "tokenizer.json").unlink()
    with pytest.raises(EvaluationError, match=r"step_0: .*tokenizer\.json is missing"):
        verify(result[0])


def test_other_weights_have_another_identity(tmp_path: Path) -> None:
    folders = {name: export(tmp_path / name, 1) for name in "ab"}
    changed = from_model(str(export(tmp_path / "c", 1, weights=b"v")))
    first, same = (from_model(str(folder)) for folder in folders.values())
    assert first.files == same.files and first.identity == same.identity != changed.identity
    assert find(tmp_path / "a")[0].identity == find(tmp_path / "b")[0].identity


def test_a_model_without_weights_is_rejected(tmp_path: Path) -> None:
    folder = export(tmp_path, 1)
    (folder / "model.safetensors").unlink()
    with pytest.raises(EvaluationError, match=rf"--model={folder}: .*no weights"):
        from_model(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_a_missing_changed_or_added_file_is_rejected(tmp_path: Path, name: str) -> None:
    folder = export(tmp_path, 10)
    (checkpoint,) = find(tmp_path)
    verify(checkpoint)
    (folder / name).unlink()
    with pytest.raises(EvaluationError, match=f"{name} is missing"):
        verify(checkpoint)
    (folder / name).write_bytes(FILES[name][1:] + b".")
    with pytest.raises(EvaluationError, match=f"{name} has changed"):
        verify(checkpoint)
    (folder / name).write_bytes(FILES[name])
    (folder / "notes.md").write_text("no model reads this")
    verify(checkpoint)
    (folder / "special_tokens_map.json").write_text("{}")
    with pytest.raises(EvaluationError, match=r"special_tokens_map\.json was added"):
        verify(checkpoint)


@pytest.mark.parametrize(
    "manifest", [{"step": 20, "files": {"config.json": ""}}, {"step": 10}, [], {"files": {}}]
)
def test_a_manifest_of_another_step_or_without_files_is_an_error(
    tmp_path: Path, manifest: object
) -> None:
    write_json(export(tmp_path, 10) / "manifest.json", manifest)
    with pytest.raises(EvaluationError, match="step_10"):
        find(tmp_path)
