"""Patches of verl's engines: LoRA weights, seeds, learning rates, critics, log-probabilities."""

import copy
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import verl.utils.torch_functional as functional
from tiny_model import ALPHA, RANK, logits, tuned, untrained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForTokenClassification, Qwen2ForTokenClassification
from verl.utils import model
from verl.workers.config.optimizer import FSDPOptimizerConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithValueHead

import recipe.plugin  # noqa: F401  (the hook, as in every process of a run)
from recipe.patches import logprobs as patch
from recipe.start.attention import difference

pytestmark = pytest.mark.config

SENT = FSDPEngine._merged_lora_per_tensor_param


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tuned model as verl's FSDP2 engine holds it."""
    monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(transformer_impl, "log_gpu_memory_usage", lambda *_, **__: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh, model = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)), tuned()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    engine: Any = object.__new__(FSDPEngine)  # without verl's __init__
    engine.module, engine._is_offload_param = fully_shard(model, mesh=mesh), False
    yield engine
    dist.destroy_process_group()


def test_an_engine_with_them_is_the_actor(engine: Any) -> None:
    before = {name: t.full_tensor().clone() for name, t in engine.module.state_dict().items()}
    received = untrained()
    result = received.load_state_dict(dict(SENT(engine)))
    assert not result.missing_keys
    torch.testing.assert_close(logits(received), logits(tuned()), atol=1e-5, rtol=0)
    assert (logits(received) - logits(untrained())).abs().max() > 0.01
    after = engine.module.state_dict()  # the start model's weights are back, to the last bit
    assert all(torch.equal(after[name].full_tensor(), value) for name, value in before.items())


def test_verls_own_are_still_bfloat16(engine: Any) -> None:
    verls: Any = SENT.__wrapped__  # type: ignore[attr-defined]
    dtypes = {t.dtype for t in dict(verls(engine)).values()}
    assert dtypes == {torch.bfloat16}, "the gap is closed upstream: delete the patch"
    assert {t.dtype for t in dict(SENT(engine)).values()} == {torch.float32}


def drawn(seed: int, function: Callable[[Any, Any], Any]) -> dict[str, torch.Tensor]:
    """The adapter that verl's engine builds for `fsdp_config.seed`."""
    engine: Any = object.__new__(FSDPEngine)
    engine.engine_config = SimpleNamespace(seed=seed)
    layers = {"target_modules": "all-linear", "target_parameters": None, "exclude_modules": None}
    engine.model_config = SimpleNamespace(lora_rank=RANK, lora_alpha=ALPHA, **layers)
    adapted = function(engine, untrained())
    return {name: p.data for name, p in adapted.named_parameters() if "lora_A" in name}


def test_the_adapter_is_drawn_by_the_seed() -> None:
    ours: Any = FSDPEngine._build_lora_module
    first, again, third = (drawn(seed, ours) for seed in (1, 1, 2))
    assert first.keys() == third.keys() and len(first) == 2 * 7
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], third[name]) for name in first)


def test_verls_own_adapter_is_still_without_a_seed() -> None:
    verls: Any = FSDPEngine._build_lora_module.__wrapped__  # type: ignore[attr-defined]

    def after(draws: int) -> Callable[[Any, Any], Any]:
        def build(engine: Any, model: Any) -> Any:
            torch.rand(draws)  # what other parts of the process draw
            return verls(engine, model)

        return build

    first, second = drawn(1, after(1)), drawn(1, after(2))
    assert not any(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, Any], Any]:
    """The head by (seed of the engine, draws before in the process, function that builds it)."""
    untrained().save_pretrained(tmp_path)

    def load(local_path: str, model_config: Any, **_: Any) -> Any:  # verl's wants flash-attn
        return Qwen2ForTokenClassification.from_pretrained(local_path, config=model_config)

    monkeypatch.setattr(model, "load_valuehead_model", load)

    def build(seed: int, draws: int, function: Any) -> torch.Tensor:
        engine: Any = object.__new__(FSDPEngine)  # without verl's __init__
        engine.engine_config = SimpleNamespace(seed=seed, model_dtype="fp32")
        engine.use_remove_padding, engine.ulysses_sequence_parallel_size = False, 1
        engine.device_mesh = SimpleNamespace(get_coordinate=lambda: (0,))
        engine.model_config = SimpleNamespace(
            hf_config=AutoConfig.from_pretrained(tmp_path),
            **{"model_type": "value_model", "local_path": tmp_path, "trust_remote_code": False},
            **{"use_liger": False, "use_fused_kernels": False, "fused_kernel_options": None},
            enable_gradient_checkpointing=False,
        )
        torch.rand(draws)  # what other parts of the process draw
        return function(engine).score.weight.data

    return build


