"""From a template and a question to the exact prompt string, without touching the tokenizer.

``Rendered.text`` is what to tokenise with ``add_special_tokens=False``: every special token that
the model wants, the BOS included, is already in it as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from jinja2.exceptions import TemplateError
from tqdm import tqdm

from prompt_aug.questions import Question
from prompt_aug.templates.template import SLOT, BankError, Template

Style = Literal["auto", "chat", "raw", "bare"]
Turn = Literal["system", "user"]
System = Literal["row", "template"]
Messages = tuple[tuple[str, str], ...]
# Llama 3.2 and later write today's date into the system message; the same run tomorrow must have
# the same prompts. This is the date that Llama 3.1 writes; other chat templates do not read it.
DATE = "26 Jul 2024"
# Arguments of apply_chat_template that this module sets, or that change what it returns.
RESERVED = ("conversation", "tokenize", "add_generation_prompt", "continue_final_message", "tools",
            "return_dict", "return_tensors", "return_assistant_tokens_mask")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How the texts of a template become one prompt, the same for every question of a run.

    `style` "chat" is the tokenizer's chat template, "raw" plain text (system, user and prefill, for
    base models), "bare" the same without a blank line behind the question, "auto" chat where the
    tokenizer has a chat template. `chat` are arguments of the chat template (``enable_thinking``).
    `instruction` is the turn of the template's system text: "user" puts it before the question,
    with a line break. `system` "row" replaces that text by a question's own system prompt, where it
    has one; "template" never does. Raises BankError for values that no rendering knows.
    """

    style: Style = "auto"
    chat: Mapping[str, Any] = field(default_factory=dict)
    instruction: Turn = "system"
    system: System = "row"

    def __post_init__(self) -> None:
        for key, known in (("style", Style), ("instruction", Turn), ("system", System)):
            if getattr(self, key) not in get_args(known):
                raise BankError(
                    f"{key}={getattr(self, key)}: must be {', '.join(get_args(known))}."
                )
        if reserved := [key for key in self.chat if key in RESERVED]:
            raise BankError(
                f"data.apply_chat_template_kwargs.{reserved[0]}: set by the rendering itself. "
                "Remove it."
            )
        if self.chat and self.style in ("raw", "bare"):
            raise BankError(
                f"data.apply_chat_template_kwargs={dict(self.chat)}: style {self.style} uses no "
                "chat template. Set recipe.augment.style=chat, or remove the arguments."
            )


PLAIN = Form()


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
    template: Template,
    question_text: str,
    tokenizer: Any = None,
    form: Form = PLAIN,
    system: str | None = None,
) -> Rendered:
    """The prompt of `question_text` under `template`; `system` is the question's own, if any.

    Where a chat template has no place for a system message, its text opens the user message.
    Raises ValueError for an empty question, one that contains a special token of the tokenizer
    (it could close the user's turn), a chat template that loses the question, and an argument
    that the chat template does not read.
    """
    if not question_text.strip():
        raise ValueError("an empty question cannot be rendered")
    _refuse_special_tokens(question_text, tokenizer)
    has_chat = getattr(tokenizer, "chat_template", None) is not None
    if not has_chat and (form.style == "chat" or form.chat):
        raise ValueError("style 'chat' needs a tokenizer with a chat template; use 'raw'")
    user = template.user.replace(SLOT, question_text)
    above = system if system is not None and form.system == "row" else template.system
    if form.instruction == "user" and above is not None:
        above, user = None, f"{above}\n{user}"
    messages: Messages = (("user", user),)
    if above is not None:
        messages = (("system", above), *messages)
    if form.style in ("auto", "chat") and has_chat:
        text, messages = _chat_text(messages, tokenizer, form.chat)
    else:
        text = _bos(tokenizer) + "\n\n".join(content for _, content in messages)
        text += "" if form.style == "bare" else "\n\n"
    return Rendered(
        text=text + template.prefill,
        messages=messages,
        prefill=template.prefill,
        stop=template.stop,
    )


def prompt_length(template: Template, text: str, tokenizer: Any, form: Form = PLAIN) -> int:
    """Tokens of the whole prompt of the question `text` under `template`, prefill included."""
    prompt = render(template, text, tokenizer, form).text
    return len(tokenizer.encode(prompt, add_special_tokens=False))


def overlong(
    questions: Sequence[Question],
    templates: Sequence[Template],
    tokenizer: Any,
    *,
    limit: int,
    form: Form = PLAIN,
    batch: int = 512,
) -> list[Overlong]:
    """The questions whose prompt has more than `limit` tokens under any of `templates`.

    Any of them may be drawn in some epoch. Each question is listed once, with its longest prompt.
    """
    found: list[Overlong] = []
    for start in tqdm(range(0, len(questions), batch), desc="prompt lengths", disable=None):
        part = questions[start : start + batch]
        pairs = [
            (q.uid, template.name, render(template, q.text, tokenizer, form, q.system).text)
            for q in part
            for template in templates
        ]
        ids = tokenizer([text for _, _, text in pairs], add_special_tokens=False)["input_ids"]
        longest: dict[str, Overlong] = {}
        for (uid, name, _), tokens in zip(pairs, ids, strict=True):
            if len(tokens) > max(limit, longest[uid].length if uid in longest else 0):
                longest[uid] = Overlong(uid=uid, template=name, length=len(tokens))
        found.extend(longest.values())
    return found


def _chat_text(
    messages: Messages, tokenizer: Any, arguments: Mapping[str, Any]
) -> tuple[str, Messages]:
    """The chat template's text up to the assistant's turn, and the messages that it was given."""
    own = str(arguments.get("chat_template") or tokenizer.chat_template)
    for name in arguments:
        if name != "chat_template" and name not in own:
            raise ValueError(
                f"data.apply_chat_template_kwargs.{name}: the tokenizer's chat template does not "
                "read it. Remove it, or name a model whose chat template does"
            )
    user = messages[-1][1]
    folded: Messages = (("user", "\n\n".join(content for _, content in messages)),)
    for attempt in dict.fromkeys((messages, folded)):
        chat = [{"role": role, "content": content} for role, content in attempt]
        try:
            text = tokenizer.apply_chat_template(
                chat,
                tokenize=False,
                add_generation_prompt=True,
                **{"date_string": DATE, **arguments},
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
