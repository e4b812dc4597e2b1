"""Typed record of an experiment.yaml, which is written before the experiment is run."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from prompt_aug.typed import Positive, Record, Several, Text, parse_typed, parse_yaml, shown
from recipe.config.compose import EXAMPLES
from recipe.errors import ConfigError
from recipe.toy.world import load_world

FOLDER = EXAMPLES / "laboratory"
FIRST_COUNTED = 1000  # the first counted seed; pilot seeds are smaller
COUNTED = 20  # maximum number of seeds of an arm
COMPARED = 9  # maximum number of arms in `compare`: the colors of a picture
Pair = Annotated[Several[Text], Field(min_length=2, max_length=2)]


class ExperimentError(ConfigError):
    """A missing or malformed experiment."""


class ArmSettings(Record):
    """Section of an arm in the file: overrides of the experiment's example."""

    world: Text
    set: Several[Text] = ()
    decides: bool = False  # True: run all seeds. False: run at most three
    verl: bool = False  # trained by recipe.train, also in a simulated experiment


class Arm(ArmSettings):
    """One method in one world."""

    name: str


class Measure(Record):
    """Settings of a measurement: number of test questions, samples of each, templates."""

    questions: Positive
    samples: Positive
    templates: Annotated[Several[Text], Field(min_length=1)]


class Mechanism(Record):
    """Effect that the world must show before any method is tested: `figure` of `arm` >= `least`.

    `figure` is that of `recipe.lab.page.of_figure`, averaged over the seeds of `arm`. `minus` names
    an arm and its figure, which is subtracted.
    """

    arm: Text
    figure: Text
    least: float
    minus: Pair | None = None


class Claim(Record):
    """A prediction: the mean of `figure` of the first arm is above, below or equal to the second's.

    With four arms a, b, c, d it is about the difference of differences (a - b) - (c - d). The
    figure "abel+formal pass@1" is the mean over two templates. Equal means that the 95 % interval
    of the difference lies within -margin to margin.
    """

    claim: Text
    arms: Several[Text]
    figure: Text
    direction: Literal["above", "below", "equal"]
    margin: float | None = None  # of equal

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if len(self.arms) not in (2, 4):
            raise ValueError(f"arms={shown(self.arms)}: not two or four names. Correct it.")
        if (self.direction == "equal") != (self.margin is not None):
            raise ValueError(
                f"direction={self.direction}: equal needs a `margin`, above and below take none. "
                "Change one of the two."
            )
        return self


class Experiment(Record):
    """An experiment; `compare` holds pairs of arms, `curves` keys of metrics.jsonl.

    With `worlds` W, the seeds share W sets of questions and start models, because teaching a start
    model takes several times as long as a simulated run.
    """

    name: str
    steps: Positive
    save_every: Positive
    measure: Measure
    arms: Several[Arm]
    compare: Several[Pair]
    curves: Several[Text]
    simulated: bool = False  # True: by recipe.lab.simulate. False: by recipe.train
    mechanism: Mechanism | None = None
    worlds: Positive | None = None  # None: one for each seed
    claims: Several[Claim] = ()  # the first is the primary one
    counted: Positive = COUNTED  # seeds on which the claims are decided

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in (name for claim in self.claims for name in claim.arms):
            if not self.arm(name).decides:
                raise ValueError(f"arms.{name}.decides=false: it is in a claim. Set it to true.")
        wanted = self.mechanism
        of_mechanism = (wanted.arm, *(wanted.minus or ())[:1]) if wanted else ()
        for name in (*of_mechanism, *(name for pair in self.compare for name in pair)):
            self.arm(name)
        if len(compared := {name for pair in self.compare for name in pair}) > COMPARED:
            raise ValueError(
                f"compare={shown(sorted(compared))}: {len(compared)} arms, and pictures have "
                f"{COMPARED} colors. Leave out some pairs."
            )
        if self.steps % self.save_every:
            raise ValueError(
                f"steps={self.steps}: not a multiple of save_every={self.save_every}, so the last "
                "step would not be measured. Set it to a multiple."
            )
        return self

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def arm(self, name: str) -> Arm:
        """Return the arm called `name`. Raises ExperimentError, which lists the known arms."""
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
        """Return the seed of the questions and the start model of a run with `seed`."""
        first = seed - seed % FIRST_COUNTED
        return first + (seed - first) % self.worlds if self.worlds else seed

    def digest(self, arm: Arm) -> str:
        """Return 16 hex digits that identify the settings of a run of this arm, except its seed.

        They cover the overrides, steps, measurement, `worlds`, example and world, without comments.
        They do not cover the code or the files that the example builds on: see the recorded commit.
        """
        example = (self.folder / "config.yaml").read_text(encoding="utf-8")
        content = {
            "set": arm.set,
            "steps": [self.steps, self.save_every],
            "measure": self.measure.model_dump(),
            "example": parse_yaml(example, str(self.folder)),
            "world": load_world(arm.world).record(),
            **({"simulated": True} if self.simulates(arm) else {}),
            **({"worlds": self.worlds} if self.worlds else {}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.parent.name for path in FOLDER.glob("*/experiment.yaml"))


def load_experiment(name: str) -> Experiment:
    """Return the experiment called `name`. Raises ExperimentError for a missing or wrong file."""
    path = FOLDER / name / "experiment.yaml"
    if not path.is_file():
        raise ExperimentError(f"no experiment {name}: known are {', '.join(names())}")
    return experiment_of(parse_yaml(path.read_text(encoding="utf-8"), str(path)), name, path)


def experiment_of(found: Any, name: str, path: Path) -> Experiment:
    """Return the experiment of a yaml's content. Raises ExperimentError with the wrong keys."""
    given = parse_typed(found, dict[str, Any], str(path), ExperimentError)
    if "name" in given:
        raise ExperimentError(
            f"{path}: name={shown(given['name'])}: the folder's name is used. Remove the key."
        )
    sections = {"arms": given.get("arms")}  # parsed by name, so that an error names the arm
    kind = dict[str, dict[str, ArmSettings]]
    arms = parse_typed(sections, kind, str(path), ExperimentError)["arms"]
    named = [Arm(name=key, **dict(settings)) for key, settings in arms.items()]
    whole = {**given, "name": name, "arms": named}
    return parse_typed(whole, Experiment, str(path), ExperimentError)