def test_a_value_head_is_drawn_by_the_seed(head: Callable[[int, int, Any], Any]) -> None:
    ours: Any = FSDPEngine._build_module
    first, again, third = (head(seed, seed, ours) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, third)
    assert first.std() > 0


def test_verls_own_is_still_without_a_seed(head: Callable[[int, int, Any], Any]) -> None:
    verls: Any = FSDPEngine._build_module.__wrapped__  # type: ignore[attr-defined]
    first, second = head(1, 1, verls), head(1, 2, verls)
    assert not torch.equal(first, second), "the gap is closed upstream: delete the patch"


# ------------------------------------------------------------------------- learning rates

RATE = 1e-3
COSINE = {"lr_scheduler_type": "cosine"}
# (settings, share of the rate in each step), by hand
SCHEDULES: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [1, 1, 1]),
    ({"lr_warmup_steps": 2}, [1 / 2, 1, 1, 1]),
    ({"lr_warmup_steps_ratio": 0.6}, [1 / 3, 2 / 3, 1, 1, 1]),
    ({"lr_warmup_steps": 9}, [1 / 9, 2 / 9]),  # longer than the run
    ({**COSINE, "lr_warmup_steps": 2}, [1 / 2, 1, 1, 0.75, 0.25]),  # (1 + cos(pi k / 3)) / 2
    ({**COSINE, "min_lr_ratio": 0.2}, [1, 0.8, 0.4]),
    ({**COSINE, "num_cycles": 1}, [1, 0.5, 0.5, 1]),  # verl: 1, 0.5, 0, 0.5
    (COSINE, [1]),
]


def scheduled(settings: dict[str, Any], steps: int, build: Any, kind: Any = FSDPEngine) -> Any:
    """An engine with an optimizer and a schedule of `steps` steps."""
    engine: Any = object.__new__(kind)  # without verl's __init__
    config = FSDPOptimizerConfig(**{"lr": RATE, "total_training_steps": steps, **settings})
    engine.optimizer_config = config
    engine.rank, engine._is_offload_param, engine._is_offload_optimizer = 1, False, False
    weights = [torch.nn.Parameter(torch.zeros(1))]
    given = {"lr": config.lr, "betas": config.betas, "weight_decay": config.weight_decay}
    engine.optimizer = torch.optim.AdamW(weights, **given, **config.override_optimizer_config or {})
    engine.lr_scheduler = build(engine, engine.optimizer)
    return engine


def trained(engine: Any, steps: int) -> list[tuple[float, float]]:
    """The shares of the rate that each step uses and returns for the log; two updates a step."""
    rates = []
    for _ in range(steps):
        used = engine.optimizer.param_groups[0]["lr"]
        engine.optimizer.step()
        engine.optimizer.step()
        rates.append((used / RATE, engine.lr_scheduler_step() / RATE))
    return rates


def states(engine: Any) -> list[Any]:
    return [copy.deepcopy(part.state_dict()) for part in (engine.optimizer, engine.lr_scheduler)]


