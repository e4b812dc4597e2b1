"""Settings of an evaluation: their sources, and which of them make two evaluations differ."""

import json
from pathlib import Path

import pytest

from eval import EvaluationError
from eval.benchmarks import BenchmarkRequest
from eval.settings import Settings, differences, folder_name, from_run, presets, shared_identity
from prompt_aug.base.errors import UserError
from prompt_aug.prompts import FORM, Prompts
from prompt_aug.templates import Template, load_bank
from prompt_aug.templates.format_checks import Rule


def write_config(run: Path, text: str) -> Path:
    (run / "config.yaml").write_text(text)
    return run


def test_settings_come_from_the_run(tmp_path: Path) -> None:
    run = write_config(
        tmp_path,
        "recipe: {augment: {bank: my.yaml}}\n"
        "eval: {template: open-r1, temperature: 0.6, max_tokens: 64, max_model_len: null,\n"
        "  benchmarks: [{name: toy, path: t.parquet, samples: 4}]}\n",
    )
    request = BenchmarkRequest(name="toy", path="t.parquet", samples=4)
    given = {"template": "open-r1", "bank": "my.yaml", "temperature": 0.6, "max_tokens": 64}
    assert from_run(run) == Settings(benchmarks=(request,), **given)


def test_templates_and_style_are_those_of_the_training(tmp_path: Path) -> None:
    run = write_config(tmp_path, "recipe: {augment: {style: auto, bank: gone.yaml}}\neval: {}\n")
    Prompts.from_section({"style": "raw"}).write(tmp_path / "prompts.yaml")
    settings = from_run(run)
    assert (settings.style, settings.bank) == ("raw", str(tmp_path / "prompts.yaml"))
    (tmp_path / "prompts.yaml").unlink()
    assert (from_run(run).style, from_run(run).bank) == ("auto", "gone.yaml")


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("temprature: 0.6", "temprature"),
        ("temperature: -1", "temperature=-1"),
        ("dtype: float8", "dtype=float8"),
        ("benchmarks: [toy]", r"benchmarks\[0\]=toy"),
        ("benchmarks: [{name: ../toy, path: a}]", r"benchmarks\[0\]\.name"),
        ("benchmarks: [{name: toy, samples: many}]", r"benchmarks\[0\]\.samples=many"),
    ],
)
def test_wrong_settings_are_rejected_by_key(tmp_path: Path, section: str, key: str) -> None:
    with pytest.raises(EvaluationError, match=key):
        from_run(write_config(tmp_path, f"eval: {{{section}}}"))


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="--model"):
        from_run(tmp_path)
    config = tmp_path / "config.yaml"
    for text in ("trainer: {total", "[1]", "eval: 3", "recipe: {augment: 3}"):
        config.write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml"):
            from_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *({"template": "open-r1"}, {"temperature": 0.5}, {"top_p": 0.9}, {"max_tokens": 5}),
        *({"seed": 1}, {"dtype": "bfloat16"}, {"max_model_len": 99}, {"style": "raw"}),
        *({"instruction": "user"}, {"chat": {"enable_thinking": False}}),
        *({"top_k": 20}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"stop": ["\n\n"]}),
        {"system_prompt": "Be short."},
    ],
)
def test_every_setting_that_can_change_a_response_is_compared(change: dict[str, object]) -> None:
    bank, base = load_bank(), Settings()
    varied = base.replaced(**change)
    old = shared_identity(base, bank[base.template])
    new = shared_identity(varied, bank[varied.template])
    assert any(line.startswith(next(iter(change))) for line in differences(old, new))
    assert folder_name(old) != folder_name(new)


def test_settings_of_the_machine_are_not_compared_but_the_template_is() -> None:
    template = load_bank()["qwen-math"]
    first, second = Settings(), Settings(gpu_memory_utilization=0.5, tensor_parallel=4, samples=8)
    old = shared_identity(first, template)
    assert old == shared_identity(second, template)
    # Another name would orphan the samples of earlier versions.
    made = Template(name="n", category="c", format=(Rule(weight=1.0, boxed=True),))
    assert folder_name(shared_identity(first, made)) == "qwen-math-t0-3b7d263b"
    changed = template.model_copy(update={"system": "Something else."})
    result = differences(old, shared_identity(first, changed))
    assert [line.split(":")[0] for line in result] == ["template_sha256"]
    json.dumps(old)  # must be storable


def test_stops_and_the_system_prompt_become_part_of_every_template() -> None:
    plain, base = Settings().prompts(), Settings(template="open-r1").prompts()
    changed = Settings(stop=("\n\n",), system_prompt="Be short.").prompts()
    assert {template.system for template in changed.bank.values()} == {"Be short."}
    for name, template in plain.bank.items():
        assert changed.bank[name].stop == (*template.stop, "\n\n")
    assert (plain.form.system, changed.form.system) == ("row", "template")  # also over a row's own
    assert base.bank == plain.bank


def test_a_preset_leaves_no_setting_of_the_protocol_to_the_run() -> None:
    sampling = {"extraction", "temperature", "top_p", "max_tokens", "max_model_len", "samples"}
    for name, preset in presets().items():
        assert preset.keys() >= {"bank", "template", *FORM, *sampling}, name
        assert Settings(**preset).greedy == (name in ("paper_prompt_aug", "paper_one_shot"))
