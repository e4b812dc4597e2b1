"""The engine with prefix trees and verl's own on one batch: values, gradients, fallbacks.

Both classes prepare and read the same micro-batch for one model; no process group, no Ray.
"""

import dataclasses
import functools
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tiny_model import engine_of, untrained
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2ForCausalLM
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

import recipe.plugin  # noqa: F401  (as in every process of a run)
from recipe.actor import engine as ours
from recipe.actor.prefix_tree import cheapest, in_order, plant
from recipe.machine.shapes import FIELDS
from recipe.patches import logprobs

pytestmark = pytest.mark.config


def batch(**given: Any) -> TensorDict:
    """Three groups of four responses to one prompt each, many with common prefixes."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(3):
        prompt = torch.randint(0, 40, (9,), generator=generator)
        for length in (3, 8, 8, 5):
            rows.append(torch.cat([prompt, torch.randint(0, 2, (length,), generator=generator)]))
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    positions = [torch.arange(len(row)) for row in rows]
    data = TensorDict(
        {
            "input_ids": nested,
            "position_ids": torch.nested.as_nested_tensor(positions, layout=torch.jagged),
        },
        batch_size=len(rows),
    )
    data["multi_modal_inputs"] = NonTensorStack(*([{}] * len(rows)))  # as a run's rows have it
    for name, part in (("prompts", slice(0, 9)), ("responses", slice(9, None))):
        parts = [row[part] for row in rows]
        data[name] = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    settings = {
        ours.SEPARATE: False,
        "use_remove_padding": False,
        "temperature": 0.7,
        "calculate_entropy": True,
    }
    tu.assign_non_tensor(data, **{**settings, **given})
    return data


def computed(cls: type, module: Qwen2ForCausalLM, data: TensorDict) -> tuple[dict, torch.Tensor]:
    """(the outputs for the loss, the gradient of a weighted sum of them)."""
    engine = engine_of(cls, module)
    module.zero_grad()
    inputs, arguments = engine.prepare_model_inputs(data)
    raw = module(**inputs, use_cache=False)
    result = engine.prepare_model_outputs(raw, arguments, data, None)
    total = torch.zeros(())
    for name, value in sorted(result.items()):
        generator = torch.Generator().manual_seed(len(name))
        weights = torch.randn(len(value.values()), generator=generator)
        lengths = value.offsets().diff().tolist()
        for row, part in zip(value.unbind(), weights.split(lengths), strict=True):
            total = total + (row[:-1] * part[:-1]).sum()  # a row's last value is of no token
    total.backward()
    grads = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    return result, grads.clone()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("reach", [1, 60, 10**9])
def test_values_and_gradients_are_verls(
    temperature: float, reach: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "plant", functools.partial(plant, reach=reach))
    monkeypatch.setattr(logprobs, "CHUNK", 7)
    module, data = untrained(), batch(temperature=temperature, calculate_sum_pi_squared=True)
    mine, my_grads = computed(ours.PrefixTreeEngine, module, data)
    theirs, their_grads = computed(FSDPEngineWithLMHead, module, data)
    assert set(mine) == set(theirs) == {"log_probs", "entropy", "sum_pi_squared"}
    for name, wanted in theirs.items():
        for a, b in zip(mine[name].unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(a[:-1], b[:-1], atol=2e-6, rtol=0)
    assert their_grads.abs().max() > 1
    torch.testing.assert_close(my_grads, their_grads, atol=1e-4, rtol=1e-4)


WINDOWS: dict[str, dict[str, Any]] = {  # windows of 5 of a row's 12 to 17 tokens
    "gemma3_text": {"layer_types": [ours.SLIDING, ours.FULL], "sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
}


def of_family(kind: str, **changes: Any) -> Any:
    """A model of another family, of two layers and the sizes of `untrained`, without dropout."""
    config = untrained().config.to_dict()
    sizes = {name: config[name] for name in (*FIELDS, "num_key_value_heads")}
    torch.manual_seed(0)
    made = AutoConfig.for_model(kind, **{**sizes, "head_dim": 8, "pad_token_id": None, **changes})
    return AutoModelForCausalLM.from_config(made, attn_implementation="sdpa")


@pytest.mark.parametrize(
    ("kind", "changes"), [*((kind, {}) for kind in ours.SUPPORTED), *WINDOWS.items()]
)
def test_every_family_has_verls_values_and_gradients(
    kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control, with windows: the mask of full attention in every layer."""
    module, data = of_family(kind, **changes), batch()
    assert ours.supported(module)
    theirs, their_grads = computed(FSDPEngineWithLMHead, module, data)
    mine, my_grads = computed(ours.PrefixTreeEngine, module, data)
    for a, b in zip(mine["log_probs"].unbind(), theirs["log_probs"].unbind(), strict=True):
        torch.testing.assert_close(a[:-1], b[:-1], atol=2e-6, rtol=0)
    torch.testing.assert_close(my_grads, their_grads, atol=1e-4, rtol=1e-4)
    if changes:
        monkeypatch.setattr(ours.Forest, "near", lambda forest, _: forest.sees)
        wrong, _ = computed(ours.PrefixTreeEngine, module, data)
        assert (wrong["log_probs"] - mine["log_probs"]).values().abs().max() > 1e-3


