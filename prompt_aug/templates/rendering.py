"""Render a template and a question to the exact prompt string; the tokenizer is not changed.

Tokenize ``Rendered.text`` with ``add_special_tokens=False``: it contains all special tokens of the
prompt, the BOS included, as text.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from prompt_aug.base.errors import UserError
from prompt_aug.base.tokenizers import ChatTemplateError, chat_text
from prompt_aug.questions import Question, Reading, Turns
from prompt_aug.templates.template import SLOT, BankError, Template
from prompt_aug.turns import control_token
from prompt_aug.typed import shown

Style = Literal["auto", "chat", "raw", "bare", "row"]
Turn = Literal["system", "user"]
System = Literal["row", "template"]
SPELLED = {  # texts and numbers that people write for a boolean
    **dict.fromkeys("false no off n f 0 0.0 disable disabled none".split(), False),
    **dict.fromkeys("true yes on y t 1 1.0 enable enabled".split(), True),
}
_QUOTED = re.compile(r"""'([^'\n]*)'|"([^"\n]*)\"""")
_OPENED = re.compile(r"<(\w+)>\s*$")
# Arguments of apply_chat_template that this module sets, or that change its result.
RESERVED = ("conversation", "tokenize", "add_generation_prompt", "continue_final_message", "tools",
            "return_dict", "return_tensors", "return_assistant_tokens_mask", "chat_template",
            "documents")  # fmt: skip


class RenderError(UserError, ValueError):
    """A prompt that cannot be rendered. The message names the setting or quotes the question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Settings that turn the texts of a template into one prompt, the same for a whole run.

    `style`: "chat" uses the tokenizer's chat template, "raw" plain text (system, user and prefill,
    for base models), "bare" the same without a blank line after the question, "auto" chat if the
    tokenizer has a chat template, else raw. "row" is the row's own messages in the chat template,
    as in verl, without the texts of a template. `chat` are arguments of the chat template
    (``enable_thinking``). `instruction` is the turn of the template's system text: "user" puts it
    before the question, with a line break. `system`: "row" replaces that text by the question's own
    system prompt, if it has one; "template" never does. Raises BankError for unsupported values.
    """

    style: Style = "auto"
    chat: Mapping[str, Any] = field(default_factory=dict)
    instruction: Turn = "system"
    system: System = "row"

    @property
    def reading(self) -> Reading:
        """How a row's messages are read, see `prompt_aug.questions.from_row`."""
        return "all" if self.style == "row" else "last" if self.system == "template" else "one"

    def __post_init__(self) -> None:
        for key, kind in (("style", Style), ("instruction", Turn), ("system", System)):
            if getattr(self, key) not in get_args(kind):
                raise BankError(
                    f"{key}={getattr(self, key)}: unknown. Use {', '.join(get_args(kind))}."
                )
        if reserved := [key for key in self.chat if key in RESERVED]:
            raise BankError(
                f"data.apply_chat_template_kwargs.{reserved[0]}: not supported, or set "
                "by the rendering. Remove it."
            )
        if self.chat and self.style in ("raw", "bare"):
            raise BankError(
                f"data.apply_chat_template_kwargs={dict(self.chat)}: style {self.style} uses no "
                "chat template. Set recipe.augment.style=chat, or remove the arguments."
            )


