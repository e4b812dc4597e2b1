"""Make a verl-style parquet file of questions from a data set, and list every refused row.

    python -m prompt_aug.prepare SOURCE OUT.parquet --against BENCHMARK [--against ...]

SOURCE is a local file or folder, a hub id, or the name of a preset. A row is refused if it has no
question or no answer, repeats an earlier one, contradicts another row (same question, other
answer), overlaps a benchmark question, or has an answer that is prose or that the grader does not
grade right against itself. OUT.parquet.manifest.json, written last, has the counts, the refused
rows with their numbers (from 0), the near duplicates and the SHA-256 of the data.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, nonempty_path, run_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import lock, read_text, sha256, write_json, writing
from prompt_aug.base.places import unwritable
from prompt_aug.prepare import filters
from prompt_aug.prepare.sources import (
    IN_YAML,
    Columns,
    Numbered,
    Preset,
    SourceError,
    column_names,
    complete,
    load_presets,
    load_rows,
    local_files,
    question_text,
    split_config,
)
from prompt_aug.questions import VALIDATION, held_out_of, manifest_of, write_parquet
from prompt_aug.typed import parse_yaml

SHOWN = 10
KNOWN = Path(__file__).resolve().parents[2] / "eval/ask/benchmarks.yaml"  # those of eval.sweep


def load_benchmarks(specifications: Sequence[str]) -> dict[str, list[str]]:
    """Return question texts by benchmark name, from ``[NAME=]SOURCE[@SPLIT]``.

    SOURCE is a file, a folder or a hub id, with SPLIT "test" by default, or the record of a
    benchmark: a name in eval/ask/benchmarks.yaml, or a yaml file. Raises SourceError.
    """
    benchmarks: dict[str, list[str]] = {}
    for specification in specifications:
        name, _, rest = specification.rpartition("=")
        source, _, split = rest.partition("@")
        name = name or Path(source).stem
        if name in benchmarks:
            raise SourceError(f"two benchmarks are called {name}: write NAME={source}")
        arguments: dict[str, Any] = {"source": source, "split": split or "test"}
        if Path(source).suffix == ".yaml":
            arguments = _arguments(_read(Path(source)), Path(source))
        elif not Path(source).exists() and source in (records := _read(KNOWN)):
            arguments = _arguments(records[source], KNOWN)
        columns, rows = Columns(text=arguments.pop("text", None)), load_rows(**arguments)
        names = column_names(rows)
        columns = complete(columns, names, arguments["source"], answer=False, remedy=IN_YAML)
        benchmarks[name] = [question_text(row, columns) for row in rows]
    return benchmarks


def _read(path: Path) -> Any:
    try:
        return parse_yaml(read_text(path), str(path))
    except (OSError, UserError) as error:
        raise SourceError(f"the record of a benchmark cannot be read: {error}") from error


def _arguments(record: Any, path: Path) -> dict[str, Any]:
    """Return the arguments of `load_rows`, and the text column, of the record of a benchmark."""
    if not isinstance(record, Mapping) or not (record.get("hub") or record.get("file")):
        raise SourceError(f"{path} is no record of a benchmark: it has neither hub nor file")
    texts = ("hub", "file", "config", "revision", "split", "text")
    if wrong := [key for key in texts if not isinstance(record.get(key), str | None)]:
        raise SourceError(f"{path}: {wrong[0]}={record[wrong[0]]}: not text. Correct it.")
    source = str(path.parent / record["file"]) if record.get("file") else str(record["hub"])
    arguments = {key: record.get(key) for key in ("config", "revision", "text")}
    return {"source": source, "split": record.get("split", "test")} | arguments


def write(
    out: Path,
    questions: Numbered,
    held: Numbered,
    report: dict[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Write OUT, its held-out questions and their manifests; that of OUT, the last, names both.

    The earlier manifests and held-out file are removed first, so that a killed process never leaves
    OUT beside questions that another call held out.
    """
    beside, done = held_out_of(out), manifest_of(out)
    with writing(out), lock(out.parent, wait=True):
        for old in (done, *((manifest_of(beside), beside) if held else ())):
            old.unlink(missing_ok=True)
        write_parquet([question for _, question in questions], out)
        report = {**settings, "sha256": sha256(out), **report}
        if held:
            write_parquet([question for _, question in held], beside)
            about = {"sha256": sha256(beside), "kept": len(held), "held_out_of": out.name}
            write_json(manifest_of(beside), {**settings, **about})
            report |= {"held_out": len(held), "held_out_sha256": about["sha256"]}
        write_json(done, report)


