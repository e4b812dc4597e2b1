"""The sampler of large vocabularies inside vLLM's, in each mode of its log-probabilities."""

from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.config


def test_vllm_still_draws_for_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    sampler = SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False)
    generator = torch.Generator().manual_seed(0)
    TopKTopPSampler.forward_cpu(sampler, torch.zeros(1, 300), {0: generator}, None, None)
    wanted = torch.Generator().manual_seed(0)
    torch.empty(300).exponential_(generator=wanted)
    assert torch.equal(generator.get_state(), wanted.get_state())


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "processed_logits"])
def test_it_draws_from_the_top_k_and_returns_what_the_mode_asks_for(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm.v1.sample.ops import topk_topp_sampler as vllm_sampler

    from recipe.patches.cpu.sampler import adapt_sampler

    vllms = vllm_sampler.TopKTopPSampler.forward_cpu
    monkeypatch.setattr(vllm_sampler.TopKTopPSampler, "forward_cpu", vllms)  # restored at the end
    adapt_sampler(vllm_sampler)
    sampler = SimpleNamespace(logprobs_mode=mode, use_fp64_gumbel=False)
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).mul(4)
    top_k = torch.tensor([1, 3, 5000])

    def draw(offset: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        generators = {i: torch.Generator().manual_seed(offset + i) for i in range(3)}
        return vllm_sampler.TopKTopPSampler.forward_cpu(
            sampler, logits.clone(), generators, top_k, None
        )

    tokens, returned = draw(0)
    assert tokens[0] == logits[0].argmax()
    assert tokens[1] in logits[1].topk(3).indices
    assert torch.equal(draw(0)[0], tokens)
    assert any(draw(offset)[0][2] != tokens[2] for offset in range(10, 20))
    if mode == "raw_logprobs":
        assert returned is None
    elif mode == "processed_logprobs":
        assert returned is not None
        torch.testing.assert_close(returned[2], logits[2].log_softmax(-1))
        assert returned[1].exp().gt(0).sum() == 3
    else:
        assert returned is not None and returned[1].isfinite().sum() == 3
