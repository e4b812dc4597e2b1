"""The sampler of large vocabularies: alone, and inside vLLM in each mode of log-probabilities."""

from typing import Any

import pytest
import torch
from fresh_process import look

from recipe.patches.cpu.vllm_plugin import BLOCK, inverse_sample


@pytest.mark.parametrize("size", [5, BLOCK, 3 * BLOCK + 7])
def test_it_inverts_the_cumulative_distribution(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    probs = torch.randn(64, size, generator=generator).mul(3).softmax(-1)
    uniform = torch.rand(64, generator=generator)
    ends = probs.double().cumsum(-1)
    wanted = (ends <= uniform.double()[:, None] * ends[:, -1:]).sum(-1)
    assert torch.equal(inverse_sample(probs, uniform), wanted)


def test_by_hand() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(5, 4)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75])
    assert inverse_sample(probs, uniform).tolist() == [0, 0, 2, 2, 3]


def test_a_token_of_probability_0_is_never_drawn() -> None:
    probs = torch.zeros(2, 2 * BLOCK)
    probs[0, 3], probs[1, BLOCK + 1] = 1e-30, 1e-30
    last = torch.full((2,), 1 - 2**-24)  # the largest number of torch.rand
    for uniform in (torch.zeros(2), last):
        assert inverse_sample(probs, uniform).tolist() == [3, BLOCK + 1]


# In a process of its own: vLLM's import replaces distutils, which other tests have loaded.
PROGRAM = """
import json
from types import SimpleNamespace
import torch
from vllm.v1.sample.ops import topk_topp_sampler as vllm_sampler

cls = vllm_sampler.TopKTopPSampler
plain = SimpleNamespace(logprobs_mode="raw_logprobs", use_fp64_gumbel=False)
mine, wanted = (torch.Generator().manual_seed(0) for _ in range(2))
cls.forward_cpu(plain, torch.zeros(1, 300), {0: mine}, None, None)
torch.empty(300).exponential_(generator=wanted)
seen = {"an entry each": torch.equal(mine.get_state(), wanted.get_state())}

from recipe.patches.cpu.vllm_plugin import register
register()
logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).mul(4)
for mode in ("raw_logprobs", "processed_logprobs", "processed_logits"):
    sampler = SimpleNamespace(logprobs_mode=mode, use_fp64_gumbel=False)

    def draw(offset):
        generators = {i: torch.Generator().manual_seed(offset + i) for i in range(3)}
        top_k = torch.tensor([1, 3, 5000])
        return cls.forward_cpu(sampler, logits.clone(), generators, top_k, None)

    tokens, returned = draw(0)
    seen[mode] = {
        "top 1": int(tokens[0] == logits[0].argmax()),
        "top 3": int(tokens[1] in logits[1].topk(3).indices),
        "same seed": torch.equal(draw(0)[0], tokens),
        "other seeds": any(int(draw(o)[0][2] != tokens[2]) for o in range(10, 20)),
        "returned": None,
    }
    if returned is not None:
        left = returned[1].exp() > 0 if mode == "processed_logprobs" else returned[1].isfinite()
        whole = logits[2].log_softmax(-1) if mode == "processed_logprobs" else logits[2]
        close = torch.allclose(returned[2], whole, atol=1e-5)
        seen[mode]["returned"] = [int(left.sum()), close]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    quiet = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    return look(PROGRAM, VERL_PLATFORM="", **quiet)  # as an evaluation does


@pytest.mark.config
def test_vllm_still_draws_for_each_entry(seen: dict[str, Any]) -> None:
    assert seen["an entry each"], "the gap is closed upstream: delete the patch"


@pytest.mark.config
@pytest.mark.parametrize(
    ("mode", "returned"),
    [("raw_logprobs", None), ("processed_logprobs", [3, True]), ("processed_logits", [3, True])],
)
def test_it_draws_from_the_top_k_and_returns_what_the_mode_asks_for(
    seen: dict[str, Any], mode: str, returned: Any
) -> None:
    result = seen[mode]
    assert result.pop("returned") == returned
    assert all(result.values()), result
