"""One update of a tiny model: our advantages x weights through verl's loss, and the papers' losses.

The papers' objectives are written out below response by response, token by token, in plain Python
and torch. The policy has moved away from the one that sampled, so that both clips and the dual clip
(which verl always has, and the papers do not) are at work.
"""

import copy
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from bench_peer import gradient_lines
from torch import nn

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS

LOW, HIGH, DUAL = 0.2, 0.28, 3.0
WORDS, WIDTH = 20, 16
# Two questions, each in two texts (itself and a rephrasing), four responses to each text.
QUESTION = [0] * 8 + [1] * 8
TEXT = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
ORIGINAL = [0] * 8 + [2] * 8  # the text q^0 of every row
REWARD = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.5, 1.0, 1.0, 1.25, 1.25, 0.0, 0.25]
LENGTH = [16, 2, 11, 7, 1, 14, 12, 5, 9, 16, 3, 15, 4, 10, 13, 8]
PROMPTS = torch.randint(0, WORDS, (4, 3), generator=torch.Generator().manual_seed(1))
RESPONSES = torch.randint(0, WORDS, (16, WIDTH), generator=torch.Generator().manual_seed(2))
MASK = (torch.arange(WIDTH)[None] < torch.tensor(LENGTH)[:, None]).long()


class TinyModel(nn.Module):
    """The next word from the mean embedding of all words before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, dtype=torch.float64)
        self.output = nn.Linear(8, WORDS, dtype=torch.float64)

    def forward(self, prompts: torch.Tensor, response_BT: torch.Tensor) -> torch.Tensor:
        """log pi(o_t | q, o_<t), shape B x T."""
        words = torch.cat([prompts, response_BT], 1)
        sums = self.embedding(words).cumsum(1)
        means = sums / torch.arange(1, words.shape[1] + 1)[None, :, None]
        before = means[:, prompts.shape[1] - 1 : -1]
        return self.output(before).log_softmax(-1).gather(2, response_BT[..., None]).squeeze(2)


def models() -> tuple[TinyModel, TinyModel]:
    """The policy of the sampled log-probabilities, and where it has moved since."""
    torch.manual_seed(4)  # by which every clip binds somewhere; the tests check that
    old, moved = TinyModel(), TinyModel()
    with torch.no_grad():
        for a, b in zip(old.parameters(), moved.parameters(), strict=True):
            b.copy_(a + 0.5 * torch.randn_like(a))
    return old, moved


OLD, MOVED = models()
Loss = Callable[[TinyModel], torch.Tensor]


def updated(loss: Loss, kind: Callable[..., Any], steps: int) -> torch.Tensor:
    """All parameters after `steps` of the optimizer from the moved policy."""
    model = copy.deepcopy(MOVED)
    optimizer = kind(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


sgd = functools.partial(torch.optim.SGD, lr=1.0)
adam = functools.partial(torch.optim.AdamW, lr=0.01)


# The papers, token by token.


def paper_advantages(groups: Sequence[int]) -> list[float]:
    """(R - mean) / std over the responses with the same group; 0 if all rewards are equal."""
    out = []
    for reward, group in zip(REWARD, groups, strict=True):
        pool = [r for r, g in zip(REWARD, groups, strict=True) if g == group]
        equal = len(set(pool)) == 1
        out.append(0.0 if equal else (reward - statistics.mean(pool)) / statistics.stdev(pool))
    return out


def paper_weights(texts: Sequence[int], advantages: list[float]) -> list[list[float]]:
    """CW-GRPO, section 2.3: w~ of every token of every response, statistics over the question."""
    logps = [OLD(PROMPTS[[texts[i]]], RESPONSES[[i], :n])[0].tolist() for i, n in enumerate(LENGTH)]
    weights: list[list[float]] = [[] for _ in LENGTH]
    for question in set(QUESTION):
        rows = [i for i in range(len(LENGTH)) if QUESTION[i] == question]
        mean_logp = statistics.mean(logp for i in rows for logp in logps[i])
        mean_a = statistics.mean(advantages[i] for i in rows)
        c = {i: [(logp - mean_logp) * (advantages[i] - mean_a) for logp in logps[i]] for i in rows}
        sigma = statistics.pstdev(value for i in rows for value in c[i])
        for i in rows:
            weights[i] = [math.exp(-(value**2) / (2 * sigma**2)) for value in c[i]]
        mean = statistics.mean(w for i in rows for w in weights[i])
        for i in rows:
            weights[i] = [w / mean for w in weights[i]]
    return weights


def paper_loss(texts: Sequence[int], groups: Sequence[int], weighted: bool, mode: str) -> Loss:
    """-J with the ratio of row i under the text texts[i]; `mode`: how tokens are averaged."""
    advantages = paper_advantages(groups)
    weights = paper_weights(texts, advantages) if weighted else [[1.0] * n for n in LENGTH]

    def loss(model: TinyModel) -> torch.Tensor:
        responses = []
        for i, n in enumerate(LENGTH):
            question, response = PROMPTS[[texts[i]]], RESPONSES[[i], :n]
            ratios = (model(question, response) - OLD(question, response).detach())[0].exp()
            tokens = []
            for ratio, weight in zip(ratios, weights[i], strict=True):
                a = advantages[i]
                value = torch.minimum(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a)
                tokens.append(weight * (value.clamp(min=DUAL * a) if a < 0 else value))
            responses.append(torch.stack(tokens))
        if mode == "token-mean":
            return -torch.cat(responses).mean()
        return -torch.stack([tokens.mean() for tokens in responses]).mean()

    return loss


# Ours, through verl.


def our_loss(
    texts: Sequence[int],
    groups: Sequence[int],
    *,
    advantage: str,
    weights: str | None,
    mode: str,
    metrics: dict[str, float] | None = None,
) -> Loss:
    """verl's registered loss on our advantages x weights; `metrics` is filled with verl's own."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=8,
        ppo_micro_batch_size_per_gpu=16,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        clip_ratio_c=DUAL,
        loss_agg_mode=mode,
    )
    old_BT = OLD(PROMPTS[texts], RESPONSES).detach()
    advantages_BT = ADVANTAGES[advantage](REWARD, groups)[:, None] * MASK
    if weights:
        advantages_BT = advantages_BT * TOKEN_WEIGHTS[weights](
            old_BT, advantages_BT, MASK, QUESTION
        )

    def loss(model: TinyModel) -> torch.Tensor:
        current_BT = model(PROMPTS[texts], RESPONSES)
        value, result = get_policy_loss_fn("vanilla")(
            old_BT, current_BT, advantages_BT, MASK, mode, config
        )
        if metrics is not None:
            metrics.update(result)
        return value

    return loss