def test_with_16_bits_a_temperature_is_rounded_as_verl_rounds_it() -> None:
    """bfloat16 has 0.69921875 for 0.7; the values of a single row equal verl's to the bit."""
    module, data = untrained().bfloat16(), batch(temperature=0.7)
    result = {}
    for cls in (ours.PrefixTreeEngine, FSDPEngineWithLMHead):
        engine = engine_of(cls, module)
        logits = torch.linspace(-4, 4, 40).bfloat16()
        inputs, arguments = engine.prepare_model_inputs(data)
        raw = types.SimpleNamespace(logits=logits.expand(*inputs["input_ids"].shape, 40))
        result[cls] = engine.prepare_model_outputs(raw, arguments, data, None)
    mine, theirs = result.values()
    for name, wanted in theirs.items():
        assert torch.equal(mine[name].values().float(), wanted.values().float()), name


def test_a_temperature_of_0_has_verls_floor() -> None:
    values, _ = computed(ours.PrefixTreeEngine, untrained(), batch(temperature=0.0))
    assert values["log_probs"].values().isfinite().all()


def test_common_prefixes_are_computed_once() -> None:
    inputs, _ = engine_of(ours.PrefixTreeEngine, untrained()).prepare_model_inputs(batch())
    padded, _ = engine_of(FSDPEngineWithLMHead, untrained()).prepare_model_inputs(batch())
    assert inputs["input_ids"].numel() < padded["input_ids"].numel() / 2
    assert padded["input_ids"].shape == (12, 17)


def parts_of(**given: Any) -> tuple[TensorDict, list[TensorDict], list[list[int]]]:
    """The batch, its micro-batches of at most 60 distinct tokens, and their rows."""
    data = batch(use_dynamic_bsz=True, max_token_len_per_gpu=60, **given)
    return data, *ours.by_prefix(data, dp_group=None)


