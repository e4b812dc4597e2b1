"""Which steps are exported, what "done" means, and that a kill at any moment ends right.

The conversion itself is replaced by one that copies a text, so that no test here needs verl;
test_merger.py runs the real one.
"""

import argparse
import errno
import json
import os
import signal
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from prompt_aug.base.files import lock
from recipe.export import __main__ as export


def write_shard(path: Path, text: str) -> None:
    """A whole file as torch.save writes it, an archive, with `text` in place of tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights", text)


def read_shard(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read("weights").decode()


def make_run(folder: Path, steps: tuple[int, ...] = (2, 4), latest: int = 4) -> Path:
    """A run folder whose shards are short texts."""
    model = folder / "start"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    run = folder / "run"
    run.mkdir()
    settings = {"model": {"path": str(model)}, "rollout": {"dtype": "float32"}}
    (run / "config.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": settings}))
    for step in steps:
        actor = run / "checkpoints" / f"global_step_{step}" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "huggingface" / "config.json").write_text('{"dtype": "bfloat16"}')
        write_shard(actor / "model_world_size_1_rank_0.pt", f"weights of {step}")
        (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(latest))
    return run


def shard_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt"


def copy_weights(source: Path, target: Path, dtype: str, world_size: int, lora: object) -> int:
    """The stand-in for merging and verifying: refuses what says "damaged"."""
    text = read_shard(source / "model_world_size_1_rank_0.pt")
    (target / "model.safetensors").write_text(f"{text} as {dtype}")
    if text == "damaged":
        raise export.ExportError("the shard is damaged")
    return 7


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the conversion; the list grows by the step of each one that really ran."""
    steps: list[int] = []

    def convert(source: Path, *others: object) -> int:
        steps.append(int(source.parent.name.removeprefix("global_step_")))
        return copy_weights(source, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "convert", convert)
    return steps


def weights(run: Path, step: int) -> str:
    return (run / "hf" / f"step_{step}" / "model.safetensors").read_text()


def manifest(run: Path, step: int) -> dict[str, object]:
    return json.loads((run / "hf" / f"step_{step}" / "manifest.json").read_text())


def test_all_steps_and_the_start_model(tmp_path: Path, converted: list[int]) -> None:
    run = make_run(tmp_path, steps=(0, 2, 4))  # a checkpoint of step 0 is the start model
    assert export.main([str(run)]) == 0
    assert converted == [2, 4]
    assert weights(run, 4) == "weights of 4 as float32"
    record = manifest(run, 4)
    # sha256 of the text above, by `printf 'weights of 4 as float32' | sha256sum`
    assert record["files"] == {"model.safetensors": SHA_OF_STEP_4}
    assert (record["step"], record["dtype"], record["parameters"]) == (4, "float32", 7)
    assert record["source"] == "checkpoints/global_step_4/actor"
    start = manifest(run, 0)
    assert (start["step"], start["model_path"]) == (0, str(tmp_path / "start"))
    assert [path.name for path in (run / "hf" / "step_0").iterdir()] == ["manifest.json"]


SHA_OF_STEP_4 = "0ce7015515a19907ef5c2da5ed74b07a55ac521344b807406e6906ff3aa02288"


def test_shards_written_anew_are_exported_anew(tmp_path: Path, converted: list[int]) -> None:
    run = make_run(tmp_path)
    export.main([str(run)])
    shard = shard_of(run, 4)
    os.utime(shard, (1, 1))  # restored with its old time, the same content: nothing to do
    export.main([str(run)])
    assert converted == [2, 4]
    write_shard(shard, "other weights of 4")
    os.utime(shard, (1, 1))
    export.main([str(run)])
    assert converted == [2, 4, 4]
    assert weights(run, 4) == "other weights of 4 as float32"


def test_a_checkpoint_that_is_not_finished_is_ignored_with_a_note(
    tmp_path: Path, converted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, steps=(2, 4, 10), latest=4)
    assert export.main([str(run)]) == 0
    assert converted == [2, 4]
    assert "global_step_10 is ignored" in capsys.readouterr().err
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").unlink()
    sources, notes = export.find(run)
    assert sources == {0: None} and "has no saved step" in notes[-1]


def written(name: str, text: str) -> Callable[[Path], object]:
    """A change of the folder of a shard: another file `name`."""
    return lambda shard: (shard.parent / name).write_text(text)


def one_byte(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes().replace(b"weights of", b"weightt of"))


