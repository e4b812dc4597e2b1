"""Draws against those of transformers' ``generate``, which knows nothing of shared prefixes."""

from typing import Any

import pytest
import torch

from recipe.toy.sampling import draw
from recipe.toy.tokenizer import build_tokenizer
from recipe.toy.warmup import build_model

TOKENIZER: Any = build_tokenizer(["What is 7 + 8?", "\\boxed{15}"])
TEXTS = ["What is 7 + 8?", "7 + 8 = 15 and 15 + 7 = 22", "8"]  # padded differently
END, PAD, MOST = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id, 12


@pytest.fixture(scope="module")
def model() -> Any:
    """Untrained, with a head of its own in which six tokens, the end among them, are likely:
    prefixes are shared, responses branch, and rows end at different tokens."""
    made = build_model(TOKENIZER, seed=0).eval()
    torch.manual_seed(5)
    head = torch.nn.Linear(made.config.hidden_size, len(TOKENIZER))
    with torch.no_grad():
        head.weight.normal_(std=0.05)
        head.bias[[3, 30, 31, 32, 33, END]] += 7.0
    made.set_output_embeddings(head)
    return made


def inputs() -> dict[str, torch.Tensor]:
    return TOKENIZER(
        TEXTS, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False
    )


def generated(model: Any, samples: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The referee's ids_BT and entropy_BT."""
    how: dict[str, Any] = {"do_sample": False}
    if temperature:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    torch.manual_seed(11)
    made = model.generate(
        **inputs(),
        **how,
        num_return_sequences=samples,
        max_new_tokens=MOST,
        eos_token_id=END,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logp = [logits.log_softmax(-1) for logits in made.logits]
    entropy_BT = torch.stack([-(p.exp() * p).sum(-1) for p in logp], dim=1)
    return made.sequences[:, inputs()["input_ids"].shape[1] :], entropy_BT


@pytest.mark.parametrize(("samples", "temperature"), [(40, 1.0), (40, 0.5), (1, 0.0)])
def test_the_responses_are_those_of_generate(model: Any, samples: int, temperature: float) -> None:
    wanted_BT, wanted_entropy_BT = generated(model, samples, temperature)
    torch.manual_seed(11)
    ids_BT, entropy_BT = draw(
        model,
        **inputs(),
        samples=samples,
        temperature=temperature,
        max_tokens=MOST,
        end=END,
        pad=PAD,
    )
    assert torch.equal(ids_BT, wanted_BT)
    going_BT = (wanted_BT == END).cumsum(1) - (wanted_BT == END).int() == 0
    torch.testing.assert_close(
        entropy_BT[going_BT], wanted_entropy_BT[going_BT], atol=1e-5, rtol=1e-5
    )
    if samples > 1:  # what makes the comparison one: shared prefixes, many responses, early ends
        lengths = going_BT.sum(1)
        assert len(ids_BT.unique(dim=0)) < len(ids_BT)
        assert len(ids_BT.unique(dim=0)) > len(TEXTS)
        assert int(lengths.min()) < MOST == int(lengths.max())


def test_the_model_sees_each_prefix_once(model: Any) -> None:
    """Rows of each forward pass: the prompts, then the distinct responses so far."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    torch.manual_seed(11)
    how = {"temperature": 0.5, "max_tokens": MOST, "end": END, "pad": PAD}
    try:
        ids_BT, _ = draw(model, **inputs(), samples=40, **how)
    finally:
        hook.remove()
    of_B = torch.arange(len(TEXTS)).repeat_interleave(40)
    wanted = [len(TEXTS)]
    for t in range(1, len(seen)):
        going = ~(ids_BT[:, :t] == END).any(1)
        wanted.append(len(torch.cat([of_B[:, None], ids_BT[:, :t]], 1)[going].unique(dim=0)))
    assert seen == wanted
    assert max(seen) < len(ids_BT)