def resumed(engine: Any, saved: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    def load_checkpoint(**_: Any) -> None:
        for part, state in zip((engine.optimizer, engine.lr_scheduler), saved, strict=True):
            part.load_state_dict(state)

    engine.checkpoint_manager = SimpleNamespace(load_checkpoint=load_checkpoint)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    engine.load_checkpoint("")
    return engine


OURS: Any = FSDPEngine._build_lr_scheduler
VERLS: Any = FSDPEngine._build_lr_scheduler.__wrapped__  # type: ignore[attr-defined]


@pytest.mark.parametrize(("settings", "wanted"), SCHEDULES)
@pytest.mark.parametrize("kind", [FSDPEngine, FSDPEngineWithValueHead])
def test_every_step_has_a_rate_and_logs_it(kind: Any, settings: Any, wanted: list[float]) -> None:
    engine = scheduled(settings, len(wanted), kind._build_lr_scheduler, kind)
    used, logged = zip(*trained(engine, len(wanted)), strict=True)
    assert used == logged == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("saved_by", [OURS, VERLS])  # a checkpoint of verl's schedule, too
@pytest.mark.parametrize(("settings", "wanted"), SCHEDULES)
def test_a_resumed_schedule_continues(
    settings: Any, wanted: list[float], saved_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = len(wanted)
    for done in range(1, steps):
        before = scheduled(settings, steps, saved_by)
        trained(before, done)
        after = resumed(scheduled(settings, steps, OURS), states(before), monkeypatch)
        assert [used for used, _ in trained(after, steps - done)] == pytest.approx(wanted[done:])


def test_a_finished_cosine_is_extended_by_the_longer_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = scheduled(COSINE, 2, VERLS)
    trained(before, 2)
    assert before.optimizer.param_groups[0]["lr"] == 0
    after = resumed(scheduled(COSINE, 3, OURS), states(before), monkeypatch)
    assert trained(after, 1) == [pytest.approx((0.25, 0.25))]


def test_a_run_from_anothers_checkpoint_has_its_own_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = scheduled({"lr_warmup_steps": 4}, 9, OURS)
    trained(before, 1)
    own = {"lr": RATE / 2, "betas": (0.5, 0.6), "weight_decay": 0.3}
    own["override_optimizer_config"] = {"eps": 1e-5, "amsgrad": True}
    after = resumed(scheduled(own | COSINE, 3, OURS), states(before), monkeypatch)
    (group,) = after.optimizer.param_groups
    assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.5, 0.6), 0.3, 1e-5)
    assert not group["amsgrad"]  # the checkpoint has no state for it
    # Its second step: half of the rate x (1 + cos(pi / 3)) / 2.
    assert trained(after, 2) == [pytest.approx((x, x)) for x in (0.375, 0.125)]


def test_verls_own_first_rate_is_still_0_and_its_log_a_step_ahead() -> None:
    engine = scheduled({"lr_warmup_steps": 2}, 4, VERLS)
    assert engine.optimizer.param_groups[0]["lr"] == 0, "closed upstream: delete the patch"
    step: Any = FSDPEngine.lr_scheduler_step
    assert step.__wrapped__(engine) == RATE / 2, "closed upstream: delete the patch"


# ------------------------------------------------------------------------- attention
# Attention without flash-attn: rows packed as verl packs them on a GPU, of actor and critic.

VARLEN: Any = sys.modules["recipe.actor.varlen"]  # the hook has imported it