@pytest.mark.parametrize(
    ("change", "message", "tried"),
    [
        (lambda shard: write_shard(shard, "damaged"), "step 2: the shard is damaged", True),
        (one_byte, "differs from its checksum", False),
        (written("fsdp_config.json", '{"world_size": 2}'), "size_2_rank_0.pt is missing", False),
        (written("model_world_size_1_rank_0.pt", "PK"), "rank_0.pt is cut: the", False),
        (
            written("lora_train_meta.json", '{"r": 8}'),
            "r=8 and lora_alpha=None, but config.yaml has 0",
            False,
        ),
    ],
)
def test_a_step_that_cannot_be_exported_leaves_the_others_done(
    tmp_path: Path,
    converted: list[int],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], object],
    message: str,
    tried: bool,
) -> None:
    run = make_run(tmp_path)
    change(shard_of(run, 2))
    assert export.main([str(run)]) == 1
    assert message in capsys.readouterr().err
    assert converted == ([2, 4] if tried else [4])
    assert weights(run, 4) == "weights of 4 as float32"
    assert sorted(p.name for p in (run / "hf").iterdir()) == [".locks", "step_0", "step_4"]


def test_another_dtype_than_the_exported_one_is_refused(
    tmp_path: Path, converted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    export.main([str(run), "--steps", "4"])
    assert export.main([str(run), "--steps", "4", "--dtype", "bfloat16"]) == 1
    assert "is done as float32: delete it" in capsys.readouterr().err
    assert converted == [4]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("Error while serializing: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_ends_the_export_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    run, tried = make_run(tmp_path), []

    def convert(source: Path, *_: object) -> int:
        tried.append(source)
        raise error

    monkeypatch.setattr(export, "convert", convert)
    assert export.main([str(run)]) == 1
    lines = [x for x in capsys.readouterr().err.splitlines() if f"{run / 'hf'}: No space" in x]
    assert len(tried) == len(lines) == 1 and not caplog.records


def test_a_folder_that_is_not_writable_is_one_line(
    tmp_path: Path,
    converted: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != run / "hf")  # root may write
    assert export.main([str(run)]) == 1
    assert capsys.readouterr().err.count(f"{run / 'hf'}: not writable") == 1 and not converted


def test_the_dtype_is_the_stated_one_else_that_of_the_rollouts(tmp_path: Path) -> None:
    source = export.find(make_run(tmp_path))[0][2]
    assert source is not None
    rollouts = {"actor_rollout_ref": {"rollout": {"dtype": "float32"}}}
    automatic = {"actor_rollout_ref": {"rollout": {"dtype": "auto"}}}
    assert export.choose_dtype(rollouts, source, "bfloat16") == "bfloat16"
    assert export.choose_dtype(rollouts, source, None) == "float32"
    assert export.choose_dtype(automatic, source, None) == "bfloat16"  # of config.json
    half = {"actor_rollout_ref": {"rollout": {"dtype": "float16"}}}
    with pytest.raises(export.ExportError, match="float16 is not one of"):
        export.choose_dtype(half, source, None)


def test_two_exports_exclude_each_other_by_step_and_not_the_training(
    tmp_path: Path, converted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    with lock(run):  # a live training
        assert export.main([str(run), "--steps", "2"]) == 0
    for step in (0, 2, 4):
        (run / "hf" / f"step_{step}" / "manifest.json").unlink(missing_ok=True)
    with lock(run / "hf" / ".locks" / "step_4") as held:  # another job of the array
        assert export.main([str(run)]) == 0
        assert "step 4: another export is at work on it" in capsys.readouterr().err
        assert converted == [2, 2]
        named = argparse.Namespace(run=run, steps=[4], dtype=None, accept=[])
        with ThreadPoolExecutor() as pool:
            task = pool.submit(export.export, named)
            with pytest.raises(TimeoutError):  # it waits for a step that is named
                task.result(timeout=1.5)
            held.close()
            assert task.result(timeout=60) == 0
    assert converted == [2, 2, 4]


STEP, RENAME, REPLACE = "step_4", Path.rename, Path.replace


def die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def converted_half(source: Path, *others: Any) -> int:
    copy_weights(source, *others)
    return die() if "global_step_4" in str(source) else 7


# Moment -> what is replaced there, by a function that kills its process with SIGKILL.
MOMENTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "in the start model": (Path, "replace", die),
    "in the conversion": (export, "convert", converted_half),
    "before the rename": (
        Path,
        "rename",
        lambda p, to: die() if to.name == STEP else RENAME(p, to),
    ),
    "after the rename": (Path, "rename", lambda p, to: (RENAME(p, to), to.name == STEP and die())),
    # The bytes are written beside; the rename that makes them the manifest does not come.
    "in the manifest": (
        Path,
        "replace",
        lambda p, to: die() if to.parent.name == STEP else REPLACE(p, to),
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_and_run_again_it_ends_right(
    tmp_path: Path, converted: list[int], moment: str
) -> None:
    """Killed in a fork, where a start takes milliseconds."""
    run = make_run(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            setattr(*MOMENTS[moment])
            export.main([str(run)])
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not (run / "hf" / "step_4" / "manifest.json").exists()  # a half folder is not "done"
    assert export.main([str(run)]) == 0
    assert converted == ([2, 4] if moment == "in the start model" else [4])
    for step in (2, 4):
        assert weights(run, step) == f"weights of {step} as float32"
    assert [p.name for p in (run / "hf").glob(".step_*")] == []
    assert manifest(run, 4)["files"] == {"model.safetensors": SHA_OF_STEP_4}
