"""From a template and a question to the exact prompt string, without touching the tokenizer.

``Rendered.text`` is what to tokenise with ``add_special_tokens=False``: every special token that
the model wants, the BOS included, is already in it as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from tqdm import tqdm

from prompt_aug.questions import Question
from prompt_aug.templates.template import SLOT, Template

Style = Literal["auto", "chat", "raw"]
Messages = tuple[tuple[str, str], ...]
# Llama 3.2 and later write today's date into the system message; the same run tomorrow must have
# the same prompts. This is the date that Llama 3.1 writes; other chat templates do not read it.
DATE = "26 Jul 2024"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A prompt: `text` ends with `prefill`; `messages` are (role, content) pairs before it."""

    text: str
    messages: Messages
    prefill: str
    stop: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlong:
    """A question that has `length` tokens under `template`: more than the limit."""

    uid: str
    template: str
    length: int


def render(
    template: Template, question_text: str, tokenizer: Any = None, style: Style = "auto"
) -> Rendered:
    """The prompt of `question_text` under `template`.

    style "chat" uses the tokenizer's own chat template, "raw" plain text (system, user and
    prefill, for base models), "auto" chat where the tokenizer has a chat template. Where a chat
    template has no place for a system message, its text opens the user message.
    Raises ValueError for an empty question, one that contains a special token of the tokenizer
    (it could close the user's turn), or a chat template that loses the question.
    """
    if not question_text.strip():
        raise ValueError("an empty question cannot be rendered")
    _refuse_special_tokens(question_text, tokenizer)
    has_chat = getattr(tokenizer, "chat_template", None) is not None
    if style not in ("auto", "chat", "raw"):
        raise ValueError(f"unknown style {style!r}: known are auto, chat, raw")
    if style == "chat" and not has_chat:
        raise ValueError("style 'chat' needs a tokenizer with a chat template; use 'raw'")
    user = template.user.replace(SLOT, question_text)
    messages: Messages = (("user", user),)
    if template.system is not None:
        messages = (("system", template.system), *messages)
    if style != "raw" and has_chat:
        text, messages = _chat_text(messages, tokenizer)
    else:
        text = _bos(tokenizer) + "\n\n".join(content for _, content in messages) + "\n\n"
    return Rendered(
        text=text + template.prefill,
        messages=messages,
        prefill=template.prefill,
        stop=template.stop,
    )


def prompt_length(template: Template, text: str, tokenizer: Any, style: Style = "auto") -> int:
    """Tokens of the whole prompt of the question `text` under `template`, prefill included."""
    prompt = render(template, text, tokenizer, style).text
    return len(tokenizer.encode(prompt, add_special_tokens=False))


def overlong(
    questions: Sequence[Question],
    templates: Sequence[Template],
    tokenizer: Any,
    *,
    limit: int,
    style: Style = "auto",
    batch: int = 512,
) -> list[Overlong]:
    """The questions whose prompt has more than `limit` tokens under any of `templates`.

    Any of them may be drawn in some epoch. Each question is listed once, with its longest prompt.
    """
    found: list[Overlong] = []
    for start in tqdm(range(0, len(questions), batch), desc="prompt lengths", disable=None):
        part = questions[start : start + batch]
        pairs = [
            (question.uid, template.name, render(template, question.text, tokenizer, style).text)
            for question in part
            for template in templates
        ]
        ids = tokenizer([text for _, _, text in pairs], add_special_tokens=False)["input_ids"]
        longest: dict[str, Overlong] = {}
        for (uid, name, _), tokens in zip(pairs, ids, strict=True):
            if len(tokens) > max(limit, longest[uid].length if uid in longest else 0):
                longest[uid] = Overlong(uid=uid, template=name, length=len(tokens))
        found.extend(longest.values())
    return found


def _chat_text(messages: Messages, tokenizer: Any) -> tuple[str, Messages]:
    """The chat template's text up to the assistant's turn, and the messages that it was given."""
    user = messages[-1][1]
    folded: Messages = (("user", "\n\n".join(content for _, content in messages)),)
    for attempt in dict.fromkeys((messages, folded)):
        chat = [{"role": role, "content": content} for role, content in attempt]
        try:
            text = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True, date_string=DATE
            )
        except TemplateError:
            if attempt == folded:
                raise
            continue
        if all(content.strip() in text for _, content in attempt):
            return text, attempt
    raise ValueError(
        f"the tokenizer's chat template does not show the user message {user[:60]!r}...; "
        "use style='raw' or correct the chat template"
    )


def _bos(tokenizer: Any) -> str:
    """The BOS token as text if the tokenizer would put it before a plain text, else nothing."""
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return ""
    ids = tokenizer.encode("")
    return bos if ids and ids[0] == tokenizer.bos_token_id else ""


def _refuse_special_tokens(text: str, tokenizer: Any) -> None:
    for token in getattr(tokenizer, "all_special_tokens", ()):
        if token and token in text:
            raise ValueError(
                f"the question contains the special token {token!r}, which could end the user's "
                f"turn: {text[:60]!r}... Drop the question or rewrite it"
            )
