"""An experiment as it is written down before it is run: experiment.yaml in one typed record."""

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from recipe.config.compose import EXAMPLES
from recipe.errors import ConfigError
from recipe.toy.world import load_world

FOLDER = EXAMPLES / "laboratory"
FIRST_COUNTED = 1000  # seeds from here on are counted; calibration takes smaller ones
COUNTED = 20  # the most seeds of an arm


class ExperimentError(ConfigError):
    """An experiment that is not there or malformed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One method in one world: overrides of the experiment's example."""

    name: str
    world: str
    set: tuple[str, ...] = ()
    decides: bool = False  # True: run all seeds. False: run at most three
    verl: bool = False  # trained by recipe.train, also in a simulated experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """Settings of a measurement: test questions as first asked, sampled at temperature 1."""

    questions: int
    samples: int
    templates: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """Effect that the world must show before any method is tested: `figure` of `arm` >= `least`.

    `figure` is a key of `recipe.lab.page.figures`, the mean over the seeds of `arm`. `minus` names
    an arm and its figure, which is subtracted.
    """

    arm: str
    figure: str
    least: float
    minus: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A prediction: the mean of `figure` of the first arm is above, below or equal to the second's.

    With four arms a, b, c, d it is about the difference of differences (a - b) - (c - d). The
    figure "abel+formal pass@1" is the mean over two templates. Equal means that the 95 % interval
    of the difference lies within -margin to margin.
    """

    claim: str
    arms: tuple[str, ...]
    figure: str
    direction: str  # above, below or equal
    margin: float | None = None  # of equal


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """An experiment; `compare` holds pairs of arms, `curves` keys of metrics.jsonl.

    With `worlds` W, the seeds share W sets of questions and start models, since teaching a start
    model takes several times as long as a simulated run.
    """

    name: str
    steps: int
    save_every: int
    measure: Measure
    arms: tuple[Arm, ...]
    compare: tuple[tuple[str, str], ...]
    curves: tuple[str, ...]
    simulated: bool = False  # True: by recipe.lab.simulate. False: by recipe.train
    mechanism: Mechanism | None = None
    worlds: int | None = None  # None: one for each seed
    claims: tuple[Claim, ...] = ()  # the first is the primary one
    counted: int = COUNTED  # seeds on which the claims are decided

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def arm(self, name: str) -> Arm:
        """The arm called `name`; ExperimentError with the known ones."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        known = ", ".join(a.name for a in self.arms)
        raise ExperimentError(f"experiment {self.name} has no arm {name}; it has {known}")

    def seeds(self, arm: Arm, count: int) -> list[int]:
        """Return the seeds of an arm: `count` for a deciding one, otherwise at most three."""
        return [FIRST_COUNTED + i for i in range(count if arm.decides else min(count, 3))]

    def simulates(self, arm: Arm) -> bool:
        """Return True if `recipe.lab.simulate` makes the runs of `arm`, not `recipe.train`."""
        return self.simulated and not arm.verl

    def world_seed(self, seed: int) -> int:
        """The seed of the questions and the start model of a run with `seed`."""
        first = seed - seed % FIRST_COUNTED
        return first + (seed - first) % self.worlds if self.worlds else seed

    def digest(self, arm: Arm) -> str:
        """Return 16 hex digits that identify the settings of a run of this arm, except its seed.

        They cover the arm, the steps, the measurement, and the files of the example and the world,
        without comments. They do not cover the code and the files that the example builds on; the
        record has the commit of these.
        """
        example = (self.folder / "config.yaml").read_text(encoding="utf-8")
        content = {
            "set": arm.set,
            "steps": [self.steps, self.save_every],
            "measure": asdict(self.measure),
            "example": yaml.safe_load(example),
            "world": load_world(arm.world).record(),
            **({"simulated": True} if self.simulates(arm) else {}),
            **({"worlds": self.worlds} if self.worlds else {}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.parent.name for path in FOLDER.glob("*/experiment.yaml"))


def load_experiment(name: str) -> Experiment:
    """The experiment called `name`; ExperimentError says what is wrong with its file."""
    path = FOLDER / name / "experiment.yaml"
    if not path.is_file():
        raise ExperimentError(f"no experiment {name}: known are {', '.join(names())}")
    return experiment_of(yaml.safe_load(path.read_text(encoding="utf-8")), name, path)


def experiment_of(found: Any, name: str, path: Path) -> Experiment:
    """The record of a yaml's content."""
    body = _keys(found, Experiment, path, "the file")
    measure = _keys(body["measure"], Measure, path, "measure")
    arms = [
        Arm(name=key, **_keys(value, Arm, path, f"arms.{key}"))
        for key, value in body["arms"].items()
    ]
    experiment = Experiment(
        name=name,
        steps=int(body["steps"]),
        save_every=int(body["save_every"]),
        measure=Measure(**{**measure, "templates": tuple(measure["templates"])}),
        arms=tuple(replace(arm, set=tuple(arm.set)) for arm in arms),
        compare=tuple((one, other) for one, other in body["compare"]),
        curves=tuple(body["curves"]),
        simulated=bool(body.get("simulated", False)),
        mechanism=_mechanism(body.get("mechanism"), path),
        worlds=int(body["worlds"]) if "worlds" in body else None,
        claims=tuple(_claim(found, path) for found in body.get("claims", ())),
        counted=int(body.get("counted", COUNTED)),
    )
    for claim in experiment.claims:
        if not all(experiment.arm(arm).decides for arm in claim.arms):
            raise ExperimentError(f"{path}: claims: every arm of {claim.arms} must have `decides`")
    if wanted := experiment.mechanism:
        for name in (wanted.arm, *(wanted.minus or ())[:1]):
            experiment.arm(name)
    for one in {arm for pair in experiment.compare for arm in pair}:
        experiment.arm(one)
    if experiment.steps % experiment.save_every:
        raise ExperimentError(
            f"{path}: steps={experiment.steps} must be a multiple of "
            f"save_every={experiment.save_every}, or the last step is not measured"
        )
    return experiment


def _mechanism(found: Any, path: Path) -> Mechanism | None:
    if found is None:
        return None
    body = _keys(found, Mechanism, path, "mechanism")
    if "minus" in body:
        arm, figure = body["minus"]
        body["minus"] = (arm, figure)
    return Mechanism(**{**body, "least": float(body["least"])})


def _claim(found: Any, path: Path) -> Claim:
    body = _keys(found, Claim, path, "claims")
    directions = ("equal",) if "margin" in body else ("above", "below")
    if len(body["arms"]) not in (2, 4) or body["direction"] not in directions:
        raise ExperimentError(
            f"{path}: claims: `arms` must be two or four names, `direction` above or below, or "
            "equal with a `margin`"
        )
    return Claim(**{**body, "arms": tuple(body["arms"])})


def _keys(found: Any, record: Any, path: Path, place: str) -> dict[str, Any]:
    known = {f.name for f in fields(record)}
    needed = {f.name for f in fields(record) if f.default is MISSING} - {"name"}
    given = set(found) if isinstance(found, dict) else set()
    wrong = sorted(map(str, given - known)) or sorted(needed - given)
    if wrong or "name" in given:
        raise ExperimentError(
            f"{path}: {place}: {(wrong or ['name'])[0]} is missing or no key; the keys are "
            f"{', '.join(sorted(known - {'name'}))}"
        )
    return dict(found)
