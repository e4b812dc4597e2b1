"""Control tokens of a tokenizer: those that data may not bring into a prompt, and those that end a
response.

Training, validation, evaluation and endpoints cut responses with `end_of_turn`. Tags such as
``<think>`` stay in the text, also where the tokenizer has them as special tokens.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prompt_aug.base.tokenizers import ChatTemplateError, chat_text, generation_ends
from prompt_aug.grading.extract import END_MARKERS

_MARKUP = re.compile(r"<.+>|\[.+\]")
_TAG = re.compile(r"</?(\w+)>")
_CHAT = (("user", "first question"), ("assistant", "first answer"), ("user", "second question"))


@functools.lru_cache(maxsize=8)  # read for every prompt, and Llama 3 has 256
def control_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of the special tokens, and of added ones that the chat template writes.

    DeepSeek's role tokens are added tokens with ``special=False``, as are Gemma's line breaks and
    HTML tags, which are text. Pairs of tags (``<think>``, ``</think>``) are text in any case.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    chat = str(getattr(tokenizer, "chat_template", ""))
    contents = {token.content for token in added.values()}
    named = {getattr(tokenizer, f"{name}_token", None) for name in ("bos", "eos", "pad", "unk")}

    def is_tag(text: str) -> bool:
        tag = _TAG.fullmatch(text)
        pair = {f"<{tag[1]}>", f"</{tag[1]}>"} if tag else {None}
        return pair <= contents and text not in named

    return {
        token.content: number
        for number, token in added.items()
        if (token.special or (token.content in chat and _MARKUP.fullmatch(token.content)))
        and not is_tag(token.content)
    }


def control_token(texts: Iterable[str], tokenizer: Any) -> str | None:
    """Return a control token that one of `texts` contains, None without one."""
    tokens = control_tokens(tokenizer)
    return next((token for text in texts for token in tokens if token in text), None)


def _between_turns(tokenizer: Any) -> list[int]:
    """Return the tokens that the chat template writes between an answer and the next question."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if not template or "<|channel|>" in template:  # gpt-oss: several messages are one response
        return []
    try:
        text = chat_text(tokenizer, _CHAT)
    except ChatTemplateError:  # `render` reports what it needs of the template
        return []
    between = text.partition(_CHAT[1][1])[2].partition(_CHAT[2][1])[0]
    return list(tokenizer.encode(between, add_special_tokens=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOfTurn:
    """The token ids and the texts that end a response: the model's, or the start of the next turn.

    A model that was trained from a base model may end with a token that is not its EOS.
    """

    ids: frozenset[int]
    texts: tuple[str, ...]
    tokenizer: Any

    def text(self, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Return the text of a response up to its end."""
        end = next((place for place, token in enumerate(ids) if token in self.ids), len(ids))
        return self.cut(self.tokenizer.decode(ids[:end], skip_special_tokens=False), stop)

    def cut(self, text: str, stop: Sequence[str] = ()) -> str:
        """Return `text` up to an end of the turn, and with the first of the strings `stop`."""
        for end in self.texts:
            text = text.partition(end)[0]
        ends = [text.find(string) + len(string) for string in stop if string in text]
        return text[: min(ends, default=len(text))]


@functools.lru_cache(maxsize=8)
def end_of_turn(tokenizer: Any) -> EndOfTurn:
    """Read EOS, padding, generation configuration and chat template of the tokenizer's model."""
    control = control_tokens(tokenizer)
    ids = set(_between_turns(tokenizer)) & set(control.values())
    named = (*END_MARKERS, getattr(tokenizer, "pad_token", None))
    ids |= {control[text] for text in named if text in control and _MARKUP.fullmatch(text)}
    ids |= generation_ends(tokenizer)
    if (eos := getattr(tokenizer, "eos_token_id", None)) is not None:
        ids.add(eos)
    texts = [text for text, number in control.items() if number in ids]
    return EndOfTurn(ids=frozenset(ids), texts=(*END_MARKERS, *texts), tokenizer=tokenizer)
