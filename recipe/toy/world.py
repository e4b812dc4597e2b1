"""A world: which questions there are, and which mistakes the start model has been shown how often.

A world is a short yaml, ``recipe/toy/worlds/NAME.yaml``, read into one typed record. Everything
that is drawn from it is a pure function of the record and a seed. Its knobs:

  levels       kinds of problems with their shares: how long the work is, how many carries are due
  slips        rates of the learner's mistakes, each drawn by itself: a problem combines several
  adds         for each form the probability that the learner adds, whatever is asked: of sums
               and differences one fails under it. 0.5 everywhere: the rephrasing says nothing
  filler       random letters after each column of the work: tokens that decide nothing
  label_noise  share of the training questions whose gold answer is a learner's mistake
  questions    sizes of the splits; updates: supervised updates of the start model
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from recipe.errors import ConfigError

WORLDS = Path(__file__).with_name("worlds")
REPHRASINGS = 4  # rephrasings of every question
OPERATIONS = ("+", "-")


class WorldError(ConfigError):
    """A world that is not there, malformed, or too small for what is asked of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """Problems ``a op b`` of `digits` digits each with exactly `carries` carries or borrows."""

    op: str
    digits: int
    share: float
    carries: int | None = None  # None: any number

    @property
    def name(self) -> str:
        due = {None: "", 0: " without a carry", 1: " with a carry"}
        if self.op == "-":
            due = {None: "", 0: " without a borrow", 1: " with a borrow"}
        noun = "borrows" if self.op == "-" else "carries"
        kind = "addition" if self.op == "+" else "subtraction"
        return f"{self.digits}-digit {kind}" + due.get(self.carries, f" with {self.carries} {noun}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slips:
    """Rates in [0, 1] at which the demonstrations make each mistake; see `Mistakes`."""

    carry: float = 0.0  # of the carries that are due, each by itself
    borrow: float = 0.0  # of the borrows that are due
    fact: float = 0.0  # of the columns
    place: float = 0.0  # of the answers whose last two digits differ
    copy: float = 0.0  # of all answers
    format: float = 0.0  # of the templates that have a format


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """How many questions a split has."""

    train: int = 4096
    validation: int = 64
    test: int = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The record of a yaml file; what its fields mean is said at the head of this module."""

    name: str
    about: str
    levels: tuple[Level, ...]
    slips: Slips = field(default_factory=Slips)
    adds: tuple[float, ...] | None = None
    filler: int = 0
    label_noise: float = 0.0
    questions: Questions = field(default_factory=Questions)
    updates: int = 1100

    def record(self) -> dict[str, Any]:
        """What a digest and a manifest hold; the words of `about` decide nothing.

        Without filler the key is absent, so that older worlds keep their digests.
        """
        absent = ("about", "filler") if not self.filler else ("about",)
        return {key: value for key, value in asdict(self).items() if key not in absent}


def names() -> list[str]:
    """The worlds that come with the project."""
    return sorted(path.stem for path in WORLDS.glob("*.yaml"))


def load_world(name: str) -> World:
    """The world called `name`, or that of a yaml file; WorldError says what is wrong with it."""
    path = Path(name) if name.endswith(".yaml") else WORLDS / f"{name}.yaml"
    if not path.is_file():
        raise WorldError(
            f"recipe.toy.world={name}: there is no {path.name}; known are {', '.join(names())}, or "
            "give the path of a .yaml file"
        )
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise WorldError(f"{path} is no readable yaml: {error}") from error
    return world_of(found, path)


def world_of(found: Any, path: Path) -> World:
    """The record of a yaml's content, checked key by key."""
    body = _mapping(found, World, path, "")
    if "levels" not in body or "about" not in body:
        raise WorldError(f"{path}: `about` and `levels` must be there")
    levels = body["levels"]
    if not isinstance(levels, list) or not levels:
        raise WorldError(f"{path}: levels must be a list with one entry at least")
    body["levels"] = tuple(_level(entry, path, i) for i, entry in enumerate(levels, start=1))
    total = sum(level.share for level in body["levels"])
    if abs(total - 1) > 1e-9:
        raise WorldError(f"{path}: the shares of the levels sum to {total:g}, not to 1")
    for key, record in (("slips", Slips), ("questions", Questions)):
        body[key] = record(**_mapping(body.get(key) or {}, record, path, f"{key}."))
    for name in (f.name for f in fields(Slips)):
        _rate(getattr(body["slips"], name), path, f"slips.{name}")
    for name in (f.name for f in fields(Questions)):
        _whole(getattr(body["questions"], name), path, f"questions.{name}", 1)
    _rate(body.setdefault("label_noise", 0.0), path, "label_noise")
    _whole(body.setdefault("updates", 1100), path, "updates", 1)
    _whole(body.setdefault("filler", 0), path, "filler", 0, 8)
    if body.get("adds") is not None:
        adds = body["adds"]
        if not isinstance(adds, list) or len(adds) != REPHRASINGS:
            raise WorldError(f"{path}: adds={adds!r} must list {REPHRASINGS} numbers, one a form")
        body["adds"] = tuple(_rate(p, path, "adds") for p in adds)
    body["name"] = path.stem
    return World(**body)


def _level(entry: Any, path: Path, number: int) -> Level:
    place = f"levels, entry {number}: "
    body = _mapping(entry, Level, path, place)
    missing = {"op", "digits", "share"} - set(body)
    if missing:
        raise WorldError(f"{path}: {place}{', '.join(sorted(missing))} must be there")
    if body["op"] not in OPERATIONS:
        raise WorldError(f"{path}: {place}op={body['op']!r} must be one of {OPERATIONS}")
    _whole(body["digits"], path, f"{place}digits", 1, 6)
    _rate(body["share"], path, f"{place}share")
    if body.get("carries") is not None:
        _whole(body["carries"], path, f"{place}carries", 0, body["digits"] - 1)
    return Level(**body)


def _mapping(found: Any, record: type, path: Path, place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise WorldError(f"{path}: {place or 'the file '}must be keys and values, not {found!r}")
    known = {f.name for f in fields(record)} - ({"name"} if record is World else set())
    unknown = sorted(set(map(str, found)) - known)
    if unknown:
        raise WorldError(
            f"{path}: {place}{unknown[0]} is no key; known are {', '.join(sorted(known))}"
        )
    return dict(found)


def _rate(value: Any, path: Path, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise WorldError(f"{path}: {key}={value!r} must be a number from 0 to 1")
    return float(value)


def _whole(value: Any, path: Path, key: str, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        upper = "" if most is None else f" to {most}"
        raise WorldError(f"{path}: {key}={value!r} must be a whole number from {least}{upper}")
