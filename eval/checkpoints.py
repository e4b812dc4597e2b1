"""Which models there are to evaluate: the finished exports of a run, model folders, hub ids.

Every file that an export's manifest names is compared with its digest before anything is scored:
an export without its tokenizer or with another step's weights still loads, and scores nonsense.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.errors import EvaluationError
from prompt_aug.base.files import FileError, read_json, sha256, write_json
from prompt_aug.base.progress import Progress
from recipe.run.folder import MANIFEST, RunFolder, numbered

MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")
# A digest of a bigger file is remembered with the file's size and time of change, and taken again
# only when one of them differs: 3 GB take 10 s from a disk, for each of up to 198 checkpoints.
REMEMBERED_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model to evaluate. `identity` tells two sets of weights apart; `step` None: no run.

    `files` are the digests that the files in the folder `model` must have, by name.
    """

    step: int | None
    model: str
    identity: dict[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``step_20``, or the model's own name, as the name of a folder."""
        if self.step is not None:
            return f"step_{self.step}"
        folder = Path(self.model)
        own = folder.resolve().name if folder.exists() else self.model
        return re.sub(r"[^\w.-]+", "--", own, flags=re.ASCII).strip(".-") or "model"


class Digests:
    """SHA-256 of files; those of big ones are remembered in the file `memo`."""

    def __init__(self, memo: Path | None = None) -> None:
        self._memo = memo
        try:
            self._known: dict[str, Any] = read_json(memo) if memo else {}
        except FileError:  # not there yet, or damaged: digests are taken again
            self._known = {}

    def of(self, path: Path) -> str:
        """The digest of `path`; FileNotFoundError where it is not there."""
        stat = path.stat()
        if stat.st_size < REMEMBERED_BYTES or self._memo is None:
            return sha256(path)
        key, state = str(path.resolve()), [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(key, {})
        if known.get("state") != state:
            known = {"state": state, "sha256": sha256(path)}
            self._known[key] = known
            write_json(self._memo, self._known)
        return str(known["sha256"])


def find(run: Path, steps: Sequence[int] | None = None) -> tuple[list[Checkpoint], list[str]]:
    """The run's exported checkpoints by step, and a note for each folder that is not done.

    A folder is done when it holds manifest.json. `steps` None means all; a step that is asked for
    and not there is an error.
    """
    exports, found, notes = RunFolder(run).exports, [], []
    named = numbered(exports, "step_")
    for folder in sorted(set(exports.glob("step_*")) - set(named.values())):
        notes.append(f"{folder} is ignored: its name is not a step")
    for step, folder in named.items():
        if not (folder / MANIFEST).exists():
            notes.append(f"{folder} is ignored: it has no {MANIFEST}, so its export is not done")
        elif steps is None or step in steps:
            found.append(_from_manifest(folder, step))
    missing = sorted(set(steps or ()) - {checkpoint.step for checkpoint in found})
    if missing:
        there = [step for step, folder in named.items() if (folder / MANIFEST).exists()]
        raise EvaluationError(f"{exports} has no finished export of the steps {missing}: {there}")
    if not found:
        raise EvaluationError(
            f"{exports} has no finished export (step_N with a {MANIFEST}): run "
            f"`python -m recipe.export {run}` first"
        )
    return found, notes


def _from_manifest(folder: Path, step: int) -> Checkpoint:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("step", step) != step:
        raise EvaluationError(f"{folder / MANIFEST} is not the manifest of step {step}")
    elsewhere = manifest.get("model_path")
    model = (folder / elsewhere).resolve() if elsewhere else folder
    if elsewhere and not model.exists() and not Path(elsewhere).is_absolute():
        return Checkpoint(step=step, model=elsewhere, identity={"model": elsewhere})  # a hub id
    files = manifest.get("files")
    if not isinstance(files, dict) or "config.json" not in files:
        raise EvaluationError(
            f"{folder / MANIFEST} names no files of a model: delete {folder} and export it again"
        )
    return Checkpoint(
        step=step, model=str(model), identity={"files": _digest(files)}, files=dict(files)
    )


def from_model(model: str, digests: Digests | None = None) -> Checkpoint:
    """A Hugging Face folder, identified by its files' digests, or a hub id as it stands."""
    folder, digests = Path(model), digests or Digests()
    if not folder.exists():
        if folder.is_absolute() or model.startswith(".") or model.count("/") > 1:
            raise EvaluationError(f"model folder {model} does not exist")
        return Checkpoint(step=None, model=model, identity={"model": model})
    if not (folder / "config.json").exists():
        raise EvaluationError(f"{model} is not a Hugging Face model folder: config.json is missing")
    with Progress(f"digest of {folder.name}"):
        files = {path.name: digests.of(path) for path in _model_files(folder)}
    return Checkpoint(step=None, model=model, identity={"files": _digest(files)}, files=files)


def verify(checkpoint: Checkpoint, digests: Digests, *, most: float = math.inf) -> None:
    """Refuse a model whose files are not, all of them, those that its manifest names.

    Also a file that the manifest does not name: a chat template put beside the weights changes
    every prompt. Of files above `most` bytes only the presence is looked at.
    """
    folder, problems = Path(checkpoint.model), []
    for name, wanted in checkpoint.files.items():
        path = folder / name
        try:
            if path.stat().st_size <= most and digests.of(path) != wanted:
                problems.append(f"{name} is another file")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
    if checkpoint.files:
        known = {*checkpoint.files, MANIFEST}
        problems += [f"{p.name} was added" for p in _model_files(folder) if p.name not in known]
    if problems:
        raise EvaluationError(
            f"{checkpoint.name}: {folder} is not what was exported: {'; '.join(problems[:5])}. "
            "Its scores would be another model's: delete the exported folder and run recipe.export "
            "again (step 0: bring the start model back)"
        )


def _model_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)})


def _digest(files: Mapping[str, str]) -> str:
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
