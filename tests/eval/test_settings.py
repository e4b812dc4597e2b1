"""What is asked, where it comes from, and what makes two evaluations differ."""

import dataclasses
import json
from pathlib import Path

import pytest

from eval.benchmarks import BenchmarkRequest
from eval.errors import EvaluationError
from eval.settings import (
    Settings,
    differences,
    folder_name,
    from_run,
    presets,
    shared_identity,
)
from prompt_aug.prompts import FORM, Prompts
from prompt_aug.templates import load_bank


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
        "eval: {temperature: .nan}",
        "eval: {temperature: .inf}",
        "eval: {samples: 100000000}",
        "eval: {samples: 0}",
        "eval: {style: plain}",
        "eval: {tensor_parallel: 0}",
        "eval: {benchmarks: [{name: toy, path: ''}]}",
        "eval: {benchmarks: [{name: toy, path: x, samples: many}]}",
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
        {"style": "raw"},
        {"instruction": "user"},
        {"chat": {"enable_thinking": False}},
    ],
)
def test_every_setting_that_can_change_a_response_is_compared(change: dict[str, object]) -> None:
    bank, base = load_bank(), Settings()
    other = dataclasses.replace(base, **change)  # type: ignore[arg-type]
    old = shared_identity(base, bank[base.template])
    new = shared_identity(other, bank[other.template])
    changed = differences(old, new)
    assert any(line.startswith(next(iter(change))) for line in changed)
    assert folder_name(old) != folder_name(new)


def test_settings_of_the_machine_are_not_compared() -> None:
    template = load_bank()["qwen-math"]
    one, other = Settings(), Settings(gpu_memory_utilization=0.5, tensor_parallel=4, samples=8)
    assert not differences(shared_identity(one, template), shared_identity(other, template))


def test_a_reworded_template_of_the_same_name_is_another_one() -> None:
    template = load_bank()["qwen-math"]
    reworded = template.model_copy(update={"system": "Something else."})
    old, new = (shared_identity(Settings(), t) for t in (template, reworded))
    assert [line.split(":")[0] for line in differences(old, new)] == ["template_sha256"]
    json.dumps(old)  # must be storable as it stands


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_made_of_settings(name: str) -> None:
    settings = Settings(**presets()[name])
    assert settings.greedy == (name == "paper_prompt_aug")
    sampling = {"extraction", "temperature", "top_p", "max_tokens", "max_model_len", "samples"}
    assert presets()[name].keys() >= {"bank", "template", *FORM, *sampling}  # nothing of the run's


def test_presets_are_the_papers_protocols() -> None:
    protocols = {
        name: (p["style"], p["extraction"], p["max_tokens"], p["samples"])
        for name, p in presets().items()
    }
    assert protocols == {
        "paper_prompt_aug": ("chat", "strict", 3000, 5),
        "paper_ta_grpo": ("bare", "strict", 3072, 128),
        "paper_cw_grpo": ("chat", "last_number", 32768, 1),
    }


def test_templates_and_style_are_those_of_the_training(tmp_path: Path) -> None:
    run = write_config(tmp_path, "recipe: {augment: {style: auto, bank: gone.yaml}}\neval: {}\n")
    Prompts.from_section({"style": "raw"}).write(tmp_path / "prompts.yaml")
    settings = from_run(run)
    assert (settings.style, settings.bank) == ("raw", str(tmp_path / "prompts.yaml"))
    (tmp_path / "prompts.yaml").unlink()
    assert (from_run(run).style, from_run(run).bank) == ("auto", "gone.yaml")
