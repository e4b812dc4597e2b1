"""Seconds of the statistics of a whole published sweep, beside verl's bootstrap, in one run.

    python scripts/bench_statistics.py [--checkpoints 198] [--questions 1560] [--samples 32]

Ours, over all checkpoints: accuracy with its clustered error and its two-level interval, pass@k and
pass^k for k = 1, 2, 4, ... n. verl's `bootstrap_metric` gives best@k and its deviation of ONE
question; it is timed on a few questions and multiplied, since all of them would take hours.
"""

import time

import numpy as np

from eval.intervals import accuracy_interval
from eval.metrics import accuracy, all_at_powers, pass_at_powers
from prompt_aug.commands import make_parser
from prompt_aug.estimates import powers

TIMED = 8  # questions that verl's function is timed on


def ours(correct: np.ndarray) -> float:
    started = time.perf_counter()
    for one in correct:
        accuracy(one)
        accuracy_interval(one)
        pass_at_powers(one)
        all_at_powers(one)
    return time.perf_counter() - started


def verls(correct: np.ndarray) -> float:
    from verl.trainer.ppo.metric_utils import bootstrap_metric

    checkpoints, questions, samples = correct.shape
    started = time.perf_counter()
    for row in correct[0, :TIMED].astype(float):
        for k in powers(samples)[1:]:
            bootstrap_metric(list(row), k, [np.max])
    return (time.perf_counter() - started) * checkpoints * questions / TIMED


def main() -> None:
    parser = make_parser(
        "python scripts/bench_statistics.py",
        __doc__,
        example="python scripts/bench_statistics.py --samples 8",
    )
    for name, value in (("checkpoints", 198), ("questions", 1560), ("samples", 32)):
        parser.add_argument(f"--{name}", type=int, default=value, help="of the sweep")
    options = parser.parse_args()
    shape = (options.checkpoints, options.questions, options.samples)
    rng = np.random.default_rng(0)
    correct = rng.random(shape) < rng.beta(0.5, 0.5, (*shape[:2], 1))
    mine, theirs = ours(correct), verls(correct)
    print(f"{' x '.join(map(str, shape))}: ours {mine:.2f} s, verl's bootstrap {theirs:.0f} s")
    print(f"ratio {theirs / mine:.0f} (verl's: {TIMED} questions timed, multiplied)")


if __name__ == "__main__":
    main()
