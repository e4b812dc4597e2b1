"""The models to evaluate: finished exports of a run, model folders and hub ids.

Every file of an export is compared with the digest in its manifest before it is sampled, because
an export without its tokenizer, or with the weights of another step, loads without an error.
"""

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from prompt_aug.base.commands import python_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import sha256
from prompt_aug.base.progress import Progress
from prompt_aug.base.tokenizers import commit_of
from prompt_aug.typed import read_typed
from recipe.machine import model_files
from recipe.run.folder import CHECKPOINT, MANIFEST, RunFolder, numbered, recorded_model

LARGE = 64 * 2**20  # bytes. Hashing 3 GB takes 10 s, and a run may have 198 checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model to evaluate. `identity` distinguishes two sets of weights."""

    step: int | None  # None for a model that is not part of a run
    model: str
    identity: dict[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)  # in the folder `model`, with SHA-256
    run: Path | None = None  # that of an export
    accepted: Collection[str] = ()  # files that may differ from the start model's, by the manifest
    positions: int | None = None  # the context length that an endpoint reports
    root: str | None = None  # where an endpoint says that its weights are

    @property
    def name(self) -> str:
        """``step_20``, or the model's own name, valid as the name of a folder."""
        if self.step is not None:
            return f"step_{self.step}"
        folder = Path(self.model)
        own = folder.resolve().name if folder.exists() else self.model
        return re.sub(r"[^\w.-]+", "--", own, flags=re.ASCII).strip(".-") or "model"


def find(
    run: Path, steps: Sequence[int] | None = None, *, partial: bool = False
) -> list[Checkpoint]:
    """Return the run's finished exports by step: those with a manifest.json. None: all steps.

    Raises UserError if one of `steps` or all are missing, unless `partial`.
    """
    exports = RunFolder(run).exports
    folders = numbered(exports, "step_")
    finished = {step: path for step, path in folders.items() if (path / MANIFEST).exists()}
    missing = sorted(set(steps or ()) - set(finished))
    if not partial and (missing or not finished):
        saved = sorted(numbered(RunFolder(run).checkpoints, CHECKPOINT))
        remedy = f"Run `{python_command('recipe.export', run)}`."
        if set(missing) - {0, *saved}:
            remedy = f"Name other steps: {saved} are saved." if saved else "No step is saved yet."
        of = f" of the steps {missing}" if missing else ""
        raise UserError(
            f"{exports} has no finished export (step_N with a {MANIFEST}){of}. Finished: "
            f"{[*finished] or 'none'}. {remedy}"
        )
    chosen = {step: path for step, path in finished.items() if steps is None or step in steps}
    return [from_manifest(folder, step) for step, folder in chosen.items()]


class Manifest(BaseModel):
    """What is read of the manifest.json of an export."""

    model_config = ConfigDict(strict=True)
    step: int | None = None
    model_path: str | None = None  # of a start model
    files: dict[str, str] = {}
    accepted: dict[str, str] = {}  # file: how it differs from the start model's


def from_manifest(folder: Path, step: int) -> Checkpoint:
    manifest = read_typed(folder / MANIFEST, Manifest, UserError)
    if manifest.step not in (None, step):
        raise UserError(f"{folder / MANIFEST} is not the manifest of step {step}")
    elsewhere, files = manifest.model_path, manifest.files
    model = (folder / elsewhere).resolve() if elsewhere else folder
    if elsewhere and not model.exists() and not Path(elsewhere).is_absolute():
        return Checkpoint(step=step, model=elsewhere, identity=_of_hub(elsewhere))
    own: dict[str, Any] = {"run": folder.parent.parent, "accepted": manifest.accepted}
    return Checkpoint(step=step, model=str(model), identity=identity_of(files), files=files, **own)


def has_changed(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Return True if the export in `folder` has other weights than those of `identity`.

    An export that was deleted, or that names the start model by its hub id, has not changed.
    """
    path = folder / MANIFEST
    files = read_typed(path, Manifest, UserError).files if path.is_file() else {}
    return bool(files) and identity_of(files) != identity


def from_model(model: str) -> Checkpoint:
    """Return the checkpoint of a Hugging Face folder (identified by its files) or a hub id."""
    folder = Path(model)
    if not folder.exists():
        if folder.is_absolute() or model.startswith(".") or model.count("/") > 1:
            raise UserError(f"model folder {model} does not exist")
        return Checkpoint(step=None, model=model, identity=_of_hub(model))
    if why := model_files.lacks_weights(folder):
        raise UserError(f"--model={model}: {why}. Copy or download the whole folder.")
    with Progress(f"digest of {folder.name}"):
        files = {path.name: sha256(path) for path in model_files.loaded(folder)}
    own: dict[str, Any] = {"model": model, "identity": identity_of(files), "files": files}
    run = folder.resolve().parent.parent
    if (folder / MANIFEST).is_file() and RunFolder(run).config.is_file():  # an export
        accepted = read_typed(folder / MANIFEST, Manifest, UserError).accepted
        own |= {"run": run, "accepted": accepted}
    return Checkpoint(step=None, **own)


def verify(checkpoint: Checkpoint, *, most: float = math.inf) -> None:
    """Raise UserError unless the model's files are those in its manifest, and no others.

    A chat template beside the weights changes every prompt. Files above `most` bytes need to exist;
    without a limit the files must also load as those of the run's start model.
    """
    folder, problems = Path(checkpoint.model), []
    for name, expected in checkpoint.files.items():
        path = folder / name
        try:
            if path.stat().st_size <= most and sha256(path) != expected:
                problems.append(f"{name} has changed")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
    if checkpoint.files:
        listed = {*checkpoint.files, MANIFEST}
        found = [path.name for path in model_files.loaded(folder)]
        problems += [f"{name} was added" for name in found if name not in listed]
    if problems:
        raise UserError(
            f"{checkpoint.name}: {folder} differs from its manifest: {'; '.join(problems[:5])}. "
            "Delete the exported folder and run recipe.export again (step 0: restore the start "
            "model)"
        )
    run = checkpoint.run  # loading a tokenizer takes a second, so it is read with the large files
    if run and checkpoint.files and most == math.inf and (start := recorded_model(run)[0]):
        model_files.compare(checkpoint.model, start, checkpoint.accepted)


def _of_hub(model: str) -> dict[str, Any]:
    """Return the identity of a hub id: with its commit, since other weights may be pushed to it."""
    return {"model": model, "commit": commit_of(model)}


def identity_of(files: Mapping[str, str]) -> dict[str, Any]:
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return {"files": hashlib.sha256(lines.encode()).hexdigest()}
