r"""Expected standard errors of a benchmark, and the size needed to detect a gain of d points.

With difficulty x (the probability of a right sample) over Q questions with n samples each
(arXiv 2411.00640, sections 2 and 5):

.. math:: SE^2 = \frac{Var(x) + E[x (1-x)] / n}{Q}, \qquad
          SE_{gain}^2 = \frac{\omega^2 + 2 E[x (1-x)] / n}{Q},
          \quad \omega^2 = 2 (1 - r) Var(x)

r is the correlation of x between the two models. A gain of d is detected (two-sided 5 % test) with
probability `power` if d >= (z_0.975 + z_power) SE_gain. Without measured scores x is a
Beta distribution with a + b = 2 and the given mean: Var(x) = p (1-p) / 3, uniform at p = 1/2.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from eval import EvaluationError
from eval.benchmarks import known_benchmarks, load, parse_request
from eval.command import run_command, text
from eval.metrics import as_samples
from prompt_aug.base.commands import at_least, in_columns, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import read_json
from recipe.run.evaluation import MOST_SAMPLES

LEVEL = 0.05
CONCENTRATION = 2.0  # a + b of the Beta distribution of difficulty


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """Mean and variance of x over questions, and its correlation between the two models."""

    mean: float
    variance: float
    correlation: float

    @property
    def within(self) -> float:
        """E[x (1-x)], the variance of one sample around its question's x."""
        return self.mean * (1 - self.mean) - self.variance

    def error(self, questions: int, samples: int) -> float:
        return math.sqrt((self.variance + self.within / samples) / questions)

    def gain_variance(self, samples: float) -> float:
        return 2 * ((1 - self.correlation) * self.variance + self.within / samples)

    def gain_error(self, questions: int, samples: int) -> float:
        return math.sqrt(self.gain_variance(samples) / questions)

    def questions_for(self, gain: float, samples: int, power: float) -> int:
        """Return the fewest questions with `samples` each that detect a gain."""
        return math.ceil(self.gain_variance(samples) * (factor(power) / gain) ** 2 - 1e-9)

    def samples_for(self, gain: float, questions: int, power: float) -> int | None:
        """Return the fewest samples per question that detect a gain; None if none are enough."""
        left = questions * (gain / factor(power)) ** 2 - self.gain_variance(math.inf)
        count = math.ceil(2 * self.within / left - 1e-9) if left > 0 else MOST_SAMPLES + 1
        return max(1, count) if count <= MOST_SAMPLES else None


def factor(power: float) -> float:
    """Return how many standard errors a gain must exceed to be detected with this power."""
    normal = NormalDist()
    return normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(power)


def assumed(accuracy: float, correlation: float) -> Difficulty:
    """Return the difficulty of a Beta distribution with this mean."""
    variance = accuracy * (1 - accuracy) / (CONCENTRATION + 1)
    return Difficulty(mean=accuracy, variance=variance, correlation=correlation)


def measured(path: Path, correlation: float) -> Difficulty:
    """Estimate the difficulty from scores.json of a benchmark, without its sampling noise."""
    entry = read_json(path)
    try:
        means, samples = as_samples([entry["question_means"]])[0], int(entry["settings"]["samples"])
    except (KeyError, TypeError, ValueError) as error:
        raise EvaluationError(
            f"--like={path}: no scores of one benchmark. Name STEP/BENCHMARK/scores.json."
        ) from error
    if samples < 2 or means.size < 2:
        raise EvaluationError(
            f"--like={path}: {means.size} questions x {samples}: two of each are needed to tell "
            "difficulty from sampling noise. Evaluate with more samples."
        )
    mean = float(means.mean())
    within = float(np.mean(means * (1 - means))) * samples / (samples - 1)
    variance = max(0.0, mean * (1 - mean) - within)
    return Difficulty(mean=mean, variance=variance, correlation=correlation)


def size_of(request: str) -> tuple[str, int, int]:
    """Return (name, questions, samples) of a benchmark; a known one is not loaded."""
    if request in known_benchmarks():
        benchmark = known_benchmarks()[request]
        return request, benchmark.questions, benchmark.samples
    loaded = load(parse_request(request), greedy=False)
    return loaded.name, len(loaded.questions), loaded.samples


def plan(options: argparse.Namespace) -> None:
    at_least(1, options, "samples")
    if not 0.5 <= options.gain < 100:
        raise UsageError(
            f"--gain={options.gain:g}: it is in points, from 0.5 to below 100. Set --gain=5 for a "
            "gain from 30 % to 35 %."
        )
    for name, low, high in (("accuracy", 0, 1), ("power", LEVEL, 1)):
        if not low < getattr(options, name) < high:
            raise UsageError(f"--{name}={getattr(options, name)}: not between {low} and {high}")
    if not 0 <= options.correlation <= 1:
        raise UsageError(f"--correlation={options.correlation}: not between 0 and 1")
    if options.like is None:
        difficulty = assumed(options.accuracy, options.correlation)
    else:
        difficulty = measured(options.like, options.correlation)
    gain, power = options.gain / 100, options.power
    heads = ("benchmark", "questions", "samples", "± one", "± gain", "smallest gain detected")
    rows = [[*heads, f"questions for {options.gain:g}", f"samples for {options.gain:g}"]]
    for name, questions, usual in map(size_of, options.benchmark):
        samples = options.samples or usual
        error = difficulty.gain_error(questions, samples)
        enough = difficulty.samples_for(gain, questions, power)
        one = difficulty.error(questions, samples)
        points = [f"{100 * x:.1f}" for x in (one, error, factor(power) * error)]
        needed = difficulty.questions_for(gain, samples, power)
        rows.append([name, str(questions), str(samples), *points, str(needed),
                     "none is enough" if enough is None else str(enough)])  # fmt: skip
    print(in_columns(rows, rule=True))
    print(
        f"Points, for an accuracy of {100 * difficulty.mean:.1f} with a standard deviation of "
        f"difficulty of {100 * math.sqrt(difficulty.variance):.1f} and a correlation of "
        f"{difficulty.correlation:g} between the models. A gain is detected with power "
        f"{power:g} at the level {LEVEL:g} (two-sided)."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.plan --benchmark aime24 --samples 32 --gain 5"
    parser = make_parser("python -m eval.plan", __doc__, example=example)
    add = parser.add_argument
    add("--benchmark", action="append", required=True, type=text, metavar="NAME[=PATH]",
        help="a known name, or a file; may be repeated")  # fmt: skip
    add("--samples", type=int, help="per question (default: the benchmark's)")
    add("--gain", type=float, default=5.0, help="gain to detect, in points (0.5 or more)")
    add("--accuracy", type=float, default=0.3, help="expected accuracy of both models, from 0 to 1")
    add("--correlation", type=float, default=0.5, help="of difficulty between the two models;"
        " a checkpoint and its start model have more than two unrelated models")  # fmt: skip
    add("--like", type=Path, metavar="SCORES", help="scores.json of a benchmark with several"
        " samples: measured difficulty instead of --accuracy")  # fmt: skip
    add("--power", type=float, default=0.8, help="probability that the gain is detected")
    return run_command(parser, arguments, plan, "nothing is written")


if __name__ == "__main__":
    sys.exit(main())
