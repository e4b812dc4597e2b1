"""Sample and grade responses of a model to questions of its world, without an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prompt_aug.extraction import extraction
from prompt_aug.grading import grade
from prompt_aug.templates import Template, render
from prompt_aug.turns import end_of_turn
from recipe.toy.demonstrations import FILLER
from recipe.toy.sampling import draw

ROWS = 256  # responses sampled in one batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One response: its text, whether its answer is right, and its mean entropy per token, nats."""

    text: str
    right: bool
    format: float  # the template's format reward
    tokens: int
    entropy: float
    filler: float  # the part of `entropy` that is on letters of a world's filler


def filler_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the tokens of one letter of a world's filler, with or without a leading space."""
    known = tokenizer.get_vocab()
    spelled = [
        tokenizer.convert_ids_to_tokens(tokenizer.encode(f"{s}{c}"))
        for c in FILLER
        for s in ("", " ")
    ]
    return frozenset(known[token] for tokens in spelled for token in tokens if token[-1] in FILLER)


class Sampler:
    """A model and its tokenizer, on the CPU in float32."""

    def __init__(self, folder: Path, *, max_tokens: int, seed: int) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.max_tokens, self.seed = max_tokens, seed
        self.verdicts: dict[tuple[str, tuple[str, ...], str], tuple[bool, float]] = {}
        self.letters = filler_tokens(self.tokenizer)

    def sample(
        self,
        texts: Sequence[str],
        golds: Sequence[Sequence[str]],
        template: Template,
        *,
        samples: int,
        temperature: float = 1.0,
    ) -> list[list[Sample]]:
        """Return `samples` graded responses per text; temperature 0 is greedy, for one sample."""
        step = max(1, ROWS // samples)
        found: list[list[Sample]] = []
        for start in range(0, len(texts), step):
            torch.manual_seed(self.seed * 1_000_003 + start)
            asked = texts[start : start + step]
            prompts = [render(template, text, self.tokenizer).text for text in asked]
            ids_BT, entropy_BT = self.draw(prompts, samples, temperature)
            graded = [
                self._graded(ids, entropy, golds[start + i // samples], template)
                for i, (ids, entropy) in enumerate(zip(ids_BT.tolist(), entropy_BT, strict=True))
            ]
            found += [graded[i : i + samples] for i in range(0, len(graded), samples)]
        return found

    def encoded(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return input_ids and attention_mask of a batch, padded on the left."""
        return self.tokenizer(
            list(prompts),
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            return_token_type_ids=False,
        )

    def draw(
        self, prompts: Sequence[str], samples: int, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and entropies of `samples` responses per prompt by `sampling.draw`."""
        return draw(
            self.model,
            **self.encoded(prompts),
            samples=samples,
            temperature=temperature,
            max_tokens=self.max_tokens,
            end=self.tokenizer.eos_token_id,
            pad=self.tokenizer.pad_token_id,
        )

    def _graded(
        self, ids: list[int], entropy: torch.Tensor, gold: Sequence[str], template: Template
    ) -> Sample:
        end = self.tokenizer.eos_token_id
        length = ids.index(end) + 1 if end in ids else len(ids)
        text = end_of_turn(self.tokenizer).text(ids)
        case = (text, tuple(gold), template.name)
        if case not in self.verdicts:  # a confident policy repeats its responses
            right = grade(text, list(gold), extraction=extraction("default", template)).correct
            self.verdicts[case] = right, template.format_reward(text)
        right, format_reward = self.verdicts[case]
        filler = [i for i, token in enumerate(ids[:length]) if token in self.letters]
        return Sample(
            text=text,
            right=right,
            format=format_reward,
            tokens=length,
            entropy=float(entropy[:length].mean()),
            filler=float(entropy[filler].sum()) / length,
        )
