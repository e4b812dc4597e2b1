"""Record of a run's start model: model.json holds what loads of it beside the weights."""

import functools
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import write_json
from prompt_aug.typed import read_record
from recipe.machine.model_files import TYPES, describe
from recipe.run.folder import RunFolder, read_config


def start_model(run: Path) -> dict[str, Any]:
    """Return `describe` of a run's start model as it is now. Raises UserError or KeyError."""
    section = read_config(run)["actor_rollout_ref"]["model"]
    overrides = section.get("override_config") or {}
    return describe(section["path"], overrides.get("model_config", overrides))


def record(run: Path) -> None:
    """Write model.json at the first start of a run."""
    if not (path := RunFolder(run).model).is_file():
        write_json(path, start_model(run))


@functools.cache
def recorded(run: Path) -> tuple[dict[str, Any] | None, str]:
    """Return model.json; for an older run that of its start model as it is now, and a note."""
    if (path := RunFolder(run).model).is_file():
        return read_record(path, *TYPES, **TYPES), ""
    note = f"note: {run} has not recorded how its start model's files load"
    try:
        return start_model(run), f"{note}: compared with those of now"
    except (UserError, KeyError):
        return None, f"{note}, and they do not: tokenizer and config.json are unproven"
