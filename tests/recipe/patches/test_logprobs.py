"""Log-probabilities against float64 and against verl's own, where flash-attn is not installed."""

import importlib.util

import pytest
import torch
import verl.utils.torch_functional as functional

import recipe.plugin  # noqa: F401  (the hook, as in every process of a run)
from recipe.patches import logprobs as patch

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
