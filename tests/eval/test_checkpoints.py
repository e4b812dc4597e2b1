"""Which checkpoints count as done, and that they are what was exported."""

import json
import os
from pathlib import Path

import pytest

from eval import checkpoints
from eval.checkpoints import Digests, find, from_model, verify
from eval.errors import EvaluationError
from prompt_aug.base.files import digests

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
        manifest = {"step": step, "files": digests(list(folder.iterdir()), folder)}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_only_exports_with_a_manifest_count_and_the_others_are_named(tmp_path: Path) -> None:
    for step in (10, 2, 30):
        export(tmp_path, step, done=step != 30)
    (tmp_path / "hf" / ".step_40.tmp").mkdir()
    found, notes = find(tmp_path)
    assert [checkpoint.step for checkpoint in found] == [2, 10]
    assert len(notes) == 1 and "step_30" in notes[0]


def test_a_manifest_may_name_weights_elsewhere(tmp_path: Path) -> None:
    model = export(tmp_path / "other", 7)
    files = json.loads((model / "manifest.json").read_text())["files"]
    for step, path in ((0, str(model)), (1, "../../../other/hf/step_7")):
        folder = tmp_path / "run" / "hf" / f"step_{step}"
        folder.mkdir(parents=True)
        record = {"step": step, "model_path": path, "files": files}
        (folder / "manifest.json").write_text(json.dumps(record))
    found, _ = find(tmp_path / "run")
    assert [Path(checkpoint.model) for checkpoint in found] == [model, model]
    for checkpoint in found:
        verify(checkpoint, Digests())
    (model / "tokenizer.json").unlink()
    with pytest.raises(EvaluationError, match=r"step_0: .*tokenizer\.json is missing"):
        verify(found[0], Digests())


def test_a_hub_id_has_no_files_to_look_at(tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "step_0"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"step": 0, "model_path": "some/model"}))
    (checkpoint,), _ = find(tmp_path)
    verify(checkpoint, Digests())
    assert checkpoint.identity == {"model": "some/model"}


def test_other_weights_are_another_identity(tmp_path: Path) -> None:
    one = from_model(str(export(tmp_path / "a", 1)))
    same = from_model(str(export(tmp_path / "b", 1)))
    other = from_model(str(export(tmp_path / "c", 1, weights=b"v")))
    assert one.identity["files"] != other.identity["files"]
    (exported,), _ = find(tmp_path / "a")
    (again,), _ = find(tmp_path / "b")
    assert exported.identity == again.identity
    assert {**one.files, "manifest.json": ""} == {**same.files, "manifest.json": ""}


@pytest.mark.parametrize("name", FILES)
def test_an_export_without_one_of_its_files_is_not_scored(tmp_path: Path, name: str) -> None:
    folder = export(tmp_path, 10)
    (checkpoint,), _ = find(tmp_path)
    verify(checkpoint, Digests())
    (folder / name).unlink()
    with pytest.raises(EvaluationError, match=f"{name} is missing"):
        verify(checkpoint, Digests())
    (folder / name).write_bytes(b"of another step")
    with pytest.raises(EvaluationError, match=f"{name} is another file"):
        verify(checkpoint, Digests())


def test_another_steps_weights_under_this_steps_manifest_are_not_scored(tmp_path: Path) -> None:
    export(tmp_path, 10)
    other = export(tmp_path, 20, weights=b"WEIGHTS")  # the same length
    (tmp_path / "hf" / "step_10" / "model.safetensors").write_bytes(
        (other / "model.safetensors").read_bytes()
    )
    first, second = find(tmp_path)[0]
    verify(second, Digests())
    with pytest.raises(EvaluationError, match=r"step_10.*model\.safetensors is another file"):
        verify(first, Digests())


def test_a_file_that_was_put_beside_the_export_is_refused(tmp_path: Path) -> None:
    folder = export(tmp_path, 10)
    (checkpoint,), _ = find(tmp_path)
    (folder / "notes.md").write_text("no model reads this")
    verify(checkpoint, Digests())
    (folder / "special_tokens_map.json").write_text("{}")
    with pytest.raises(EvaluationError, match=r"special_tokens_map\.json was added"):
        verify(checkpoint, Digests())


def test_a_big_file_is_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "REMEMBERED_BYTES", 4)
    path, memo, read = tmp_path / "weights", tmp_path / "memo.json", []
    monkeypatch.setattr(checkpoints, "sha256", lambda p: read.append(p) or p.read_text())
    path.write_text("first")
    for _ in range(2):
        assert Digests(memo).of(path) == "first"
    assert len(read) == 1
    path.write_text("other")  # as long, and with the old time
    os.utime(path, ns=(1, 1))
    assert Digests(memo).of(path) == "other"
    memo.write_text("torn {")
    assert Digests(memo).of(path) == "other" and len(read) == 3


def test_steps_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    export(tmp_path, 10)
    with pytest.raises(EvaluationError, match=r"\[11\].*\[10\]"):
        find(tmp_path, [10, 11])
    with pytest.raises(EvaluationError, match=r"recipe\.export"):
        find(tmp_path / "empty")


@pytest.mark.parametrize(
    "manifest", [{"step": 20, "files": {"config.json": ""}}, {"step": 10}, [], {"files": {}}]
)
def test_a_manifest_of_another_step_or_without_files_is_an_error(
    tmp_path: Path, manifest: object
) -> None:
    folder = export(tmp_path, 10)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EvaluationError, match="step_10"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("some/model-1.5B", "some--model-1.5B"),
        ("a b", "a--b"),
        ("../x/..", "x"),  # no folder is there: the text, without what leads out of one
        ("/../", "model"),
        ("models/mine", "mine"),  # a folder: its own name
        ("models/mine/..", "models"),
    ],
)
def test_a_model_has_the_name_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert checkpoints.Checkpoint(step=None, model=model, identity={}).name == name
