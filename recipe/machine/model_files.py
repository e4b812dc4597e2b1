"""Checks of a model's files that need neither torch nor vLLM.

Export and sweep compare what loads of a checkpoint with what loaded of the run's start model
(`recipe.run.folder`), because a lost or changed file may load without an error.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, read_text, write_json, write_text
from prompt_aug.base.tokenizers import as_list, folder_of, load_tokenizer, model_json
from prompt_aug.turns import control_tokens, end_of_turn
from prompt_aug.typed import read_record

# Of attention heads in vLLM 0.28 on a CPU; a test compares them, since vLLM's import takes seconds.
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
GENERATION = "generation_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
FILES = ("config.json", *TOKENIZER, GENERATION)
TYPES = {  # of model.json
    **{"config": dict[str, Any], "overrides": list[str], "ends": list[int]},
    **{"generation_config": dict[str, Any] | None, **dict.fromkeys(TOKENIZER, str)},
}
TOKENIZERS = (  # all files that a tokenizer may be loaded from
    *TOKENIZER, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "vocab.txt", "*.model", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
DTYPE_KEYS = ("dtype", "torch_dtype")
DRAFTS = {"num_nextn_predict_layers", "mtp_num_hidden_layers"}  # layers that verl does not train
NO_LOGIT = {  # fields of config.json that change no logit; verl sets the last ones
    "_name_or_path", "transformers_version", *DTYPE_KEYS, "use_cache",
    "attn_implementation", *DRAFTS, *IDS,
}  # fmt: skip
PROBE = "What is $\\frac{1}{2}$?\n\n\\boxed{3.5}.  It's\t1234567 e\u0301 É ﬁ½ 数 <b>"
LOADED = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")
POINTER = b"version https://git-lfs"  # begins the file that a clone without Git LFS has


def loaded(folder: Path) -> list[Path]:
    """Return the files that may be loaded of a model; README.md, for example, is none."""
    return sorted({path for pattern in LOADED for path in folder.glob(pattern)})


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
    listed = read_record(index, weight_map=dict[str, str]).get("weight_map", {}) if split else {}
    if lost := sorted({*listed.values()} - {*names}):
        return f"{len(lost)} files of {index.name} are missing ({lost[0]})"
    for name in names:
        with (folder / name).open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                return f"{name} is a pointer of Git LFS (`git lfs pull` replaces it)"
    return ""


def lacks_class(config: Any) -> str:
    """Return what is wrong if config.json does not state one class, "" if it does."""
    if not isinstance(config, dict):
        return "config.json is missing or not a JSON object. Restore it."
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1:
        return ""
    return (
        f"config.json has architectures={json.dumps(named)}, and verl and vLLM need the model's "
        'class there. Add it, as in "architectures": ["Qwen2ForCausalLM"].'
    )


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
    elif why := lacks_class(read_json(Path(model) / "config.json")):
        yield f"recipe.model_path={model}: {why}"


def unsupported_head(size: int) -> str:
    """Return why vLLM on a CPU cannot use attention heads of `size`, "" if it can."""
    if size in HEAD_SIZES:
        return ""
    return (
        f"its attention heads have {size} dimensions, and vLLM on a CPU supports "
        f"{', '.join(map(str, HEAD_SIZES))}"
    )


class ModelFileError(UserError):
    """A model's files that do not load, or that load unlike those of a run's start model."""


def describe(model: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return what loads of a folder or hub id: configurations, ends of a turn, tokenizer's digests.

    `overrides` are the fields of config.json that the run sets. Raises UserError.
    """
    files = {name: model_json(model, name) for name in FILES if name.endswith(".json")}
    if why := lacks_class(files["config.json"]):
        raise ModelFileError(f"{model}: {why}")
    computation(files["config.json"])  # its message names the file, the tokenizer's does not
    tokenizer = load_tokenizer(model)
    named = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "unk")]
    ids = tokenizer(PROBE)["input_ids"]
    texts_of = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
    loaded = (
        [tokenizer.get_vocab(), ids, texts_of],
        [control_tokens(tokenizer), named],
        getattr(tokenizer, "chat_template", None),
    )
    texts = [json.dumps(part, sort_keys=True) for part in loaded]
    return {
        "config": files["config.json"],
        "overrides": [*overrides],
        "generation_config": files[GENERATION],
        "ends": sorted(end_of_turn(tokenizer).ids),
        **dict(zip(TOKENIZER, (sha256(text.encode()).hexdigest() for text in texts), strict=True)),
    }


