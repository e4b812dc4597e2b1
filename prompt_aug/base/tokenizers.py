"""The tokenizer of a model, checked for files that are lost or damaged."""

from typing import Any

from prompt_aug.base.errors import UserError


class TokenizerError(UserError):
    """From a model's folder or hub id no tokenizer can be loaded, or one that knows no text."""


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a model, given as a folder or a hub id; raises TokenizerError.

    Of a folder that has lost tokenizer.json transformers 5 makes an empty tokenizer without a
    word. Every prompt then has no tokens, and a model that is asked nothing scores 0.
    """
    from transformers import AutoTokenizer  # seconds: what can be refused without it comes before

    remedy = "name a model folder, or a hub id that is in the cache or can be downloaded"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise TokenizerError(
            f"no tokenizer can be loaded from {model} ({why}); {remedy}"
        ) from error
    if not tokenizer.encode("1", add_special_tokens=False):
        raise TokenizerError(
            f"the tokenizer of {model} gives no token for '1': its files are lost or damaged; "
            "copy them from the model that it comes from"
        )
    return tokenizer
