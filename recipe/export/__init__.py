"""Export checkpoints to Hugging Face format: ``python -m recipe.export RUN``."""

from dataclasses import dataclass

from prompt_aug.base.errors import UserError


class ExportError(UserError):
    """A run, or a step of it, cannot be exported."""


class MismatchError(ExportError):
    """Shards that cannot be read, do not belong together, or differ from the merged model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """The adapter of a run: its scale is alpha / rank."""

    rank: int
    alpha: int
    start_model: str
