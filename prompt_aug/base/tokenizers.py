"""Load the tokenizer of a model and check it for missing or damaged files."""

from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.hub import hub_answers


class TokenizerError(UserError):
    """A tokenizer that cannot be loaded, or that gives no tokens for text."""


def load_tokenizer(model: str) -> Any:
    """Return the tokenizer of a model folder or hub id. Raises TokenizerError.

    For a folder without tokenizer.json, transformers 5 silently creates an empty tokenizer. Every
    prompt would then have no tokens, and the model would score 0.
    """
    from huggingface_hub import constants
    from transformers import AutoTokenizer  # takes seconds

    remedy = "Name a model folder, or a hub id that is in the cache or can be downloaded."
    # Offline, the client would retry for a minute before it reads its cache. Without
    # trust_remote_code=False a tokenizer with code of its own would prompt on the terminal.
    local = Path(model).is_dir() or not hub_answers(constants.ENDPOINT)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model, local_files_only=local, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise TokenizerError(
            f"no tokenizer can be loaded from {model} ({why}). {remedy}"
        ) from error
    if not tokenizer.encode("1", add_special_tokens=False):
        raise TokenizerError(
            f"the tokenizer of {model} gives no token for '1': its files are lost or damaged. "
            "Copy them from the model that it comes from."
        )
    return tokenizer
