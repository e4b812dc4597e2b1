"""The short form ``python -m recipe.train METHOD --model NAME --data NAME``.

It prepares the questions once, holds some of them out, and stands for a longer command, which it
prints. The settings are those of examples/own and config/scale/one_node.yaml.
"""

import contextlib
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import FileError, digests, read_json, sha256, write_json
from prompt_aug.prepare.__main__ import build_parser, choose
from prompt_aug.prepare.__main__ import main as prepare
from prompt_aug.prepare.sources import local_files
from prompt_aug.questions import held_out_of, manifest_of
from prompt_aug.typed import read_record
from recipe.config.base import quoted
from recipe.config.compose import example_names, group_names

EXAMPLE = "own"
HELD_OUT = 200  # questions, evaluated before, during and after the training
TRAIN = "train.parquet"
SOURCE = "source.json"  # beside prepared questions: what they were made from
NO_CHECK = "--no-benchmarks"


def expand(
    name: str, model: str | None, data: str | None, overrides: list[str], asked: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of the long form: the example, then its overrides.

    `name` is a method, or an example whose model or data is replaced. `asked` are options of
    `prompt_aug.prepare`. Raises UsageError for another name, and for data that cannot be prepared.
    """
    example, more = name, []
    for option, value in (("--model", model), ("--data", data)):
        if value is not None and not value.strip():
            raise UsageError(f"{option}: empty. Is a shell variable unset?")
    if name in group_names("method"):
        example, more = EXAMPLE, [f"method={name}"]
        if model is None or data is None:
            raise UsageError(
                f"{name}: --model and --data go together. Name both, or an example: "
                "`python -m recipe.train --list` shows them."
            )
    elif name not in example_names() and not Path(name, "config.yaml").is_file():
        raise UsageError(f"{name}: no method. Known are {', '.join(group_names('method'))}.")
    if model is not None:
        more.append(f"recipe.model_path={quoted(model)}")
    if data is not None:
        train = prepared(data, asked)
        more.append(f"data.train_files=[{quoted(str(train))}]")
        more.append(f"data.val_files=[{quoted(str(held_out_of(train)))}]")
    elif asked:
        raise UsageError(f"{asked[0]}: no effect without --data. Name the questions.")
    long = [example, *more, *overrides]
    print(f"recipe.train: stands for: python -m recipe.train {shlex.join(long)}", file=sys.stderr)
    return long


def prepared(data: str, options: Sequence[str]) -> Path:
    """Return the training questions made from `data`, prepared where missing, with those held out.

    `data` is a source of `prompt_aug.prepare`, and `options` are its options. Each source has a
    folder of its own, data/STEM-8HEX, by the content of local files, or by id, configuration and
    split on the hub. Local files are hashed only if a size or time differs from the last call.
    """
    path = Path(data)
    asked = [f"--validation={HELD_OUT}", *options]  # the last one counts
    name, preset = choose(build_parser().parse_args([data, TRAIN, NO_CHECK, *asked]))
    files = local_files(path)
    # Not st_mtime, which `rsync -a`, `cp -p` and tar set back.
    times = {str(f.resolve()): [f.stat().st_size, f.stat().st_ctime_ns] for f in files}
    source = str(path.resolve()) if files else [preset.hub, preset.config, preset.split]
    record = {"source": source, "options": asked, "files": times}
    stem, earlier = (re.sub(r"\W+", "_", text).strip("_").lower() for text in (name, data))
    by_hand = Path("data", stem if files else earlier, TRAIN)
    if not options and held_out_of(by_hand).exists() and _is_of(by_hand, record):
        return by_hand
    for known in Path("data").glob(f"{stem}-*/{SOURCE}"):
        with contextlib.suppress(FileError):  # a damaged one is made again
            if read_json(known) == record and _whole(out := known.with_name(TRAIN)):
                return out
    content = digests(files, path if path.is_dir() else path.parent)
    identity = json.dumps([content or source, asked]).encode()
    out = Path("data", f"{stem}-{hashlib.sha256(identity).hexdigest()[:8]}", TRAIN)
    if not _whole(out):
        command = [data, str(out), NO_CHECK, *asked]
        print(f"recipe.train: python -m prompt_aug.prepare {shlex.join(command)}", file=sys.stderr)
        if prepare(command):
            raise UsageError(f"--data {data}: not prepared, for the reason above.")
    write_json(out.with_name(SOURCE), record)
    return out


def _whole(out: Path) -> bool:
    """Return True if OUT and its held-out questions are as their preparation left them."""
    try:
        made = read_json(manifest_of(out))
        files = {out: made["sha256"], held_out_of(out): made["held_out_sha256"]}
    except (FileError, KeyError):
        return False
    return all(file.exists() and sha256(file) == digest for file, digest in files.items())


def _is_of(out: Path, record: Mapping[str, Any]) -> bool:
    """Return whether OUT, prepared by hand, is used for a source: not if it has another; say so."""
    types, manifest = {"source": str | None, "source_sha256": list[str]}, manifest_of(out)
    made = read_record(manifest, **types) if manifest.exists() else {}
    hub = [made.get(key) for key in ("source", "config", "split")]
    known, files = made.get("source_sha256"), record["files"]
    same = known == [sha256(Path(file)) for file in files]
    used = same if known else all(time <= out.stat().st_ctime_ns for _, time in files.values())
    used &= not made or record["source"] in (hub, str(Path(hub[0] or "").resolve()))
    why = "prepared by hand, is used" if used else "of another or older source, is not used"
    print(f"recipe.train: note: {out}, {why}", file=sys.stderr)
    return used
