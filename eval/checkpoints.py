"""Which models there are to evaluate: the finished exports of a run, or one model folder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import EvaluationError
from prompt_aug.files import digests, read_json
from recipe.run.folder import MANIFEST, RunFolder, numbered

MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model to evaluate. `identity` tells two sets of weights apart; `step` None: no run."""

    step: int | None
    model: str
    identity: dict[str, Any]

    @property
    def name(self) -> str:
        """``step_20``, or the model's own name."""
        return f"step_{self.step}" if self.step is not None else self.model


def find(run: Path, steps: Sequence[int] | None = None) -> tuple[list[Checkpoint], list[str]]:
    """The run's exported checkpoints by step, and a note for each folder that is not done.

    A folder is done when it holds manifest.json. `steps` None means all; a step that is asked for
    and not there is an error.
    """
    exports, found, notes = RunFolder(run).exports, [], []
    named = numbered(exports, "step_")
    for folder in sorted(set(exports.glob("step_*")) - set(named.values())):
        notes.append(f"{folder} is ignored: its name is no step")
    for step, folder in named.items():
        if not (folder / MANIFEST).exists():
            notes.append(f"{folder} is ignored: it has no {MANIFEST}, so its export is not done")
        else:
            found.append(_from_manifest(folder, step))
    if steps is not None:
        there = [checkpoint.step for checkpoint in found]
        missing = sorted(set(steps) - set(there))
        if missing:
            raise EvaluationError(
                f"{run}/hf has no finished export of the steps {missing}; it has {there}"
            )
        found = [checkpoint for checkpoint in found if checkpoint.step in set(steps)]
    if not found:
        raise EvaluationError(
            f"{run}/hf has no finished export (step_N with a manifest.json): run "
            f"`python -m recipe.export {run}` first"
        )
    return found, notes


def _from_manifest(folder: Path, step: int) -> Checkpoint:
    manifest = read_json(folder / MANIFEST)
    if manifest.get("step", step) != step:
        raise EvaluationError(f"{folder}/manifest.json says step {manifest['step']}")
    elsewhere = manifest.get("model_path")
    model = (folder / elsewhere).resolve() if elsewhere else folder
    if elsewhere and not model.exists() and not Path(elsewhere).is_absolute():
        return Checkpoint(step=step, model=elsewhere, identity={"model": elsewhere})  # a hub id
    if not (model / "config.json").exists():
        raise EvaluationError(f"{folder}: no model in {model} (config.json is missing)")
    files = manifest.get("files") or file_digests(model)
    return Checkpoint(step=step, model=str(model), identity={"files": _digest(files)})


def from_model(model: str) -> Checkpoint:
    """A Hugging Face folder, identified by its files' digests, or a hub id as it stands."""
    folder = Path(model)
    if not folder.exists():
        if folder.is_absolute() or model.startswith(".") or model.count("/") > 1:
            raise EvaluationError(f"model folder {model} does not exist")
        return Checkpoint(step=None, model=model, identity={"model": model})
    if not (folder / "config.json").exists():
        raise EvaluationError(f"{model} is no Hugging Face model folder: config.json is missing")
    return Checkpoint(step=None, model=model, identity={"files": _digest(file_digests(folder))})


def file_digests(folder: Path) -> dict[str, str]:
    """sha256 of each file that makes the model what it is, by name."""
    paths = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)})
    return digests(paths, folder, progress=f"digest of {folder.name}")


def _digest(files: dict[str, str]) -> str:
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