def test_micro_batches_keep_the_rows_of_a_question_and_the_budget() -> None:
    data, parts, rows = parts_of()
    assert sorted(index for part in rows for index in part) == list(range(12))
    questions = [{row // 4 for row in part} for part in rows]
    assert len(rows) > 1
    assert sum(map(len, questions)) < 3 + len(rows)  # each cut divides at most one question
    for part, chosen in zip(parts, rows, strict=True):
        for mine, index in zip(part["input_ids"].unbind(), chosen, strict=True):
            assert torch.equal(mine, data["input_ids"].unbind()[index])
        distinct = {tuple(r[: n + 1].tolist()) for r in part["input_ids"] for n in range(len(r))}
        assert len(distinct) <= 60


def test_values_of_responses_are_verls_where_logits_are_computed_for_them_alone() -> None:
    module = untrained()
    data, parts, rows = parts_of(calculate_sum_pi_squared=True)
    theirs, _ = computed(FSDPEngineWithLMHead, module, data)
    for part, chosen in zip(parts, rows, strict=True):
        engine = engine_of(ours.PrefixTreeEngine, module)
        inputs, arguments = engine.prepare_model_inputs(part)
        raw = module(**inputs, use_cache=False)
        assert raw.logits.shape[1] < inputs["input_ids"].numel()
        mine = engine.prepare_model_outputs(raw, arguments, part, None)
        for name, wanted in theirs.items():
            for value, index in zip(mine[name].unbind(), chosen, strict=True):
                expected = wanted.unbind()[index]
                torch.testing.assert_close(value[8:-1], expected[8:-1], atol=2e-6, rtol=0)
                assert not value[:8].any()


@pytest.mark.parametrize("packed", [False, True])
def test_a_critics_budget_counts_every_token_and_padding(packed: bool) -> None:
    """Rows of 17, 17, 14 and 12 tokens: 60, padded 68. Packed rows are divided by verl."""
    data = batch(use_dynamic_bsz=True, max_token_len_per_gpu=60, use_remove_padding=packed)
    del data[ours.SEPARATE]
    parts, rows = ours.by_prefix(data, dp_group=None)
    assert sorted(index for part in rows for index in part) == list(range(12))
    lengths = [part["input_ids"].offsets().diff() for part in parts]
    assert max(int(n.sum()) for n in lengths) == (60 if packed else 54)
    assert (max(len(n) * int(n.max()) for n in lengths) > 60) == packed


def advantages(signs: list[float]) -> Any:
    lengths = (3, 8, 8, 5) * 3
    rows = [torch.full((n,), sign) for n, sign in zip(lengths, signs, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def test_rows_without_advantage_are_apart_and_before_the_others() -> None:
    data = batch(use_dynamic_bsz=True, max_token_len_per_gpu=60, **{ours.SKIPS_ZEROS: True})
    data["advantages"] = advantages([1.0] * 4 + [0.0] * 4 + [-1.0, 0.0, 2.0, 0.5])
    parts, rows = ours.by_prefix(data, dp_group=None)
    silent = [tu.get_non_tensor_data(part, ours.NO_GRADIENT, None) for part in parts]
    assert silent == sorted(silent, reverse=True)
    assert {i for part, s in zip(rows, silent, strict=True) if s for i in part} == {4, 5, 6, 7, 9}
    data["advantages"] = advantages([0.0] * 12)  # Adam needs a gradient, if only zeros
    parts, _ = ours.by_prefix(data, dp_group=None)
    assert not tu.get_non_tensor_data(parts[-1], ours.NO_GRADIENT, None)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_budget_holds_where_a_model_shares_no_prefixes(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows of 17 tokens are 51; with shared prefixes 60 tokens are more rows."""
    split = lambda self, data, *_: ours.by_prefix(data, dp_group=None)  # noqa: E731
    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_backward_batch", split)
    engine = engine_of(ours.PrefixTreeEngine, untrained(attn_implementation=attention))
    data = batch(use_dynamic_bsz=True, max_token_len_per_gpu=60)
    parts, _ = engine.forward_backward_batch(data, print, forward_only=True)
    rows = [part["input_ids"].offsets().diff() for part in parts]
    assert sum(int(n.sum()) for n in rows) == len(data["input_ids"].values())
    assert (max(len(n) * int(n.max()) for n in rows) > 60) == (attention == "sdpa")


def loss_of(**changes: Any) -> Any:
    settings = {"use_kl_loss": False, "entropy_coeff": 0.0, **changes}
    mode = types.SimpleNamespace(loss_mode=settings.pop("loss_mode", "vanilla"))
    config = types.SimpleNamespace(policy_loss=mode, **settings)
    return functools.partial(print, config=config)


def test_only_the_clipped_surrogate_alone_is_zero_without_advantage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ours.is_zero_without_advantage(loss_of())
    for change in ({"use_kl_loss": True}, {"entropy_coeff": 1e-3}, {"loss_mode": "kl_cov"}):
        assert not ours.is_zero_without_advantage(loss_of(**change))
    assert not ours.is_zero_without_advantage(None)
    monkeypatch.setitem(POLICY_LOSS_REGISTRY, "vanilla", lambda **arguments: None)
    assert not ours.is_zero_without_advantage(loss_of())  # another loss of this name


def test_shifted_labels_give_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the comparison."""
    data, module = batch(), untrained()
    right, _ = computed(ours.PrefixTreeEngine, module, data)
    real = ours.logprobs_of_nodes
    shift = lambda z, labels, node: real(z, labels.roll(1), node)  # noqa: E731
    monkeypatch.setattr(ours, "logprobs_of_nodes", shift)
    wrong, _ = computed(ours.PrefixTreeEngine, module, data)
    assert (wrong["log_probs"].values() - right["log_probs"].values()).abs().max() > 0.1


def shifted(data: TensorDict) -> None:
    positions = [row + 1 for row in data["position_ids"].unbind()]
    data["position_ids"] = torch.nested.as_nested_tensor(positions, layout=torch.jagged)


def replaced(name: str, value: Any) -> Callable[[TensorDict], None]:
    def change(data: TensorDict) -> None:
        del data[name]
        data[name] = value

    return change


IMAGES = NonTensorStack(*([{"pixel_values": torch.zeros(1, 4)}] * 12))


@pytest.mark.parametrize(
    "change",
    [
        shifted,
        replaced("temperature", torch.full((12,), 0.7)),
        replaced("multi_modal_inputs", IMAGES),
        *(
            functools.partial(tu.assign_non_tensor, **{key: True})
            for key in list(ours.NOT_PLAIN)[1:]
        ),
    ],
)
def test_unsupported_inputs_fall_back_to_verl(change: Callable[[TensorDict], None]) -> None:
    engine, data = engine_of(ours.PrefixTreeEngine, untrained()), batch()
    assert "forest" in engine.prepare_model_inputs(data)[1]
    change(data)
    inputs, arguments = engine.prepare_model_inputs(data)
    assert "forest" not in arguments
    assert inputs["input_ids"].shape == (12, 17)  # padded rows, as in verl


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"attention_dropout": 0.1},
        {"is_causal": False},
        {"use_bidirectional_attention": True},
        {"attn_implementation": "eager"},
    ],
)
def test_supported_models(change: dict[str, Any]) -> None:
    assert ours.supported(untrained(**change)) is not bool(change)
    dropping, other = untrained(), untrained()
    mlp = dropping.model.layers[0].mlp
    mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.3))
    other.config.model_type = "gemma2"  # caps its scores, which SDPA does not
    assert not ours.supported(dropping) and not ours.supported(other)


