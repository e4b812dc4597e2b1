"""One step of a two-layer Llama with SmolLM2's tokenizer, whose vocabulary has 49,152 entries.

The toy model has 260: sizes, buckets and samplers that suit it alone fail here.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prompt_aug.base.files import read_lines
from prompt_aug.questions import make_question, write_parquet
from recipe.run.folder import RunFolder, read_metrics

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    folder = tmp_path_factory.mktemp("real") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        importlib.import_module("smollm2").write_tokenizer(folder)
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
    return folder


def test_a_step_with_a_real_vocabulary(model: Path, tmp_path: Path) -> None:
    questions = [
        make_question(
            text=f"Ann has {n} pens and buys {n}. How many?", answers=[f"{2 * n}"], source="pens"
        )
        for n in range(2, 10)
    ]
    data = tmp_path / "pens.parquet"
    write_parquet(questions, data)
    command = [
        *(sys.executable, "-m", "recipe.train", "smollm2", "machine=cpu"),
        *(f"recipe.run_dir={tmp_path / 'run'}", f"recipe.model_path={model}"),
        *(f"data.train_files=[{data}]", f"data.val_files=[{data}]", "data.train_batch_size=8"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "data.max_response_length=16"),
        *("trainer.total_training_steps=1", "trainer.save_freq=-1", "trainer.test_freq=1"),
        "trainer.val_before_train=false",
    ]
    subprocess.run(command, check=True, cwd=tmp_path)
    (line,) = read_metrics(tmp_path / "run")
    assert line["train/responses"] == 64
    assert np.isfinite(line["actor/grad_norm"])
    # Random weights draw from the whole vocabulary, nearly uniformly: log 49,152 = 10.8 nats.
    assert 9.5 < line["train/entropy"] < 10.81
    assert line["rollout_corr/kl"] < 0.02
    rollouts = read_lines(RunFolder(tmp_path / "run").rollouts(1))
    assert len({row["response"] for row in rollouts}) > 32