def hold_out(questions: Numbered, count: int, alike: Collection[int]) -> tuple[Numbered, Numbered]:
    """Return (training questions, `count` validation questions), both in row order.

    The choice depends on the uids alone. A question with a near duplicate stays in training, where
    its duplicate would reveal the answer.
    """
    free = [question.uid for row, question in questions if row not in alike]
    if not 0 < count < len(free):
        raise SourceError(
            f"--validation {count}: {len(free)} questions can be held out, and one must be left. "
            f"Give more questions, or --validation {max(1, len(free) // 5)}."
        )
    held = set(sorted(free, key=lambda uid: hashlib.sha256(uid.encode()).digest())[:count])
    return [(row, question) for row, question in questions if question.uid not in held], [
        (row, replace(question, split=VALIDATION))
        for row, question in questions
        if question.uid in held
    ]


def build_parser() -> argparse.ArgumentParser:
    """Return the command line; a column option overrides the preset."""
    parser = make_parser(
        "python -m prompt_aug.prepare",
        __doc__,
        example="python -m prompt_aug.prepare gsm8k data/train.parquet --against math=m500.jsonl",
    )
    add = parser.add_argument
    presets = ", ".join(load_presets())
    add("source", metavar="SOURCE", help=f"file, folder, hub id, ID:CONFIG, or a preset: {presets}")
    add("out", metavar="OUT", type=nonempty_path, help="the .parquet file to write")
    add("--preset", metavar="NAME", help="use its column map for SOURCE, a local copy of it")
    add("--split", help="split to load (default: the preset's, or train)")
    add("--name", help="data_source of the rows (default: their own, or the preset or file)")
    add("--text-column", metavar="COLUMN", help="the question; a.b goes into a record")
    add("--answer-column", metavar="COLUMN", help="the answer, or a list of them")
    checks = parser.add_mutually_exclusive_group(required=True)
    checks.add_argument(
        "--against",
        action="append",
        metavar="[NAME=]SOURCE[@SPLIT]",
        help="keep out the questions of a benchmark, as aime24; may be repeated (SPLIT: test)",
    )
    checks.add_argument("--no-benchmarks", action="store_true", help="skip decontamination")
    add("--validation", type=int, metavar="N",
        help="hold N questions out, in OUT.validation.parquet, to pick checkpoints by")  # fmt: skip
    add("--allow-text", action="store_true", help="keep prose answers, which are compared as text")
    add("--pass-rates", type=Path, metavar="SCORES",
        help="pass rates: the folder of eval.sweep over SOURCE as a benchmark")  # fmt: skip
    add("--keep", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="keep only questions with a pass rate from LOW to HIGH")  # fmt: skip
    return parser


def check_paths(options: argparse.Namespace) -> None:
    """Reject an OUT that cannot be written or is an input."""
    out = options.out.resolve()
    if out.suffix != ".parquet":
        raise SourceError(f"OUT is a parquet file: {options.out} must end in .parquet")
    if out.is_dir():
        raise SourceError(f"OUT {options.out} is a folder: name a file")
    if reason := unwritable(out.parent):
        raise SourceError(f"OUT {options.out} cannot be written ({reason}): choose another folder")
    for text in (options.source, *(options.against or [])):
        read = Path(text.rpartition("=")[2].partition("@")[0])
        if read.exists() and (read.resolve() == out or read.resolve() in out.parents):
            raise SourceError(f"OUT {options.out} would change {read}, which is read")


def choose(options: argparse.Namespace) -> tuple[str, Preset]:
    """Return (name of the data set, what to read): the preset with the options' changes."""
    presets, (source, config) = load_presets(), split_config(options.source)
    known, colon, named = source.partition(":")
    if colon and known in presets:
        source, config = known, named
    by_hub = {preset.hub: name for name, preset in presets.items() if not Path(source).exists()}
    name = options.preset or by_hub.get(source, source if source in presets else None)
    if name is not None and name not in presets:
        raise SourceError(f"unknown preset {name!r}: known are {', '.join(presets)}")
    preset = presets[name] if name else Preset(hub=source, split="train")
    given = {
        "config": config,
        "split": options.split,
        "text": options.text_column,
        "answer": options.answer_column,
    }
    change: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if options.text_column is not None:
        change["text_else"] = ()  # an explicit column has no alternatives
    if source not in (name, preset.hub):  # a local copy of the preset
        change |= {"hub": source, "files": None, "rows": {}}
    elif change.get("config", preset.config) != preset.config:  # other files
        change |= {"files": None, "rows": {}}
    return options.name or name or Path(source).stem, preset.model_copy(update=change)