def test_it_is_registered_only_for_the_cpu() -> None:
    backends = EngineRegistry._engines["language_model"]
    for name in ("fsdp", "fsdp2"):
        assert backends[name]["cpu"] is ours.PrefixTreeEngine
        assert backends[name]["cuda"] is FSDPEngineWithLMHead
    assert EngineRegistry._engines["value_model"]["fsdp"]["cpu"] is FSDPEngineWithValueHead


# ------------------------------------------------------------------------- prefix tree
# Prefix trees: small ones by hand, and the values of a model with them and without.


@pytest.mark.parametrize(
    ("sequences", "reach", "ids", "depth", "sees", "nodes"),
    [
        (  # In depth-first order: 5 7 8 9 6. Nothing in common: another block.
            [[5, 7, 9], [6], [5, 7, 8]],
            100,
            [5, 7, 8, 9, 6],
            [0, 1, 2, 2, 0],
            [[[0], [0, 1], [0, 1, 2], [0, 1, 3]], [[0]]],
            [0, 1, 3, 4, 0, 1, 2],
        ),
        (  # One block of 7: 7 + 49/9 = 12.4; of 6 and 3: 15; of 4 and 5: 13.6; of 4, 4 and 3: 15.6.
            [[5, 7, 1, 1], [5, 7, 2, 2], [5, 7, 3]],
            9,
            [5, 7, 1, 1, 2, 2, 3],
            [0, 1, 2, 3, 2, 3, 2],
            [[[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5], [0, 1, 6]]],
            [0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6],
        ),
        (  # The same: 31.5, 24, 22.67 and 24.67. The second block has its own copy of 5 7.
            [[5, 7, 1, 1], [5, 7, 2, 2], [5, 7, 3]],
            3,
            [5, 7, 1, 1, 5, 7, 2, 2, 3],
            [0, 1, 2, 3, 0, 1, 2, 3, 2],
            [
                [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]],
                [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4]],
            ],
            [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 8],
        ),
        (  # Equal sequences and prefixes of others take no place.
            [[1, 2, 3], [1, 2], [1, 2, 3]],
            1,
            [1, 2, 3],
            [0, 1, 2],
            [[[0], [0, 1], [0, 1, 2]]],
            [0, 1, 2, 0, 1, 0, 1, 2],
        ),
    ],
)
def test_a_forest_by_hand(
    sequences: list, reach: int, ids: list, depth: list, sees: list, nodes: list
) -> None:
    forest = plant(sequences, reach)
    assert (forest.ids_N.tolist(), forest.depth_N.tolist()) == (ids, depth)
    assert [[row.nonzero()[:, 0].tolist() for row in b[0, 0]] for b in forest.sees] == sees
    assert forest.node_N.tolist() == nodes


