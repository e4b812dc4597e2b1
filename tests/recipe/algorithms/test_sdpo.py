"""SDPO: the choice of hints, values by hand, the reverse KL, the second pass."""

from typing import Any

import pytest
import torch
from rollout_batches import Queue, fetched, record, row
from tiny_model import engine_of, untrained
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import recipe.plugin  # noqa: F401  (as in every process of a run)
from recipe.actor import engine
from recipe.algorithms.sdpo import sdpo, solutions
from recipe.trainer import hints


def test_the_hint_is_the_first_right_response_other_than_its_own() -> None:
    group_B, texts = [5, 5, 5, 2, 2, 9], list("abcdef")
    assert solutions([0.0, 1, 1, 1, 0, 1], texts, group_B) == ["b", "c", "b", None, "d", None]
    assert solutions([0.0] * 6, texts, group_B) == [None] * 6
    assert solutions([], [], []) == []


def test_it_is_the_gradient_of_the_reverse_kl() -> None:
    """Over all tokens drawn from the policy the loss's gradient is that of KL(policy, teacher)."""
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=made, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(5, generator=made, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    (policy.exp() * (policy - teacher)).sum().backward()
    expected, logits.grad = logits.grad.clone(), None

    old = policy.detach()
    given = {"logprobs_BT": old[:, None], "hinted_logprobs_BT": teacher[:, None]}
    advantages_BT = sdpo([0.0] * 5, list(range(5)), **given)
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": 2},
        **{"clip_ratio_low": 1.0, "clip_ratio_high": 1.0},
    )
    losses = [
        get_policy_loss_fn("cispo")(
            *(old[i].reshape(1, 1), logits.log_softmax(0)[i].reshape(1, 1)),
            **{"advantages": advantages_BT[i].reshape(1, 1), "response_mask": torch.ones(1, 1)},
            config=config,
        )[0]
        for i in range(5)
    ]
    sum(p * loss for p, loss in zip(old.exp(), losses, strict=True)).backward()
    torch.testing.assert_close(logits.grad, expected)
    assert expected.abs().max() > 0.1


class Renderer:
    """One token per character, as the token's number."""

    def render(self, template: str, text: str, tokenizer: Any, system: str | None) -> Any:
        if "<bad>" in text:
            raise hints.RenderError("marker")
        return type("Prompt", (), {"ids": tuple(map(ord, text))})


def answered(right: bool, tokens: int, session: int, text: str) -> dict[str, Any]:
    made = row(right, tokens, session=session)
    made["extra_fields"]["reward_extra_info"]["response"] = text
    return {**made, "raw_prompt": [{"role": "user", "content": "Q"}]}


def second_pass(
    rows: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[list[float]], dict[str, float]]:
    """Return the prompts of the pass, the advantages of the real rows, and the metrics."""
    queue = Queue(rows)
    source = fetched(queue, monkeypatch)
    monkeypatch.setattr(hints, "tq", queue)
    monkeypatch.setattr(hints, "HINT", "{question}|{solution}")
    seen: list[str] = []

    def forward(prompts: list[torch.Tensor], responses: list[torch.Tensor]) -> list[torch.Tensor]:
        seen.extend("".join(map(chr, prompt)) for prompt in prompts)
        return [torch.full((len(r),), -0.25) for r in responses]

    metrics: dict[str, float] = {}
    renderer: Any = Renderer()
    found = hints.hinted_logprobs(
        source, renderer=renderer, tokenizer=None, limit=limit, forward=forward, metrics=metrics
    )
    made = record(source, hinted_logprobs=found)
    given = {"logprobs_BT": made.logprobs_BT, "hinted_logprobs_BT": made.hinted_logprobs_BT}
    return seen, sdpo(made.reward_B, made.group_B, **given).tolist(), metrics


ROWS = {
    "a_1_0": answered(True, 2, 1, "ok"),
    "pad_0_0": answered(True, 1, 0, "pad"),
    "a_0_0": answered(False, 3, 0, "wrong"),
    "b_0_0": answered(True, 1, 0, "alone"),
}


def test_the_second_pass_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a_0_0 has a sibling that is right; log-probabilities -0.5, -1.5, -2.5 become -0.25."""
    prompts, advantages, metrics = second_pass(ROWS, 99, monkeypatch)
    assert prompts == ["Q|ok"]
    assert advantages == [[0.25, 1.25, 2.25], [0, 0, 0], [0, 0, 0]]
    assert metrics == {"hint/share": 1 / 3, "hint/left_out": 0}


@pytest.mark.parametrize(("text", "limit"), [("ok", 3), ("<bad>", 99)])
def test_hints_that_do_not_fit_are_left_out(
    text: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {**ROWS, "a_1_0": answered(True, 2, 1, text)}
    prompts, advantages, metrics = second_pass(rows, limit, monkeypatch)
    assert not prompts and not any(map(sum, advantages))
    assert metrics == {"hint/share": 0, "hint/left_out": 1 / 3}


def test_the_second_pass_has_as_many_rows_as_the_step() -> None:
    """Log-probabilities of a worker that returns each token's number, shifted as verl's are."""

    class Workers:
        def compute_log_prob(self, batch: Any) -> Any:
            assert len(batch) == 4
            assert [len(ids) for ids in batch["input_ids"].unbind()] == [3, 4, 2, 3]
            rows = [ids.float().roll(-1) for ids in batch["input_ids"].unbind()]
            return {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    prompts = [torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4])]
    responses = [torch.tensor([5, 6]), torch.tensor([7, 8]), torch.tensor([9])]
    found = hints.forward_of(Workers(), 1.0, 4)(prompts, responses)
    assert [values.tolist() for values in found] == [[5, 6], [7, 8], [9]]


class EngineWorkers:
    """verl's engine, or ours with prefix trees, as one rank runs it; no Ray."""

    def __init__(self, cls: type) -> None:
        self.engine = engine_of(cls, untrained())

    def compute_log_prob(self, batch: Any) -> Any:
        tu.assign_non_tensor(batch, use_remove_padding=False, **{engine.SEPARATE: False})
        inputs, arguments = self.engine.prepare_model_inputs(batch)
        with torch.no_grad():
            raw = self.engine.module(**inputs, use_cache=False)
        return self.engine.prepare_model_outputs(raw, arguments, batch, None)


@pytest.mark.config
@pytest.mark.parametrize("cls", [FSDPEngineWithLMHead, engine.PrefixTreeEngine])
def test_log_probabilities_are_those_of_the_model(cls: type) -> None:
    """At temperature 0.7; the model alone, one row at a time."""
    workers = EngineWorkers(cls)
    prompts = [torch.tensor([1, 2, 3]), torch.tensor([1, 2]), torch.tensor([4])]
    responses = [torch.tensor([5, 6]), torch.tensor([7, 8, 9]), torch.tensor([9])]
    found = hints.forward_of(workers, 0.7, 3)(prompts, responses)
    for prompt, response, values in zip(prompts, responses, found, strict=True):
        with torch.no_grad():
            logits = workers.engine.module(torch.cat([prompt, response])[None]).logits[0]
        scores = (logits[len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        wanted = scores.gather(1, response[:, None])[:, 0]
        torch.testing.assert_close(values, wanted, atol=1e-5, rtol=1e-5)
