"""The notebook: well formed, its commands are those of scripts/smollm2.sh, and its cells run.

The cells that fetch are replaced by a few questions and a two-layer Llama with random weights and
SmolLM2's tokenizer. Its vocabulary has 49,152 entries, the toy's 260: sizes, buckets and samplers
that suit the toy alone fail here.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from page_commands import Command, commands_of

from prompt_aug.base.files import read_lines
from prompt_aug.questions import make_question, write_parquet
from recipe.config.compose import compose_config
from recipe.run.folder import RunFolder, read_metrics

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "examples" / "smollm2.ipynb").read_text("utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
SMALL = (  # untrained weights do not end a response: every one has 96 tokens
    " data.train_batch_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=4"
)
SHELL = re.compile(r"^[!%](?:.*\\\n)*.*$", re.MULTILINE)


def commands() -> list[Command]:
    lines = [line[1:] for cell in CODE for line in SHELL.findall("".join(cell["source"]))]
    return commands_of("```\n" + "\n".join(lines) + "\n```\n")


def test_the_notebook_is_well_formed() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in CODE:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        ast.parse(SHELL.sub("", "".join(cell["source"])))


def test_its_commands_are_those_of_the_script() -> None:
    script = (ROOT / "scripts" / "smollm2.sh").read_text("utf-8")
    assert [command.name for command in commands()] == [
        *("scripts/smollm2.py", "scripts/smollm2.py"),
        *("recipe.train", "recipe.export", "eval.sweep", "eval.report"),
    ]
    for command in commands():
        called = command.name if command.name.endswith(".py") else f"-m {command.name}"
        assert f'"$python" {called} {command.arguments[0]}'.removesuffix(" runs/notebook") in script


@pytest.mark.config
def test_its_training_is_the_example_with_two_steps() -> None:
    (train,) = (c for c in commands() if c.name == "recipe.train")
    example, *overrides = train.arguments
    ours, usual = compose_config(example, overrides), compose_config(example, [])
    changed = {text.partition("=")[0] for text in overrides} - {"method"}
    assert len(changed) == 5
    for key in changed:
        assert OmegaConf.select(ours, key) != OmegaConf.select(usual, key), key
    assert ours.trainer.total_training_steps == ours.trainer.save_freq == 2


def write_two_layers(folder: Path) -> None:
    from smollm2 import write_tokenizer  # scripts/smollm2.py
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    write_tokenizer(folder)
    config = LlamaConfig(
        hidden_size=576,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=2,
    )
    set_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_its_cells_run_with_a_real_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [
        make_question(
            text=f"Ann has {n} pens and buys {n}. How many?", answers=[f"{2 * n}"], source="pens"
        )
        for n in range(2, 34)
    ]
    data = tmp_path / "data" / "smollm2"
    data.mkdir(parents=True)
    write_parquet(questions, data / "train.parquet")
    write_parquet(questions[:4], data / "asdiv_a.parquet")
    write_two_layers(tmp_path / "models" / "smollm2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECIPE_MACHINE", "cpu")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    sources = ["".join(cell["source"]) for cell in CODE]
    (train,) = (place for place, source in enumerate(sources) if "recipe.train" in source)
    assert "IFrame" in sources[-1]  # needs Jupyter
    for source in sources[train:-1]:
        for command in SHELL.findall(source):
            more = SMALL if "recipe.train" in command else ""
            subprocess.run(["bash", "-e", "-c", command.removeprefix("!") + more], check=True)
        exec(compile(SHELL.sub("", source), "cell", "exec"), {})

    run = tmp_path / "runs" / "notebook"
    first, second = read_metrics(run)
    assert first["train/responses"] == second["train/responses"] == 32
    assert np.isfinite(first["actor/grad_norm"])
    # Random weights draw from the whole vocabulary, nearly uniformly: log 49,152 = 10.8 nats.
    assert 9.5 < first["train/entropy"] < 10.81
    assert first["rollout_corr/kl"] < 0.02
    rollouts = read_lines(RunFolder(run).rollouts(1))
    assert len({row["response"] for row in rollouts}) > 16
    assert capsys.readouterr().out.count("gold ") == 4
    assert (run / "report" / "index.html").is_file()