def of_2_11(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: Any = None, window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:  # fmt: skip
    """The operation with the signature of torch 2.11, row by row, in place of its kernel."""
    assert cu_seq_q is cu_seq_k and cu_seq_q.dtype == torch.int32 and window_size[1] == 0
    assert max_q == max_k == int(cu_seq_q.diff().max()) and return_aux is None
    rows = []
    for start, end in itertools.pairwise(cu_seq_q.tolist()):
        age = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (age >= 0) & ((window_size[0] < 0) | (age <= window_size[0]))
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        row = scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
        rows.append(row[0].transpose(0, 1))
    return torch.cat(rows)


def use(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Replace torch's kernel, or all of `varlen_attn` of another version than the installed."""
    if version == "2.11":
        monkeypatch.setattr(VARLEN, "varlen_attn", of_2_11)

    def kernel(*given: Any) -> Any:  # behind the checks of the installed version
        is_causal, scale, window = given[7:10]
        assert is_causal == (window == [-1, 0])
        return of_2_11(*given[:7], scale=scale, window_size=tuple(window)), None, None

    monkeypatch.setattr(torch.ops.torch_attn, "_varlen_attn", kernel)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("version", ["sdpa", "2.11", "installed"])
def test_a_packed_row_sees_only_itself(
    monkeypatch: pytest.MonkeyPatch, version: str, window: int | None, *, checkpointing: bool
) -> None:
    """machine: gpu has use_remove_padding, which leaves the mask to the position ids."""
    use(monkeypatch, version)
    boundaries = mock.Mock(side_effect=VARLEN.boundaries)
    monkeypatch.setattr(VARLEN, "boundaries", boundaries)
    shape: dict[str, Any] = {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 2}
    shape |= {"use_sliding_window": bool(window), "sliding_window": window, "max_window_layers": 1}
    single = untrained(**shape, attn_implementation="eager").train()
    name = version if version == "sdpa" else VARLEN.NAME
    actor = untrained(**shape, attn_implementation=name).train()
    if checkpointing:  # as in a run: recomputation in the backward pass
        actor.gradient_checkpointing_enable()
    parts = [torch.randint(0, 40, (1, n)) for n in (7, 1, 12, 3)]
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    packed = actor(input_ids=torch.cat(parts, 1), position_ids=positions, use_cache=False).logits
    alone = torch.cat([single(input_ids=p, use_cache=False).logits for p in parts], 1)
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=0)
    grads = []
    for model_, values in ((actor, packed), (single, alone)):
        values.logsumexp(-1).mean().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model_.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=0)
    assert boundaries.call_count == (version != "sdpa")  # once for all layers and passes
    # Negative control: with a wrong boundary the second row attends to the first.
    positions[0, 7] = 7
    mixed = actor(torch.cat(parts, 1), position_ids=positions.clone(), use_cache=False).logits
    assert (mixed - alone)[:, 7].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("config", "inputs"),
    [
        ({}, {"attention_mask": torch.ones(1, 5)}),
        ({}, {"input_ids": torch.zeros(2, 5, dtype=torch.long)}),
        ({"attention_dropout": 0.1}, {}),
        ({"is_causal": False}, {}),
    ],
)
def test_torch_varlen_refuses_what_it_does_not_compute(config: Any, inputs: Any) -> None:
    actor = untrained(**config, attn_implementation=VARLEN.NAME).train()
    with pytest.raises(ValueError, match="packed rows"):
        actor(**{"input_ids": torch.zeros(1, 5, dtype=torch.long), "use_cache": False, **inputs})
    row = torch.zeros(1, 2, 5, 8)
    with pytest.raises(ValueError, match="packed rows"):
        VARLEN.forward(actor, row, row, row, None, position_ids=torch.arange(5)[None], softcap=30.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    def without_rows(q: Any, k: Any, v: Any, *_: Any, **more: Any) -> torch.Tensor:
        ends = torch.tensor([0, len(q)], dtype=torch.int32)
        return of_2_11(q, k, v, ends, ends, len(q), len(q), **more)

    def without_window(*given: Any, **more: Any) -> torch.Tensor:
        return of_2_11(*given, **more | {"window_size": (-1, 0)})

    def twice_the_gradient(q: Any, k: Any, *given: Any, **more: Any) -> torch.Tensor:
        return of_2_11(q, 2 * k - k.detach(), *given, **more)

    fields = untrained(
        hidden_size=96, num_attention_heads=12, num_key_value_heads=2, num_hidden_layers=3,
        use_sliding_window=True, sliding_window=4096, max_window_layers=1, initializer_range=0.1,
    ).config.to_dict()  # fmt: skip
    for op in (of_2_11, without_rows, without_window, twice_the_gradient):
        monkeypatch.setattr(VARLEN, "varlen_attn", op)
        assert bool(difference(fields, dtype, device="cpu")) == (op is not of_2_11), op


def test_verl_still_fixes_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, attn_implementation: str, **__: object) -> str:
        return attn_implementation

    monkeypatch.setattr(AutoModelForTokenClassification, "from_pretrained", load)
    config = SimpleNamespace(_attn_implementation="sdpa")
    given: Any = {"local_path": "", "torch_dtype": None, "trust_remote_code": False}
    verls: Any = model.load_valuehead_model.__wrapped__
    closed = "the gap is closed upstream: delete the patch"
    assert verls(**given, model_config=config) == "flash_attention_2", closed
    assert model.load_valuehead_model(**given, model_config=config) == "sdpa"


