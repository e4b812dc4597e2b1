"""The solver check against planted faults, on a real vLLM server with the toy model.

    python scripts/bench_solver.py [--questions 80] [--answers 12] [--cache .toy]

The start model of the toy world `sums`, taught under the prompt of the solver, is right in about
half of its answers and often forgets a carry. It is served by vLLM's OpenAI server on the CPU and
answers held-out questions, each with one good rephrasing and one faulty:
another rephrasing with a number changed or with the operation reversed, in turn. Printed are the
share of the faulty ones that the check doubts (wanted: at least 90 %) and of the good ones (at
most 5 %), with Wilson's 95 % intervals. Everything runs through the stages of `python -m
prompt_aug.rephrase --solve`, except that the filters, which would see these faults at once, are
left out.
"""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from vllm_server import serving_model

from prompt_aug.commands import make_parser
from prompt_aug.estimates import wilson
from prompt_aug.questions import Question
from prompt_aug.rephrase import options as cli
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.solver import SOLVE
from prompt_aug.rephrase.stages import solve
from prompt_aug.templates import Bank, Template
from recipe.toy.build import Settings, make
from recipe.toy.problems import Problem, all_problems, phrase, problems, rephrasings, to_question
from recipe.toy.world import World, load_world

SEED = 11
STEPS = (3, -3, 4, -4, 5, -5, 12, -12)  # by which a number is changed: the first that is possible


def start_model(cache: Path) -> tuple[World, Path]:
    """The toy world `sums`, and the folder of its model, which knows the solver's prompt alone."""
    template = Template(name="solve", category="free form", user=SOLVE.text)
    world = load_world("sums")
    settings = Settings(world=world, templates=("solve",), seed=SEED)
    return world, make(settings, Bank([template]), cache) / "model"


def faulty(problem: Problem, known: set[tuple[int, str, int]], reverse: bool) -> Problem:
    """Another problem that an edit makes of this one: one that the model could be asked."""
    op = "-" if problem.op == "+" else "+"
    if reverse and (problem.a, op, problem.b) in known:
        return dataclasses.replace(problem, op=op)
    changed = (problem.b + step for step in STEPS)
    b = next(b for b in changed if (problem.a, problem.op, b) in known)
    return dataclasses.replace(problem, b=b)


def planted(world: World, count: int) -> Iterator[tuple[Question, dict[str, str]]]:
    """(question, {good: text, faulty: text}) of held-out problems of two digits."""
    known = {(p.a, p.op, p.b) for p in all_problems(world)}
    chosen = [p for p in problems(world, "test", 2 * count, SEED) if p.a >= 10][:count]
    for i, problem in enumerate(chosen):
        _, *others = rephrasings(problem, SEED)
        edited = faulty(problem, known, reverse=i % 2 == 0)
        texts = {
            "good": phrase(problem, others[i % 3]),
            "faulty": phrase(edited, others[(i + 1) % 3]),
        }
        yield to_question(world, problem, "test", SEED), texts


def judged(
    plan: list[tuple[Question, dict[str, str]]], url: str, work: Path, answers: int
) -> dict[str, list[Candidate]]:
    """The candidates of each kind after the solver."""
    candidates = {
        question.uid: [
            Candidate(
                uid=question.uid, text=text, verdict="accept", reasons=(), source={"kind": kind}
            )
            for kind, text in texts.items()
        ]
        for question, texts in plan
    }
    arguments = [str(work / "questions"), str(work / "out"), "--model", "toy", "--base-url", url]
    arguments += ["--solve", str(answers), "--solver-tokens", "80"]
    options = cli.build_parser("").parse_args(arguments)
    cli.validate(options)
    found, _ = solve([question for question, _ in plan], candidates, Budget(), options)
    kinds: dict[str, list[Candidate]] = {"faulty": [], "good": []}
    for candidate in (c for listed in found.values() for c in listed):
        kinds[candidate.source["kind"]].append(candidate)
    return kinds


def main() -> int:
    parser = make_parser(
        "python scripts/bench_solver.py", __doc__, example="python scripts/bench_solver.py"
    )
    parser.add_argument("--questions", type=int, default=80, help="of the held-out ones")
    parser.add_argument("--answers", type=int, default=12, help="to every text")
    parser.add_argument("--cache", type=Path, default=Path(".toy"), help="of toy worlds")
    given = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    world, model = start_model(given.cache)
    plan = list(planted(world, given.questions))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with serving_model(model, "toy", work / "server.log") as url:
            kinds = judged(plan, url, work, given.answers)
    right = [c.source["solver"]["gold"][0] for c in kinds["good"]]
    print(f"{sum(right) / len(right):.0%} of the answers to good rephrasings are right")
    for kind, listed in kinds.items():
        doubted = sum(c.verdict == "doubtful" for c in listed)
        low, high = wilson(doubted / len(listed), len(listed))
        print(f"{kind:6}  {doubted} of {len(listed)} doubted: [{low:.3f}, {high:.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