def sequences(seed: int, count: int = 24) -> list[list[int]]:
    """Rows over few tokens, so that they share prefixes of all lengths."""
    rng = random.Random(seed)
    starts = [[rng.randrange(40) for _ in range(rng.randrange(1, 9))] for _ in range(4)]
    return [
        rng.choice(starts) + [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("seed", "reach"), itertools.product(range(5), (1, 20, 10**9)))
def test_every_token_sees_its_own_sequence_in_order(seed: int, reach: int) -> None:
    given = sequences(seed)
    forest = plant(given, reach)
    ids, depths = forest.ids_N, forest.depth_N
    sees = torch.block_diag(*(block[0, 0] for block in forest.sees)).bool()
    nodes = forest.node_N.tolist()
    assert len(nodes) == sum(map(len, given))
    for sequence in given:
        path, nodes = nodes[: len(sequence)], nodes[len(sequence) :]
        for depth, node in enumerate(path):
            assert ids[sees[node]].tolist() == sequence[: depth + 1]
            assert depths[sees[node]].tolist() == list(range(depth + 1))
    prefixes = {tuple(s[: i + 1]) for s in given for i in range(len(s))}
    assert (len(ids) == len(prefixes)) is (reach == 10**9)


def test_the_division_into_blocks_is_the_cheapest() -> None:
    """Against all 2^7 divisions of eight sequences."""
    for seed, reach in itertools.product(range(5), (1, 5, 20, 100)):
        given = sorted(sequences(seed, 8))
        order, shared = in_order(given)

        def cost(cuts: tuple[int, ...], given: list = given, reach: int = reach) -> float:
            parts = [given[a:b] for a, b in itertools.pairwise([0, *cuts, 8])]
            sizes = [len({tuple(s[: i + 1]) for s in p for i in range(len(s))}) for p in parts]
            return sum(size + size**2 / reach for size in sizes)

        every = (c for n in range(8) for c in itertools.combinations(range(1, 8), n))
        begins = cheapest([len(given[i]) for i in order], shared, reach)
        assert cost(tuple(begins[1:])) == pytest.approx(min(map(cost, every)))


@pytest.mark.parametrize("reach", [1, 20, 10**9])
@pytest.mark.parametrize("broken", ["", "sees", "depth_N"])
def test_only_the_right_mask_and_positions_give_the_values_of_single_rows(
    broken: str, reach: int
) -> None:
    """Negative controls: a causal mask over the places, and the places as positions."""
    model, given = untrained(), sequences(7)
    forest = plant(given, reach)
    wrong = {
        "sees": [torch.ones_like(block).tril() for block in forest.sees],
        "depth_N": torch.arange(len(forest.ids_N)),
    }
    if broken:
        forest = dataclasses.replace(forest, **{broken: wrong[broken]})
    shared = model(**forest.inputs(model.config), use_cache=False).logits[0]
    alone = [model(input_ids=torch.tensor([s]), use_cache=False).logits[0] for s in given]
    difference = (shared[forest.node_N] - torch.cat(alone)).abs().max()
    assert difference > 1e-3 if broken else difference < 1e-6