@pytest.mark.parametrize("attention", ["sdpa", "torch_varlen"])
def test_the_values_of_packed_rows_are_those_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    use(monkeypatch, "installed")
    untrained().save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation=attention)
    config.num_labels = 1
    critic = model.load_valuehead_model(tmp_path, torch.float32, config, False)
    rows = [torch.arange(n) % config.vocab_size for n in (5, 9, 1)]
    ids, positions = torch.cat(rows), torch.cat([torch.arange(len(row)) for row in rows])
    with torch.no_grad():
        packed = critic(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits
        single = [critic(input_ids=row[None], use_cache=False).logits for row in rows]
    torch.testing.assert_close(packed, torch.cat(single, 1), atol=1e-6, rtol=0)
    assert not torch.allclose(packed[0, 5:14], packed[0, :9])  # negative control


# ------------------------------------------------------------------------- logprobs
# Log-probabilities against float64 and against verl's own, where flash-attn is not installed.


WITHOUT = importlib.util.find_spec("flash_attn") is None


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits of 16 bits, labels, weights of the loss), more tokens than a chunk has."""
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(2 * patch.CHUNK + 3, 50, generator=generator)).bfloat16()
    labels = torch.randint(0, 50, (len(logits),), generator=generator)
    return logits, labels, torch.randn(len(logits), generator=generator)


def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1).gather(-1, labels[:, None])[:, 0]


def test_a_row_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]).bfloat16()
    got = patch.logprobs(logits, torch.tensor([2, 1]))
    assert got.tolist() == pytest.approx([-1.3862944, -1.7436684], abs=1e-6)  # -ln 4, -ln(e + 3)


def test_values_and_gradients_are_those_of_float32(case: tuple) -> None:
    logits, labels, weights = case
    ours, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    got = patch.logprobs(ours, labels)
    assert got.dtype == torch.float32
    wanted = reference(exact, labels)
    torch.testing.assert_close(got.double(), wanted, atol=5e-6, rtol=0)
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert ours.grad is not None and exact.grad is not None
    # The gradient is rounded once, to the 8 bits of its dtype.
    torch.testing.assert_close(ours.grad.double(), exact.grad, atol=1e-6, rtol=2**-8)


class Largest(TorchDispatchMode):
    """Records the largest float32 result of an operation, in entries."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.entries = max(self.entries, result.numel())
        return result


@pytest.mark.parametrize("count", [0, 1, 100])
def test_float32_copies_of_a_large_vocabulary_are_bounded(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven rows of 300 fit into 2,300 entries; values and gradients are those of one part."""
    logits = (torch.arange(count * 300.0) % 7).view(count, 300).bfloat16()
    results = []
    for entries in (2**27, 2300):
        monkeypatch.setattr(patch, "ENTRIES", entries)
        given = logits.clone().requires_grad_()
        with Largest() as seen:
            values = patch.logprobs(given, torch.arange(count))
            values.sum().backward()
        assert seen.entries == max(1, 300 * min(count, entries // 300))  # the sum has one
        results.append((values, given.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(not WITHOUT, reason="flash-attn is installed: verl takes its kernel")
def test_verl_uses_it_for_16_bits(case: tuple) -> None:
    logits, labels, _ = case
    error = functional.logprobs_from_logits(logits, labels).double() - reference(logits, labels)
    assert error.abs().max() < 5e-6
    shaped = functional.logprobs_from_logits(logits.view(1, *logits.shape), labels[None])
    assert shaped.shape == (1, len(labels))


@pytest.mark.skipif(not WITHOUT, reason="flash-attn is installed: verl takes its kernel")
def test_float32_is_verls_to_the_last_bit_without_a_node_for_every_token(case: tuple) -> None:
    logits, labels, weights = case
    ours, plain = (logits.float().requires_grad_() for _ in range(2))
    got = functional.logprobs_from_logits(ours, labels)
    wanted = functional.logprobs_from_logits_v2.__wrapped__(plain, labels)
    assert torch.equal(got, wanted)
    assert nodes(got) < 10 < len(labels) < nodes(wanted)
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert ours.grad is not None and plain.grad is not None
    assert torch.equal(ours.grad, plain.grad)


def nodes(value: torch.Tensor) -> int:
    """The number of nodes in the graph of a value."""
    seen, result = set(), [value.grad_fn]
    while result:
        node = result.pop()
        if node is not None and node not in seen:
            seen.add(node)
            result += [parent for parent, _ in node.next_functions]
    return len(seen)


@pytest.mark.skipif(not WITHOUT, reason="flash-attn is installed: verl takes its kernel")
def test_verls_own_is_still_coarse(case: tuple) -> None:
    """Fails when verl closes the gap. Then delete the adapter."""
    logits, labels, _ = case
    plain = functional.logprobs_from_logits_v2.__wrapped__(logits, labels)
    assert plain.dtype == torch.bfloat16
    assert (plain.double() - reference(logits, labels)).abs().max() > 0.01
