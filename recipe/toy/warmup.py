"""Tokenizer and start model: a byte-level BPE and a tiny Qwen2, trained on the demonstrations.

Bytes are the alphabet, so every text round-trips. Digits and newlines stay single tokens (verl
needs one token for a newline with qwen2-type models). Merges only shorten the prompts.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from prompt_aug.templates import Template, render
from recipe.toy.demonstrations import draw_demonstration
from recipe.toy.world import Problem, World, phrase, rephrasings

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BARE = Template(name="bare", category="free form", system=None, user="{question}")
IGNORED = -100  # torch's label of a token that is not in the loss


def build_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose merges are learned from `texts`, a function of them."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"\n|\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN, END_OF_TURN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Settings of the supervised phase: `updates` AdamW steps of `batch` demonstrations.

    In the first `bare_share` of the updates the prompt is the question alone and the batch twice
    as large: the arithmetic is learned on short sequences, the templates at the end.
    """

    updates: int = 1100
    bare_share: float = 0.65
    batch: int = 16
    learning_rate: float = 3e-3
    seed: int = 0


def build_model(tokenizer: Any, seed: int) -> Qwen2ForCausalLM:
    """Return an untrained Qwen2 of about one million parameters, in float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(torch.float32)


def encode(
    tokenizer: Any,
    world: World,
    template: Template | None,
    problem: Problem,
    key: tuple[object, ...],
    seed: int,
) -> tuple[list[int], list[int]]:
    """Return (token ids, labels): the prompt outside the loss, the demonstration inside it.

    Without a template the prompt is the question alone.
    """
    rephrasing = random.Random(repr(key)).choice(rephrasings(problem, seed))
    frame = BARE if template is None else template
    rendered = render(frame, phrase(problem, rephrasing), tokenizer).text
    prompt = tokenizer.encode(rendered, add_special_tokens=False)
    text = draw_demonstration(world, problem, frame.name, *key)
    response = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + response, [IGNORED] * len(prompt) + response


def collate(
    rows: Sequence[tuple[list[int], list[int]]], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (ids_BT, mask_BT, labels_BT), padded on the right."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([r + [pad] * (width - len(r)) for r, _ in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r, _ in rows])
    labels = torch.tensor([r + [IGNORED] * (width - len(r)) for _, r in rows])
    return ids, mask, labels


def train(
    model: Qwen2ForCausalLM,
    tokenizer: Any,
    world: World,
    problems: Sequence[Problem],
    templates: Sequence[Template],
    settings: WarmUp,
    on_update: Callable[[], object] = int,  # does nothing
) -> float:
    """Minimize the mean cross entropy of the demonstration tokens; return the last loss (nats).

    The rate rises over a tenth of the updates, then falls linearly to a tenth of its peak.
    """
    rng = random.Random(settings.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    loss = torch.zeros(())
    for update in range(settings.updates):
        for group in optimizer.param_groups:
            group["lr"] = _rate(settings, update)
        bare = update < settings.bare_share * settings.updates
        keys = [(settings.seed, update, i) for i in range(settings.batch * (2 if bare else 1))]
        drawn = [(None if bare else rng.choice(templates), rng.choice(problems)) for _ in keys]
        rows = [
            encode(tokenizer, world, template, problem, key, settings.seed)
            for key, (template, problem) in zip(keys, drawn, strict=True)
        ]
        ids, mask, labels = collate(rows, tokenizer.pad_token_id)
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_update()
    return float(loss.detach())


def _rate(settings: WarmUp, update: int) -> float:
    rise = min(1.0, (update + 1) / (0.1 * settings.updates))
    fall = 1.0 - 0.9 * update / settings.updates
    return settings.learning_rate * min(rise, fall)