def computation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of config.json that may change a logit, with transformers' defaults."""
    from transformers import CONFIG_MAPPING, AutoConfig

    def kept(fields: Mapping[str, Any]) -> dict[str, Any]:
        pairs = ((k, v) for k, v in fields.items() if k not in NO_LOGIT)
        return {k: kept(v) if isinstance(v, dict) else v for k, v in pairs}

    try:
        known = config.get("model_type") in CONFIG_MAPPING
        # A copy: transformers writes into rope_scaling.
        return kept(AutoConfig.for_model(**deepcopy(dict(config))).to_dict() if known else config)
    except Exception as error:  # of transformers' many
        raise ModelFileError(f"config.json: {' '.join(str(error).split())[:200]}") from error


def compare(model: str, start: Mapping[str, Any], accepted: Collection[str]) -> dict[str, str]:
    """Return how files of `accepted` differ from `start`, of `describe`.

    Raises ModelFileError if another file differs.
    """
    here = describe(model)
    now, then = computation(here["config"]), computation(start["config"])
    compared = sorted({*now, *then} - {*start["overrides"]})
    pairs = [(name, now.get(name), then.get(name)) for name in compared]
    fields = [f"{name} {one}, not {other}" for name, one, other in pairs if one != other]
    found = {"config.json": ", ".join(fields[:3])} if fields else {}
    found |= {n: "it loads differently" for n in TOKENIZER if here[n] != start[n]}
    if here["ends"] != start["ends"]:
        found[GENERATION] = f"a turn ends at {here['ends']}, not {start['ends']}"
    if wrong := [name for name in found if name not in accepted]:
        raise ModelFileError(
            f"{model}: not as the start model: {'; '.join(f'{n}: {found[n]}' for n in wrong)}. "
            "Restore it, delete an export that was made with it, and run recipe.export again, for "
            f"a wanted change with --accept {' '.join(wrong)}"
        )
    return found


def write_generation(target: Path, start: Mapping[str, Any]) -> None:
    """Write generation_config.json with the ends of a turn of `start`, of `describe`.

    Its other fields are those of the model's own file, else the special ids of config.json.
    """
    config, own = start["config"], start["generation_config"]
    own = {key: config[key] for key in IDS if key in config} if own is None else own
    ends = dict.fromkeys([*as_list(own.get("eos_token_id")), *start["ends"]])  # its own come first
    write_json(target / GENERATION, {**own, "eos_token_id": [*ends]})


def restore(target: Path, start: Mapping[str, Any], model: str, dtype: str) -> None:
    """Replace an export's config.json and tokenizer by files that transformers 4 loads as well.

    It reads another rope_theta in what transformers 5 saves, and rejects its tokenizers. The start
    model's own files are used while they are there. Files are kept if others load differently.
    """
    before = describe(str(target))
    for source in filter(None, (folder_of(model), target)):
        with tempfile.TemporaryDirectory(dir=target) as name:
            trial = Path(name)
            try:
                write_json(trial / "config.json", _config(target, start, dtype))
                shutil.copyfile(target / GENERATION, trial / GENERATION)
                _copy_tokenizer(source, trial)
                compare(name, before, ())
            except (UserError, OSError):  # OSError: files of another user
                continue
            for path in _tokenizer_files(target):
                path.unlink()
            _copy_tokenizer(trial, target)
            shutil.copyfile(trial / "config.json", target / "config.json")
            return


def _tokenizer_files(folder: Path) -> list[Path]:
    return [path for name in TOKENIZERS for path in folder.glob(name)]


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer's files; names that transformers 5 introduced become those of 4."""
    for path in _tokenizer_files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
        if path.name == "tokenizer_config.json":
            text = read_text(path).replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"')
            write_text(
                copy, text.replace('"extra_special_tokens": [', '"additional_special_tokens": [')
            )


def _config(target: Path, start: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the start model's config.json with `dtype`; that of `target` if it loads differently.

    Adds the fields in which transformers 4 reads rope_parameters.
    """
    config, own = read_json(target / "config.json"), start["config"]
    drafts = DRAFTS & {*own, *(own.get("text_config") or ())}
    if not drafts and computation(own) == computation(config):
        config = {**own, **dict.fromkeys({*DTYPE_KEYS} & {*own} or {"torch_dtype"}, dtype)}
    rope = config.get("rope_parameters") or {}
    old = {k: rope[k] for k in ("rope_theta", "partial_rotary_factor") if rope.get(k)}
    if old and rope.get("rope_type") != "default":
        old["rope_scaling"] = {k: v for k, v in rope.items() if k not in old}
    old |= config
    return old if computation(old) == computation(config) else config
