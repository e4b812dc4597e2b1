"""Checks of a model's files that need neither torch nor vLLM."""

from collections.abc import Iterator
from pathlib import Path

from prompt_aug.base.files import read_json

# Of attention heads in vLLM 0.28 on a CPU; a test compares them, since vLLM's import takes seconds.
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
POINTER = b"version https://git-lfs"  # begins the file that a clone without Git LFS has


def lacks_weights(folder: Path) -> str:
    """Return what a model folder lacks of its weights, "" if nothing; files are not read whole."""
    # The first kind that is there is read.
    for unsplit in ("model.safetensors", "pytorch_model.bin"):
        if names := [path.name for path in folder.glob(f"*{Path(unsplit).suffix}")]:
            break
    else:
        return "it has no weights (*.safetensors or *.bin)"
    index = folder / f"{unsplit}.index.json"
    # vLLM takes the parts of a .bin that are there.
    split = unsplit not in names and index.is_file()
    listed = read_json(index).get("weight_map", {}) if split else {}
    if lost := sorted({*listed.values()} - {*names}):
        return f"{len(lost)} files of {index.name} are missing ({lost[0]})"
    for name in names:
        with (folder / name).open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                return f"{name} is a pointer of Git LFS (`git lfs pull` replaces it)"
    return ""


def model_folder(model: str) -> Iterator[str]:
    """Yield what is wrong with a path; a hub id is checked later, by transformers."""
    if not Path(model).is_dir():
        if not model.startswith(("/", ".", "~")) and model.count("/") <= 1:
            return
        yield f"recipe.model_path={model}: no such folder, and no hub id, which is OWNER/NAME."
    elif not (Path(model) / "config.json").is_file():
        yield f"recipe.model_path={model}: there is no config.json in it. Name a model folder."
    elif why := lacks_weights(Path(model)):
        yield f"recipe.model_path={model}: {why}. Copy or download the whole folder."


def unsupported_head(size: int) -> str:
    """Return why vLLM on a CPU cannot use attention heads of `size`, "" if it can."""
    if size in HEAD_SIZES:
        return ""
    return (
        f"its attention heads have {size} dimensions, and vLLM on a CPU supports "
        f"{', '.join(map(str, HEAD_SIZES))}"
    )
