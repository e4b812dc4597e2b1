"""A world: which questions there are, and which mistakes the start model has been shown how often.

A world is a short yaml, ``recipe/toy/worlds/NAME.yaml``, read into one typed record. Everything
that is drawn from it is a pure function of the record and a seed. Its knobs:

  levels       kinds of problems with their shares: how long the work is, how many carries are due
  slips        rates of the learner's mistakes, each drawn by itself: a problem combines several
  questions    sizes of the splits; updates: supervised updates of the start model
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from prompt_aug.typed import Count, Positive, Record, Several, Share, Text, read_typed
from recipe.errors import ConfigError

WORLDS = Path(__file__).with_name("worlds")


class WorldError(ConfigError):
    """A world that is not there, malformed, or too small for what is asked of it."""


class Level(Record):
    """Problems ``a op b`` of `digits` digits each with exactly `carries` carries or borrows."""

    op: Literal["+", "-"]
    digits: Annotated[int, Field(ge=1, le=6)]
    share: Share
    carries: Count | None = None  # None: any number

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if self.carries is not None and self.carries >= self.digits:
            raise ValueError(f"carries={self.carries} should be less than digits={self.digits}")
        return self

    @property
    def name(self) -> str:
        due = {None: "", 0: " without a carry", 1: " with a carry"}
        if self.op == "-":
            due = {None: "", 0: " without a borrow", 1: " with a borrow"}
        noun = "borrows" if self.op == "-" else "carries"
        kind = "addition" if self.op == "+" else "subtraction"
        return f"{self.digits}-digit {kind}" + due.get(self.carries, f" with {self.carries} {noun}")


class Slips(Record):
    """Rates at which the demonstrations make each mistake; see `Mistakes`."""

    carry: Share = 0.0  # of the carries that are due, each by itself
    borrow: Share = 0.0  # of the borrows that are due
    fact: Share = 0.0  # of the columns
    place: Share = 0.0  # of the answers whose last two digits differ
    copied: Share = Field(default=0.0, alias="copy")  # of all answers; pydantic has a `copy`
    format: Share = 0.0  # of the templates that have a format


class Questions(Record):
    """How many questions a split has."""

    train: Positive = 4096
    validation: Positive = 64
    test: Positive = 512


def _sum_to_1(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    total = sum(level.share for level in levels)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"the shares sum to {total:g}, not to 1")
    return levels


class World(Record):
    """The record of a yaml file; what its fields mean is said at the head of this module."""

    name: Annotated[str, Field(max_length=0)] = ""  # that of the file, which may not set it
    about: Text
    levels: Annotated[Several[Level], Field(min_length=1), AfterValidator(_sum_to_1)]
    slips: Slips = Slips()
    questions: Questions = Questions()
    updates: Positive = 1100

    def record(self) -> dict[str, Any]:
        """What a digest and a manifest hold; the words of `about` decide nothing."""
        return self.model_dump(by_alias=True, exclude={"about"})


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
    return read_typed(path, World, WorldError).model_copy(update={"name": path.stem})