PLAIN = Form()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A prompt. `text` ends with `prefill`; `messages` are the (role, content) pairs before it."""

    text: str
    messages: Turns
    prefill: str
    stop: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlong:
    """A question with `length` tokens under `template`, more than the limit."""

    uid: str
    template: str
    length: int


def render(
    template: Template,
    question_text: str,
    tokenizer: Any = None,
    form: Form = PLAIN,
    earlier: Turns = (),
) -> Rendered:
    """Return the prompt of `question_text` under `template`; `earlier` are the row's messages.

    If a chat template does not support a system message, its text opens the user message.
    Raises RenderError for an empty question, for a text of the data that contains a special token
    (it could end its turn), for a chat template that fails or omits the question, and for an
    argument that changes no prompt or reads as another boolean than it spells.
    """
    if not question_text.strip():
        raise RenderError("an empty question cannot be rendered")
    if form.style == "row":
        messages: Turns = (*earlier, ("user", question_text))
        text = _in_chat(messages, tokenizer, form)
        return Rendered(text=text, messages=messages, prefill="", stop=())
    own = dict(earlier).get("system") if form.system == "row" else None
    if token := control_token((own or "", question_text), tokenizer):
        raise RenderError(
            f"the question {question_text[:60]!r} or its system prompt contains the "
            f"special token {token!r}, which could end its turn. Drop or rewrite it."
        )
    has_chat = getattr(tokenizer, "chat_template", None) is not None
    if not has_chat and form.chat:
        raise RenderError(
            f"data.apply_chat_template_kwargs={dict(form.chat)}: the tokenizer has no chat "
            "template. Remove the arguments."
        )
    if not has_chat and form.style == "chat":
        raise RenderError(
            "recipe.augment.style=chat: the tokenizer has no chat template. Set "
            "recipe.augment.style=raw, or choose a model with a chat template."
        )
    above = template.system if own is None else own
    before = ""
    if form.instruction == "user" and above is not None:
        above, before = None, f"{above}\n"
    messages = (("user", before + template.user.replace(SLOT, question_text)),)
    if above is not None:
        messages = (("system", above), *messages)
    if form.style in ("auto", "chat") and has_chat:
        text, messages = _chat_text(messages, tokenizer, form)
    else:
        text = _bos(tokenizer) + "\n\n".join(content for _, content in messages)
        text += "" if form.style == "bare" else "\n\n"
    return Rendered(
        text=text + template.prefill,
        messages=messages,
        prefill=template.prefill,
        stop=template.stop,
    )


def tag_opened_twice(
    template: Template, question: Question, tokenizer: Any, form: Form
) -> str | None:
    """Return the tag, such as ``<think>``, that the prompt opens and the template requires again.

    The chat templates of thinking models open it right before the prefill.
    """
    text = render(template, question.text, tokenizer, form, question.earlier).text
    opened = _OPENED.search(text.removesuffix(template.prefill))
    return f"<{opened[1]}>" if opened and template.requires(opened[1]) else None


def _in_chat(messages: Turns, tokenizer: Any, form: Form) -> str:
    """Return the messages in the chat template. Raises RenderError if it fails."""
    try:
        return chat_text(tokenizer, messages, add_generation_prompt=True, **form.chat)
    except ChatTemplateError as error:
        raise RenderError(
            f"recipe.augment.style={form.style}: the tokenizer's chat template fails: {error}. "
            "Correct it, or set recipe.augment.style=raw."
        ) from error


def _chat_text(messages: Turns, tokenizer: Any, form: Form) -> tuple[str, Turns]:
    """Return the text up to the assistant's turn, and the messages that the template rendered."""
    folded = (("user", "\n\n".join(content for _, content in messages)),)
    for attempt in dict.fromkeys((messages, folded)):
        try:
            text = _in_chat(attempt, tokenizer, form)
        except RenderError:
            if attempt == folded:
                raise
            continue
        if all(content.strip() in text for _, content in attempt):
            roles = tuple(role for role, _ in attempt)
            arguments = json.dumps(dict(form.chat), default=str)
            if form.chat and (why := _misread(tokenizer, roles, arguments)):
                raise RenderError(f"data.apply_chat_template_kwargs.{why}")
            return text, attempt
    raise RenderError(
        f"recipe.augment.style={form.style}: the tokenizer's chat template does not show the user "
        f"message {messages[-1][1][:60]!r}... Correct it, or set recipe.augment.style=raw."
    )


@functools.lru_cache(maxsize=8)  # read for every prompt
def _misread(tokenizer: Any, roles: tuple[str, ...], arguments: str) -> str | None:
    """Return which of the chat template's arguments (JSON) does not do what it says, and why.

    Each must change the prompt under some value, if need be with the others turned. A text or
    number that spells a boolean must render as it, unless the template treats it as no other.
    """
    given, chat = json.loads(arguments), [(role, f"of the {role}") for role in roles]
    other = {str: "another text", int: 2, float: 2.5}
    quoted = [one or two for one, two in _QUOTED.findall(str(tokenizer.chat_template))]
    values = [True, False, 0, 1, *other.values(), *quoted]
    numbers = map(int, re.findall(r"\b\d{1,9}\b", str(tokenizer.chat_template)))
    values += [near for number in {*numbers} for near in (number - 1, number, number + 1)]

    def prompt(settings: dict[str, Any]) -> str:
        try:
            return chat_text(tokenizer, chat, add_generation_prompt=True, **settings)
        except ChatTemplateError as error:
            return str(error)

    for name, value in given.items():
        rest = {key: v for key, v in given.items() if key != name}
        turned = {key: not v for key, v in rest.items()}
        bases = [(settings, prompt(settings)) for settings in (rest, turned)]
        if all(prompt(s | {name: v}) == base for s, base in bases for v in (value, *values)):
            return (
                f"{name}={shown(value)}: it changes no prompt with the roles {', '.join(roles)}, "
                "so the tokenizer's chat template does not read it there. Remove it."
            )
        meant = SPELLED.get(str(value).strip().lower()) if type(value) in other else None
        as_given, yes, no, like_any = (
            prompt(rest | {name: v}) for v in (value, True, False, other[str])
        )
        if meant is None or type(value) is bool:
            # A text where a boolean is read, or a boolean where texts are: as any other text.
            of_texts = type(value) is bool  # texts that the template names are what it reads
            wrong_kind = (yes == no) == of_texts and (of_texts or value not in quoted)
            if as_given == like_any and wrong_kind:
                return (
                    f"{name}={shown(value)}: the tokenizer's chat template reads it as any other "
                    f"text. Write {'one of its texts' if of_texts else 'true or false'}."
                )
            continue
        as_meant, *like = (prompt(rest | {name: v}) for v in (meant, not meant, other[type(value)]))
        if as_given != as_meant and as_given in like:
            word = str(meant).lower()
            return (
                f"{name}={value!r}: the tokenizer's chat template does not read it as {word}. "
                f"Write {name}={word}, without quotes."
            )
    return None


def _bos(tokenizer: Any) -> str:
    """Return the BOS token as text if the tokenizer puts it before plain text, else ""."""
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return ""
    ids = tokenizer.encode("")
    return bos if ids and ids[0] == tokenizer.bos_token_id else ""
