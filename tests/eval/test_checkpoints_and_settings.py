"""Which checkpoints count as done, and what makes two evaluations differ."""

import dataclasses
import json
from pathlib import Path

import pytest

from eval.benchmarks import BenchmarkRequest
from eval.checkpoints import find, from_model
from eval.errors import EvaluationError
from eval.settings import Settings, differences, from_run, shared_identity
from prompt_aug.templates import load_bank


def export(run: Path, step: int, *, done: bool = True, weights: bytes = b"w") -> Path:
    folder = run / "hf" / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    if done:
        (folder / "manifest.json").write_text(json.dumps({"step": step}))
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
    start = tmp_path / "run" / "hf" / "step_0"
    start.mkdir(parents=True)
    (start / "manifest.json").write_text(json.dumps({"step": 0, "model_path": str(model)}))
    relative = tmp_path / "run" / "hf" / "step_1"
    relative.mkdir()
    (relative / "manifest.json").write_text(
        json.dumps({"step": 1, "model_path": "../../../other/hf/step_7"})
    )
    found, _ = find(tmp_path / "run")
    assert [Path(checkpoint.model) for checkpoint in found] == [model, model]


def test_other_weights_are_another_identity(tmp_path: Path) -> None:
    one = from_model(str(export(tmp_path / "a", 1)))
    same = from_model(str(export(tmp_path / "b", 1)))
    other = from_model(str(export(tmp_path / "c", 1, weights=b"v")))
    assert one.identity == same.identity != other.identity


def test_steps_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    export(tmp_path, 10)
    with pytest.raises(EvaluationError, match=r"\[11\].*\[10\]"):
        find(tmp_path, [10, 11])
    with pytest.raises(EvaluationError, match=r"recipe\.export"):
        find(tmp_path / "empty")


def test_a_manifest_of_another_step_or_without_a_model_is_an_error(tmp_path: Path) -> None:
    folder = export(tmp_path / "a", 10)
    (folder / "manifest.json").write_text(json.dumps({"step": 20}))
    with pytest.raises(EvaluationError, match="step 20"):
        find(tmp_path / "a")
    (export(tmp_path / "b", 10) / "config.json").unlink()
    with pytest.raises(EvaluationError, match="no model"):
        find(tmp_path / "b")


def write_config(run: Path, text: str) -> Path:
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text(text)
    return run


def test_settings_come_from_the_run(tmp_path: Path) -> None:
    run = write_config(
        tmp_path,
        "recipe: {augment: {bank: my.yaml}}\n"
        "eval: {template: open-r1, temperature: 0.6, max_tokens: 64, max_model_len: null,\n"
        "  benchmarks: [{name: toy, path: t.parquet, samples: 4}]}\n",
    )
    assert from_run(run) == Settings(
        template="open-r1",
        bank="my.yaml",
        temperature=0.6,
        max_tokens=64,
        benchmarks=(BenchmarkRequest(name="toy", path="t.parquet", samples=4),),
    )


@pytest.mark.parametrize(
    "text",
    [
        "eval: {temprature: 0.6}",
        "eval: {temperature: -1}",
        "eval: {top_p: 0}",
        "eval: {max_tokens: 0}",
        "eval: {dtype: float8}",
        "eval: {max_tokens: many}",
        "eval: {benchmarks: [toy]}",
        "eval: {benchmarks: [{name: toy, file: x}]}",
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(EvaluationError):
        from_run(write_config(tmp_path, text))


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="--model"):
        from_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"template": "open-r1"},
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"max_tokens": 5},
        {"seed": 1},
        {"dtype": "bfloat16"},
        {"max_model_len": 99},
    ],
)
def test_every_setting_that_can_change_a_response_is_compared(change: dict[str, object]) -> None:
    bank, base = load_bank(), Settings()
    other = dataclasses.replace(base, **change)  # type: ignore[arg-type]
    old = shared_identity(base, bank[base.template], {"files": "x"})
    new = shared_identity(other, bank[other.template], {"files": "x"})
    changed = differences(old, new)
    assert any(line.startswith(next(iter(change))) for line in changed)


def test_settings_of_the_machine_are_not_compared() -> None:
    template = load_bank()["qwen-math"]
    one, other = Settings(), Settings(gpu_memory_utilization=0.5, tensor_parallel=4)
    assert not differences(shared_identity(one, template, {}), shared_identity(other, template, {}))


def test_a_reworded_template_of_the_same_name_is_another_one() -> None:
    template = load_bank()["qwen-math"]
    reworded = dataclasses.replace(template, system="Something else.")
    old, new = (shared_identity(Settings(), t, {}) for t in (template, reworded))
    assert [line.split(":")[0] for line in differences(old, new)] == ["template_sha256"]
    json.dumps(old)  # must be storable as it stands
