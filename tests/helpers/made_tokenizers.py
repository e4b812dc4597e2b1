"""Byte-level tokenizers with the special tokens of public models, in the same places."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
PHI = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
GPT_OSS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final"
    "{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def tokenizer(
    chat: str | None,
    special: tuple[str, ...],
    bos: str | None = None,
    *,
    eos: str | None = None,
    unlisted: tuple[str, ...] = (),
    plain: tuple[str, ...] = (),
) -> Any:
    """Return a tokenizer with the chat template, BOS put first where there is one.

    `special` tokens are in the map of special tokens; `unlisted` ones are special outside of it,
    `plain` ones are added with ``special=False``.
    """
    names = [*special, *([bos] if bos else []), *([eos] if eos else []), "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*dict.fromkeys(names), *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocab[bos])]
        )
    core.add_special_tokens([AddedToken(text, special=True) for text in unlisted])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        pad_token="<pad>",
        additional_special_tokens=list(special),
    )
    made.chat_template = chat
    return made


def qwen_base(tags: bool = False) -> Any:
    """A base model's EOS, and the chat template of the instruction model."""
    turns, end = ("<|im_start|>", "<|im_end|>"), "<|endoftext|>"
    more = TAGS if tags else ()
    return tokenizer(CHATML, (*turns, *more), eos=end, plain=("<tool_call>", "</tool_call>"))


def llama_3() -> Any:
    headers = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    end, reserved = "<|end_of_text|>", "<|reserved_special_token_0|>"
    return tokenizer(LLAMA, (), "<|begin_of_text|>", eos=end, unlisted=(*headers, reserved))


def gemma() -> Any:
    turns, text = ("<start_of_turn>", "<end_of_turn>"), ("\n", "\n\n", "user", "<b>", "</b>")
    return tokenizer(GEMMA, turns, "<bos>", eos="<eos>", plain=text)


def deepseek() -> Any:
    plain = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
    bos, eos = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    return tokenizer(DEEPSEEK, (), bos, eos=eos, plain=plain)


def phi() -> Any:
    turns = ("<|user|>", "<|assistant|>", "<|end|>")
    return tokenizer(PHI, (), eos="<|endoftext|>", unlisted=turns)


def gpt_oss() -> Any:
    turns = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    return tokenizer(GPT_OSS, (), eos="<|return|>", unlisted=turns)