def prepare_as(options: argparse.Namespace) -> None:
    """Read, check and write the questions."""
    check_paths(options)
    band = filters.checked_band(options.keep, options.pass_rates is not None)
    rates = filters.read_pass_rates(options.pass_rates) if options.pass_rates is not None else None
    name, preset = choose(options)
    benchmarks = load_benchmarks(options.against or [])
    rows = load_rows(preset.hub, preset.config, preset.split, files=preset.files)
    revision = re.search(r"@([0-9a-f]{40})/", repr(getattr(rows, "info", "")))  # on the hub
    if len(rows) != (expected := preset.rows.get(preset.split, len(rows))):
        raise SourceError(
            f"{preset.hub}: {len(rows)} rows in the split {preset.split}, and {expected} when the "
            "preset was written: the data set has changed. Look at it, and replace the preset by "
            "--text-column and --answer-column."
        )
    others = (("group", preset.group), ("order", preset.order))
    columns = complete(preset, column_names(rows), preset.hub, others=others)
    rows, joined = filters.join_rephrasings(rows, columns) if columns.group else (rows, {})
    questions, report = filters.prepare(
        rows,
        columns=columns,
        source=name,
        benchmarks=benchmarks,
        allow_text=options.allow_text,
        renamed=options.name is not None or name in load_presets(),
        rates=rates,
        band=band,
    )
    print_report(report := {**report, **joined})
    if not questions:
        raise SourceError("nothing written: no row is left")
    settings = {
        "source": preset.hub,
        "source_sha256": [*map(sha256, local_files(Path(preset.hub)))],
        "config": preset.config,
        "revision": revision and revision[1],
        "files": preset.files,
        "split": preset.split,
        "columns": columns.model_dump(mode="json", include={*Columns.model_fields}),
        "benchmarks": {key: len(texts) for key, texts in benchmarks.items()},
        "overlap": {"n": filters.OVERLAP_N, "limit": filters.OVERLAP_LIMIT},
        "likeness": {"n": filters.LIKENESS_N, "limit": filters.LIKENESS_LIMIT},
        **({"pass_rates": str(options.pass_rates), "keep": band} if rates is not None else {}),
    }
    held: Numbered = []
    if options.validation is not None:
        questions, held = hold_out(questions, options.validation, {*report["near_duplicate_rows"]})
    write(options.out, questions, held, report, settings)
    if held:
        print(f"wrote {held_out_of(options.out)} ({len(held)} questions held out of training)")
    print(f"wrote {options.out} ({len(questions)} questions) and {manifest_of(options.out).name}")


def print_report(report: Mapping[str, Any]) -> None:
    """Print the counts, with the first rows of each reason."""
    print(f"{report['rows']} rows read, {report['kept']} kept")
    if counts := report.get("rephrasings_of_a_question"):
        listed = ", ".join(f"{count} of {number} questions" for count, number in counts.items())
        print(f"  rephrasings: {listed}")
        print(f"  rows left out: {report['rows_left_out']}")
    for reason, count in report["refused"].items():
        print(f"  refused, {reason}: {count}")
        for entry in [r for r in report["refused_rows"] if r["reason"] == reason][:SHOWN]:
            print(f"    row {entry['row']}: {entry['detail']}")
    for entry in report["sentences"][:SHOWN]:
        print(f"    row {entry['row']}: {entry['gold']} is read as {entry['read_as']}")
    print(f"  sentences read as their number: {len(report['sentences'])}")
    print(f"  near duplicates, kept: {report['near_duplicate_pairs']} pairs")


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    return run_command(
        "prompt_aug.prepare",
        lambda: prepare_as(options),
        interrupted="no manifest was written; run the command again",
    )


if __name__ == "__main__":
    sys.exit(main())
