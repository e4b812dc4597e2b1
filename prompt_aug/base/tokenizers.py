"""Load the tokenizer of a model and check it for missing or damaged files."""

import contextlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json
from prompt_aug.base.places import hub_answers

# Chat templates that write today's date would change the prompts of a run, and of evaluations that
# are compared, every day. This is the date that Llama 3.1 writes.
DATE = datetime(2024, 7, 26)
DATED = {"date_string": DATE.strftime("%d %b %Y"), "strftime_now": DATE.strftime}


class TokenizerError(UserError):
    """A tokenizer that cannot be loaded, or that gives no tokens for text."""


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a model folder or hub id. Raises TokenizerError.

    For a folder without tokenizer.json, transformers 5 silently creates an empty tokenizer. Every
    prompt would then have no tokens, and the model would score 0.
    """
    from transformers import AutoTokenizer  # takes seconds

    remedy = "Name a model folder, or a hub id that is in the cache or can be downloaded."
    try:
        # Without trust_remote_code=False one with code of its own would prompt on the terminal.
        tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=_is_local(model), trust_remote_code=False
        )
    except Exception as error:  # the tokenizers package raises nothing narrower
        why = (str(error).strip() or repr(error)).splitlines()[0]
        raise TokenizerError(
            f"no tokenizer can be loaded from {model} ({why}). {remedy}"
        ) from error
    if type(tokenizer).__name__ == "MistralCommonBackend":  # it reads no control tokens from text
        raise TokenizerError(
            f"the tokenizer of {model} is Mistral's, of tekken.json, without a chat template. Name "
            "a copy of the model that has tokenizer.json and not tekken.json."
        )
    if not tokenizer.encode("1", add_special_tokens=False):
        raise TokenizerError(
            f"the tokenizer of {model} gives no token for '1': its files are lost or damaged, as "
            "tokenizer.json. Copy them from the model that it comes from."
        )
    return tokenizer


class ChatTemplateError(Exception):
    """The chat template fails; the message has the class of the error."""


def chat_text(tokenizer: Any, chat: Sequence[tuple[str, str]], /, **arguments: Any) -> str:
    """Return the (role, content) pairs in the tokenizer's chat template, which may raise anything.

    For a template that reads the day it is `DATE`. Raises ChatTemplateError.
    """
    messages = [{"role": role, "content": content} for role, content in chat]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **DATED | arguments))
    except Exception as error:  # the template is code of the model's folder
        raise ChatTemplateError(f"{type(error).__name__}: {error}") from error


def reads_date(tokenizer: Any) -> bool:
    """Return True if the chat template names a variable that has the date."""
    return any(name in str(tokenizer.chat_template) for name in DATED)


def model_json(model: str, name: str) -> Any:
    """Return the JSON file `name` of a model folder or hub id, None if there is none."""
    path = _file(model, name)
    return read_json(Path(path)) if path else None


def commit_of(model: str) -> str | None:
    """Return the commit of a hub id that is loaded, None if it is not known."""
    from transformers.utils.hub import extract_commit_hash

    return extract_commit_hash(_file(model, "config.json"), None)


def folder_of(model: str) -> Path | None:
    """Return the folder of a model; of a hub id, that in the cache. None if there is none."""
    path = _file(model, "config.json", cached=True)
    return Path(path).parent if path else None


def _file(model: str, name: str, *, cached: bool = False) -> str | None:
    from transformers.utils.hub import cached_file

    with contextlib.suppress(OSError):  # no such file or model
        return cached_file(model, name, local_files_only=cached or _is_local(model))
    return None


def generation_ends(tokenizer: Any) -> frozenset[int]:
    """Return the EOS ids of the generation configuration of the tokenizer's model.

    Without that file, as in transformers, those of the model's configuration.
    """
    model = str(getattr(tokenizer, "name_or_path", ""))
    for name in ("generation_config.json", "config.json") if model else ():
        if (content := model_json(model, name)) is not None:
            return frozenset(as_list(content.get("eos_token_id")))
    return frozenset()


def as_list(ids: Any) -> list[int]:
    """Return the EOS ids of a configuration, which may be one, several or null."""
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _is_local(model: str) -> bool:
    """Return whether to read no network: offline, the client would retry for a minute."""
    from huggingface_hub import constants

    return Path(model).is_dir() or not hub_answers(constants.ENDPOINT)