MODES = ["seq-mean-token-mean", "token-mean"]
# Row by row: the text under which the ratio is taken, the group of the advantage, the names.
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"texts": TEXT, "groups": TEXT, "advantage": "grpo", "weights": None},
    "ta_grpo": {"texts": ORIGINAL, "groups": QUESTION, "advantage": "ta_grpo", "weights": None},
    "ta_grpo_star": {"texts": TEXT, "groups": TEXT, "advantage": "ta_grpo_star", "weights": None},
    "cw_grpo": {
        "texts": ORIGINAL,
        "groups": QUESTION,
        "advantage": "grpo",
        "weights": "gaussian_covariance",
    },
}


def difference(ours: Loss, paper: Loss, optimizer: Callable[..., Any]) -> float:
    """The largest difference of a parameter after the update."""
    steps = 3 if optimizer is adam else 1
    return float((updated(ours, optimizer, steps) - updated(paper, optimizer, steps)).abs().max())


def paper_of(name: str, mode: str) -> Loss:
    method = METHODS[name]
    weighted = method["weights"] is not None
    return paper_loss(method["texts"], method["groups"], weighted, mode)


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_update_is_the_papers(name: str, mode: str, optimizer: Callable[..., Any]) -> None:
    """1e-6: the papers' standard deviation has no epsilon beside it, ours has 1e-6."""
    metrics: dict[str, float] = {}
    ours = our_loss(**METHODS[name], mode=mode, metrics=metrics)
    assert difference(ours, paper_of(name, mode), optimizer) < 1e-6
    start = nn.utils.parameters_to_vector(MOVED.parameters()).detach()
    assert float((updated(ours, optimizer, 1) - start).abs().max()) > 5e-3
    # All three clips are active: otherwise this test would not cover them.
    assert metrics["actor/pg_clipfrac"] > 0.05
    assert metrics["actor/pg_clipfrac_lower"] > 0.01


@pytest.mark.parametrize(("factor", "equal"), [(1 + 1e-7, True), (-1.0, False), (1.001, False)])
def test_a_peers_gradient_with_another_sign_or_normalizer_differs(
    factor: float, equal: bool
) -> None:
    """`scripts/bench.py peer`: |(3, -4) - (4, 3)| / |(4, 3)| is sqrt(2)."""
    ours = {"grpo": {"w": torch.tensor([3.0, -4.0])}, "dapo": {"w": torch.tensor([4.0, 3.0])}}
    theirs = {name: {"w": gradient["w"] * factor} for name, gradient in ours.items()}
    lines, as_expected = gradient_lines(ours, theirs)
    assert as_expected == equal
    assert factor < 0 or lines[2].endswith("| 1.4e+00 |")
    with pytest.raises(KeyError):
        gradient_lines(ours, {"grpo": {"v": ours["grpo"]["w"]}})
