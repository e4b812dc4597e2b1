"""The plan of a run against numbers worked out by hand, for the shape of Qwen2.5-Math-1.5B."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from abbreviations import SHORT
from tiny_lora import RANK, tuned
from transformers import AutoConfig, AutoModelForCausalLM

from recipe import plan as command
from recipe.config.shapes import GPUS, shape_of
from recipe.errors import ConfigError
from recipe.preflight import estimate
from recipe.preflight.estimate import Work
from recipe.preflight.lora import LAYERS

PAGE = Path(__file__).parents[2] / "examples" / "SIZES.md"
SHAPE = shape_of("Qwen/Qwen2.5-Math-1.5B")
# examples/prompt_aug on eight GPUs.
WORK = Work(
    shape=SHAPE, gpu=GPUS["h100-80"], gpus=8, shards=8, tensor_parallel=1, questions=128,
    responses=8, prompt=1024, response=3072,
    mean_prompt=200, mean_response=1000, micro_tokens=16384, epochs=1, reference=False,
    packed_mask=True, utilisation=0.6, sequences=1024, steps=2720, validation=500, validations=136,
)  # fmt: skip


def test_parameters_are_those_that_the_models_are_known_by() -> None:
    # 151,936 x 1,536 + 28 x 46,797,824 + 1,536; a layer is 2,360,832 (q and its bias) + 2 x 393,472
    # (k, v) + 2,359,296 (o) + 3 x 1,536 x 8,960 (MLP) + 3,072 (norms).
    assert SHAPE.layer == 2_360_832 + 2 * 393_472 + 2_359_296 + 41_287_680 + 3_072 == 46_797_824
    assert SHAPE.parameters == 1_543_714_304
    assert shape_of("Qwen/Qwen2.5-Math-7B").parameters == 7_615_616_512
    untied = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B").parameters
    assert untied == 1_543_714_304 + 233_373_696
    assert shape_of("Qwen/Qwen3-1.7B").parameters == 1_720_574_976


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_a_folder_are_counted_as_transformers_counts(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    sizes = {
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied,
    }  # fmt: skip
    if kind not in ("qwen2", "llama"):
        sizes["head_dim"] = 10
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    model.config.save_pretrained(tmp_path)
    counted = sum(p.numel() for p in model.parameters())
    assert shape_of(str(tmp_path)).parameters == pytest.approx(counted, rel=0.01)


def test_values_that_a_config_json_leaves_out_are_those_of_transformers(tmp_path: Path) -> None:
    """As on the hub: text_config of gemma-3-4b-it, config.json of gemma-3-1b-it."""
    given = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3}
    own = AutoConfig.for_model("gemma3_text", **given)
    inner = {"model_type": "gemma3_text", **given}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inner}))
    shape = shape_of(str(tmp_path))
    heads = (own.num_attention_heads, own.num_key_value_heads, own.head_dim)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == heads
    assert (shape.vocab, shape.tied) == (own.vocab_size, own.tie_word_embeddings)


def test_a_model_in_the_cache_of_hugging_face_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--someone--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    inner = {"model_type": "gemma", "head_dim": 16, "vocab_size": 50, "hidden_size": 24}
    inner |= {"intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps({"text_config": inner}))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert shape_of("someone/model").head_dim == 16


def test_an_unknown_model_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json .*Qwen/Qwen3-1\.7B"):
        shape_of("someone/model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ConfigError, match="mamba: it has no hidden_size"):
        shape_of(str(tmp_path))


def test_the_actors_memory_by_hand() -> None:
    memory = estimate.actor_memory(WORK)
    assert memory["states"] == 16 * 1_543_714_304 / 8 == 3_087_428_608
    assert memory["gathered"] == 2 * (233_373_696 + 2 * 46_797_824) == 653_938_688
    # 16,384 tokens: 28 x 3,072 bytes of checkpoints, 2 x (12,288 + 35,840) of one layer
    assert memory["activations"] == 16_384 * (86_016 + 96_256) == 2_986_344_448
    assert memory["logits"] == 16_384 * 151_936 * 4 + 8 * 1_024 * 151_936 == 11_201_937_408
    assert memory["mask"] == 16_384**2
    assert sum(memory.values()) == 18_198_084_608
    flash = estimate.actor_memory(dataclasses.replace(WORK, packed_mask=False))
    assert sum(memory.values()) - sum(flash.values()) == 16_384**2
    assert estimate.checkpoint_bytes(SHAPE, 0, False) == 18_524_571_648  # 12 bytes per parameter
    copies = estimate.actor_memory(dataclasses.replace(WORK, gpus=16))  # two of them
    assert copies["states"] == memory["states"]


def test_a_critic_is_a_second_model() -> None:
    work = dataclasses.replace(WORK, critic=True, values=True)
    actor, both = (estimate.actor_memory(w)["states"] for w in (WORK, work))
    assert both == 2 * actor
    assert estimate.checkpoint_bytes(SHAPE, 0, True) == 2 * 18_524_571_648
    seconds = estimate.actor_seconds(work)
    # One forward pass for the values; the update as the actor's.
    assert seconds["critic"] == pytest.approx(
        seconds["log-probs"] / (1 + WORK.reference) + seconds["update"]
    )
    assert "critic" not in estimate.actor_seconds(WORK)


def test_offloaded_states_are_off_the_gpu() -> None:
    def stay(**changes: bool) -> tuple[float, float]:
        work = dataclasses.replace(WORK, gpus=1, shards=1, **changes)
        states = estimate.actor_memory(work)["states"]
        return states / SHAPE.parameters, estimate.beside_engine(work) / SHAPE.parameters

    # Bytes per parameter in the update, with gradients, and beside the engine, without them.
    assert stay() == (16, 12) and stay(critic=True) == (32, 24)
    assert stay(param_offload=True) == (16, 8) and stay(optimizer_offload=True) == (16, 4)
    assert stay(param_offload=True, optimizer_offload=True, critic=True) == (32, 0)
    assert stay(offload_policy=True) == (0, 0)
    lora = dataclasses.replace(WORK, gpus=1, shards=1, adapter=10, optimizer_offload=True)
    assert estimate.beside_engine(lora) == 4 * (SHAPE.parameters + 10)


def test_lora_by_hand() -> None:
    # 28 layers x 8 x (q and o 2 x 3,072, k and v 2 x 1,792, MLP 3 x 10,496), and without k
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert SHAPE.adapter(8, layers) == 28 * 8 * (6_144 + 3_584 + 31_488) == 9_232_384
    assert SHAPE.adapter(8, layers[2:] + layers[:1]) == 28 * 8 * (6_144 + 1_792 + 31_488)
    work = dataclasses.replace(WORK, adapter=9_232_384)
    # 4 bytes per parameter of the model, 16 (in a checkpoint 12) per parameter of the adapter
    states = 6_174_857_216 + 147_718_144
    assert estimate.actor_memory(work)["states"] == states / 8
    assert estimate.checkpoint_bytes(SHAPE, 9_232_384, False) == 6_174_857_216 + 110_788_608
    full, part = (estimate.actor_seconds(w) for w in (WORK, work))
    # no gradient of the model's parameters: 2 operations per token and parameter
    saved = 1_228_800 * 2 * 1_543_714_304 / (8 * 989e12 * 0.35)
    assert full["update"] - part["update"] == pytest.approx(saved)
    assert full["log-probs"] == part["log-probs"]


def test_the_parameters_of_lora_are_those_that_peft_counts(tmp_path: Path) -> None:
    model = tuned(head_dim=10)  # not hidden size / heads
    model.config.save_pretrained(tmp_path)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert shape_of(str(tmp_path)).adapter(RANK, LAYERS) == trained > 0


def test_the_cache_by_hand() -> None:
    assert SHAPE.kv_bytes == 2 * 28 * 2 * 128 * 2 == 28_672
    # 0.6 x 79.6 GiB - 3.087 GB of weights - 4 GiB = 43.8995 GB
    assert estimate.cache_tokens(WORK) == 1_531_093
    assert estimate.at_once(WORK) == 1024  # 1275 fit, the engine takes 1024
    small = dataclasses.replace(WORK, utilisation=0.1)  # 8.5 GB: the weights and little else
    assert estimate.cache_tokens(small) == 40_617
    assert estimate.at_once(small) == 33


@pytest.mark.parametrize(("responses", "waves"), [(8 * 33, 1), (8 * 33 + 1, 2), (1024, 4)])
def test_waves_by_hand(responses: int, waves: int) -> None:
    small = dataclasses.replace(WORK, utilisation=0.1)  # 33 sequences at once in each of 8 engines
    assert estimate.waves(responses, small) == waves


def test_the_hours_by_hand() -> None:
    # 128 sequences in each engine: weights 3.0874 GB and 128 x 700 x 28,672 = 2.5690 GB of cache,
    # at 1.675 TB/s 3.3769 ms for each of 1,000 tokens; then 2,072 tokens at 1.8432 ms.
    rollouts = estimate.rollout_seconds(1024, WORK)
    assert rollouts == pytest.approx(3.3769 + 3.8192, abs=2e-3)
    # A sweep in one engine: 1,000 waves of 1,024 sequences, whose 1,000 tokens read 3.0874 GB and
    # 1,024 x 700 x 28,672 = 20.552 GB each: 14.113 ms.
    assert "1,024,000 responses: 3.9 h on 1 GPU" in command.hour_lines(WORK, 1_024_000)[2]
    # 1,228,800 tokens x (3.0874e9 + 4 x 16,384 x 1,536 x 28 = 2.8186e9) = 7.2572e15 forward, at
    # 8 x 989e12 x 0.35 = 2.7692e15 per second; the update is four times that.
    seconds = estimate.actor_seconds(WORK)
    assert seconds["log-probs"] == pytest.approx(2.6207, abs=1e-3)
    assert seconds["update"] == pytest.approx(4 * 2.6207, abs=4e-3)
    referenced = dataclasses.replace(WORK, reference=True, epochs=2)
    again = estimate.actor_seconds(referenced)
    assert again["log-probs"] == 2 * seconds["log-probs"]
    assert again["update"] == 2 * seconds["update"]


def test_what_does_not_fit_is_said() -> None:
    assert not [line for line in command.memory_lines(WORK) if line.startswith("NO")]
    large = dataclasses.replace(SHAPE, layers=280)
    work = dataclasses.replace(WORK, shape=large, gpu=GPUS["a100-40"])
    said = "\n".join(command.memory_lines(work))
    assert "the actor wants" in said and "beside the engine" in said
    assert "does not hold one longest sequence" in said and "ppo_max_token_len_per_gpu" in said
    one = "\n".join(command.memory_lines(dataclasses.replace(work, gpus=1, shards=1)))
    assert "or train LoRA" in one and "ppo_max_token_len_per_gpu" not in one  # would not help


@pytest.mark.config
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["prompt_aug", "--gpus", "16", "data.max_response_length=3000"]) == 0
    said = capsys.readouterr().out
    assert "1,543,714,304" in said and "16 x h100-80" in said and "18.5 GB" in said
    assert "mean response 1500 tokens" in said and "35% of the peak" in said
    nodes = ["trainer.nnodes=2", "trainer.n_gpus_per_node=8"]
    policy = "actor_rollout_ref.actor.fsdp_config.offload_policy=true"
    assert command.main(["ta_grpo", *nodes, policy]) == 0
    said = capsys.readouterr().out
    assert "16 x h100-80" in said and "states 0.0" in said
    assert "reference      6.4 GiB of host memory" in said  # 4 x 1,720,574,976 bytes
    model = "actor_rollout_ref.model.path=Qwen/Qwen2.5-Math-7B"
    assert command.main(["prompt_aug", model]) in (0, 1)
    said = capsys.readouterr().out
    assert "7,615,616,512" in said and "prompt_aug: Qwen/Qwen2.5-Math-7B on" in said
    assert command.main(["toy"]) == 1
    assert "recipe.model_path: not set" in capsys.readouterr().err
    assert command.main(["prompt_aug", "--gpu", "H200", "--sweep", "9"]) == 0
    said = capsys.readouterr().out
    assert "8 x h200-141" in said and "a checkpoint, 9 responses" in said
    smallest = "--gpus 1 --mean-response 1 --validation 0 --mfu 1 --traffic 1"
    assert command.main(["prompt_aug", *smallest.split()]) in (0, 1)


ROWS = [
    (f"{example} --gpus {gpus}", cells)
    for example, gpus, cells in re.findall(
        r"^\| `(\w+)`, (\d+) GPUs \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
]
LORA = (PAGE.parent / "lora" / "README.md").read_text()
ROWS += re.findall(r"^\| `recipe\.plan (.*)` \| (.*) \|$", LORA, re.MULTILINE)
assert len(ROWS) == 4 + 4


@pytest.mark.config
@pytest.mark.parametrize(("arguments", "cells"), ROWS)
def test_pages_have_the_numbers_of_the_command(
    arguments: str, cells: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments.split()) == 0  # it fits
    numbers = (
        r"total ([\d.]+)\n[\s\S]* in (\d+) waves\ncheckpoint +([\d.]+) GB\nstep +(\d+) s:"
        r"[\s\S]*: ([\d.]+) h, (\d+) GPU hours"
    )
    found = re.search(numbers, capsys.readouterr().out)
    assert found and list(found.groups()) == cells.split(" | ")


@pytest.mark.config
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--gpus", "7", "{A}.ppo_mini_batch_size=32 with {R}.n=8"),
        ("--gpus", "0", "--gpus=0"),
        ("--gpus", "-8", "--gpus=-8"),
        ("--mean-response", "-5", "--mean-response=-5"),
        ("--mean-response", "99999", "--mean-response 99999 is more than data.max_response_length"),
        ("--validation", "-1", "--validation=-1"),
        ("--sweep", "-1", "--sweep=-1"),
        ("--mfu", "0", "--mfu=0"),
        ("--mfu", "nan", "--mfu=nan"),
        ("--traffic", "2", "--traffic=2"),
    ],
)
def test_numbers_that_no_run_has_are_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["prompt_aug", option, value]) == (1 if value == "7" else 2)
    told = capsys.readouterr()
    assert said.format(**SHORT) in told.err and not told.out
