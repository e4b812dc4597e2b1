"""A benchmark as a yaml file: its source, its fields and, above all, its denominator.

The files beside this module are the known ones; a user's own is asked for as NAME=PATH.yaml. Keys:

    questions      how many there must be: 498 of 500 are no MATH500 score
    hub, revision, config, split   the data set on the hub;  or
    file           parquet, csv, jsonl, json or arrow, beside the yaml file
    text, answer   columns (default: the usual names);  level: a column of difficulty
    answer_from    the answer is what follows this string for the last time in its column
    options        columns of wrong options: a multiple-choice question, graded by its letter
    shuffle_seed   of the order of its options
    template       what its questions are asked with, whatever the others are asked with
    samples        of each question when sampling; greedy decoding takes one
    sha256         digest of all questions and answers, in any order; other content is refused.
                   Of a hub data set: read from the very file that its revision holds
    copies         digests of other copies that are known to be whole, by where they were read
    suite_folder   where a published suite has it
    licence        what its owners say

Without sha256 a hub data set is held to its revision, and where that is not known either (null) to
the copies. A file under a known name is held to any of the digests.
"""

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from eval.errors import EvaluationError
from prompt_aug.base.files import read_text

FOLDER = Path(__file__).parent
MOST_SAMPLES = 100_000  # of a question: more is a typing error, and would not fit into memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One benchmark; the keys are those of its yaml file. `file` is absolute."""

    name: str
    questions: int
    hub: str | None = None
    revision: str | None = None
    config: str | None = None
    split: str = "test"
    file: str | None = None
    text: str | None = None
    answer: str | None = None
    level: str | None = None
    answer_from: str | None = None
    options: tuple[str, ...] = ()
    shuffle_seed: int = 0
    template: str | None = None
    samples: int = 1
    sha256: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    suite_folder: str | None = None
    licence: str = ""

    def __post_init__(self) -> None:
        if (self.hub is None) == (self.file is None):
            raise EvaluationError(f"benchmark {self.name}: give one of hub and file")
        for key in ("questions", "samples"):
            value = getattr(self, key)
            if not isinstance(value, int) or not 1 <= value <= MOST_SAMPLES:
                raise EvaluationError(
                    f"benchmark {self.name}: {key} is {value!r}, not from 1 to {MOST_SAMPLES}"
                )
        if self.options and not self.answer:
            raise EvaluationError(f"benchmark {self.name}: options need the answer's column")

    def digests(self, *, local: bool) -> set[str]:
        """The digests that its content may have, from a local file or from its own source; or any.

        A revision fixes the content of a hub data set that was not read when it was written down.
        """
        own = {self.sha256} if self.sha256 else set()
        if local or (self.hub and not own and self.revision is None):
            own |= set(self.copies.values())
        return own


def read_benchmark(path: Path, name: str | None = None) -> Benchmark:
    """The benchmark of a yaml file; its name is the file's unless `name` is given."""
    name = name or path.stem
    try:
        record = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise EvaluationError(f"{path} is not valid yaml: {error}") from error
    known = [key.name for key in fields(Benchmark) if key.name != "name"]
    if not isinstance(record, Mapping) or "questions" not in record:
        raise EvaluationError(f"{path}: a benchmark is a record with the key questions")
    for key in record:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise EvaluationError(f"{path}: unknown key {key!r}: {hint}")
    values: dict[str, Any] = dict(record)
    values["options"] = tuple(values.get("options") or ())
    if values.get("file"):
        values["file"] = str((path.parent / values["file"]).resolve())
    return Benchmark(name=name, **values)


@functools.cache
def known_benchmarks() -> Mapping[str, Benchmark]:
    """The benchmarks of this folder by name."""
    return {path.stem: read_benchmark(path) for path in sorted(FOLDER.glob("*.yaml"))}


def known_benchmark(name: str) -> Benchmark:
    """The known benchmark of that name; EvaluationError with the known names."""
    known = known_benchmarks()
    if name not in known:
        raise EvaluationError(f"unknown benchmark {name!r}; known: {', '.join(known)}")
    return known[name]
