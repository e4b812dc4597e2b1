"""The user's verifiers: a function per data source in place of the grader.

    def check(response: str, gold, row: Mapping) -> float | Mapping[str, float]: ...

recipe/VERIFIERS.md explains the arguments and the result. Functions run in the processes of
`prompt_aug.verifiers.worker`. One that fails does not raise here: its score is 0, with the status
"timeout", "error" (it raised, ran out of memory, or its process died) or "bad_result" (no finite
score within +-`LARGEST`).
"""

import atexit
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from prompt_aug.grading import Extraction, Grade
from prompt_aug.grading.extract import extract
from prompt_aug.grading.pool import GraderError, PoolSettings, WorkerPool
from prompt_aug.typed import Above0, Record
from prompt_aug.verifiers.worker import KEY, LARGEST, REMEDY, named


class VerifierLimits(Record):
    """Limits of one call; memory on top of what the process has after its imports."""

    cpu_seconds: Above0 = 10.0
    wall_seconds: Above0 = 30.0
    memory_gib: Above0 = 2.0


class Reply(Record):
    """Reply of a process that ran the user's code, which can forge the reply to its own call."""

    status: Literal["correct", "wrong", "timeout", "error", "bad_result"]
    detail: str
    score: Annotated[float, Field(ge=-LARGEST, le=LARGEST)] = 0.0
    parts: dict[str, float] = Field(default_factory=dict)
    pred: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified(Grade):
    """Result of a verifier: a `Grade` with the score and the other parts of its result."""

    score: float
    parts: Mapping[str, float]


class Verifiers:
    """The functions of some data sources, and the pool of processes that calls them."""

    def __init__(self, functions: Mapping[str, str], limits: VerifierLimits) -> None:
        self.functions, self.limits = dict(functions), limits
        paths = json.dumps(sorted(set(functions.values())))
        # The user's modules are found as this process finds them, also with relative entries.
        places = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
        settings = replace(
            PoolSettings.from_environment(),
            cpu_seconds=limits.cpu_seconds,
            wall_seconds=limits.wall_seconds,
            memory_bytes=int(limits.memory_gib * 2**30),
            # By its path: every fork would copy the imports of this package.
            command=(str(Path(__file__).with_name("worker.py")), paths),
            environment={**os.environ, "PYTHONPATH": places},
        )
        self._pool = WorkerPool(settings)
        self.close = self._pool.close
        atexit.register(self.close)

    def __contains__(self, source: object) -> bool:
        return source in self.functions

    def load(self) -> None:
        """Load all functions in a worker process, as the first call would. Raises GraderError."""
        self._pool.start()

    def grade(self, response: str, row: Mapping[str, Any], settings: Extraction) -> Verified:
        """Call the verifier of the row's source; `row` is the result of `verifier_row`.

        Without ``pred`` the answer is the one that the extraction `settings` find. Raises
        GraderError if the worker processes cannot load the functions.
        """
        path = self.functions[row["data_source"]]
        reply = self._pool.ask({"function": path, "response": response, "row": row})
        try:
            made = Reply(**reply)
        except ValidationError:
            made = Reply(status="error", detail="its reply is not that of a verifier")
        found = extract(response, settings) if made.pred is None else made.pred
        return Verified(extracted=found, **made.model_dump(exclude={"pred"}))

    def grade_many(
        self,
        pairs: Sequence[tuple[str, Mapping[str, Any]]],
        settings: Extraction,
        on_grade: Callable[[Verified], object],
    ) -> list[Verified]:
        """Grade (response, row) on every worker, in order."""
        return self._pool.map(lambda pair: self.grade(*pair, settings), pairs, on_grade)

    def record(self, sources: set[str]) -> dict[str, Any]:
        """Return functions, digests and limits for these sources; {} if none has a verifier."""
        used = {name: path for name, path in sorted(self.functions.items()) if name in sources}
        if not used:
            return {}
        digests = {path: source_digest(path) for path in sorted(set(used.values()))}
        return {"functions": used, "sha256": digests, "limits": self.limits.model_dump()}


@functools.cache
def _shared(functions: tuple[tuple[str, str], ...], limits: VerifierLimits, _: int) -> Verifiers:
    return Verifiers(dict(functions), limits)


def verifiers_of(
    functions: Mapping[str, str] | None, limits: Mapping[str, Any] | VerifierLimits | None
) -> Verifiers:
    """Return the verifiers of a configuration, with one pool per process; `None`: no functions."""
    bounds = limits if isinstance(limits, VerifierLimits) else VerifierLimits(**(limits or {}))
    return _shared(tuple(sorted((functions or {}).items())), bounds, os.getpid())


def verifier_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row's own file as plain values, for a verifier.

    `row` is verl-style, as `prompt_aug.questions.to_row` makes it, or as verl's data loader does.
    """

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    extra = dict(row["extra_info"])
    own = json.loads(extra.pop("row", None) or "{}")
    made = {
        "data_source": row["data_source"],
        "prompt": row.get("prompt") if row.get("prompt") is not None else row.get("raw_prompt"),
        "reward_model": row.get("reward_model"),
        "extra_info": extra,
    }
    columns = json.loads(json.dumps(made, default=plain))
    merged = {**columns["extra_info"], **(own.get("extra_info") or {})}
    return {**columns, **own, "data_source": columns["data_source"], "extra_info": merged}


def source_file(path: str) -> Path | None:
    """Return the file of a verifier, None for a module without one. Raises GraderError."""
    try:
        place = named(path)[0]
        if place.endswith(".py") and not Path(place).is_file():
            raise ValueError("no such file here")
        if place.endswith(".py"):
            return Path(place)
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError, SyntaxError, AttributeError) as error:
        raise GraderError(f"{KEY}={path}: {error}. {REMEDY}") from error
    if spec is None:
        raise GraderError(f"{KEY}={path}: there is no module {place}. {REMEDY}")
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def source_digest(path: str) -> str:
    """Return the SHA-256 of the file of a function, by its path, and of this package."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    files += filter(None, [source_file(path)])
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
