"""Measure the start model of a world: ``python -m recipe.toy.card WORLD [--seed 0]``.

Builds the world unless it is in the cache, and samples its start model on test questions in all
four rephrasings. Prints a card in Markdown: pass@k, entropy, length and zero-variance groups by
rephrasing and level, and how often each skill is right.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.estimates import no_signal, pass_at_k
from prompt_aug.base.files import write_text
from prompt_aug.templates import load_bank
from recipe.run.environment import describe
from recipe.toy.build import Settings, make
from recipe.toy.diagnose import rates
from recipe.toy.problems import Problem, phrase, problems, rephrasings
from recipe.toy.world import REPHRASINGS, World, load_world

KS = (1, 8, 32)
GROUPS = (4, 8, 16, 32)
TEMPLATE = "qwen-math"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A problem in one rephrasing, how many of its samples were right, and their texts."""

    problem: Problem
    rephrasing: int
    own: bool  # True: the test split asks in this rephrasing
    right: int
    texts: tuple[str, ...]
    entropy: float  # nats per token, mean over responses
    tokens: float
    greedy: bool


def ask(folder: Path, world: World, given: argparse.Namespace) -> list[Asked]:
    """Sample the start model in `folder` on test questions in every rephrasing."""
    from recipe.toy.measure import Sampler  # imports torch

    sampler = Sampler(folder / "model", max_tokens=96, seed=given.seed)
    frame = load_bank()[given.template]
    chosen = problems(world, "test", given.questions, given.seed)
    places = [(p, w) for p in chosen for w in range(REPHRASINGS)]
    texts = [phrase(world, p, w) for p, w in places]
    golds = [(str(p.answer),) for p, _ in places]
    drawn = sampler.sample(texts, golds, frame, samples=given.samples)
    greedy = sampler.sample(texts, golds, frame, samples=1, temperature=0.0)
    return [
        Asked(
            problem=p,
            rephrasing=w,
            own=rephrasings(p, given.seed)[0] == w,
            right=sum(s.right for s in group),
            texts=tuple(s.text for s in group),
            entropy=sum(s.entropy for s in group) / given.samples,
            tokens=sum(s.tokens for s in group) / given.samples,
            greedy=best[0].right,
        )
        for (p, w), group, best in zip(places, drawn, greedy, strict=True)
    ]


def card(world: World, asked: Sequence[Asked], samples: int) -> str:
    """Return the tables of a card, in Markdown."""
    columns = ["", "questions", "greedy", *(f"pass@{k}" for k in KS)]
    columns += ["entropy", "tokens", *(f"silent, G={g}" for g in GROUPS)]
    rows = [("as first asked", [x for x in asked if x.own])]
    for w in range(REPHRASINGS):
        rows.append((f"rephrasing {w}", [x for x in asked if x.rephrasing == w]))
    for number, level in enumerate(world.levels, start=1):
        rows.append((level.name, [x for x in asked if x.problem.level == number]))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += [_row(name, chosen, samples) for name, chosen in rows]
    lines += ["", "| skill | right where due | places |", "|---|---|---|"]
    used = rates((x.problem, text) for x in asked for text in x.texts)
    lines += [f"| {skill} | {share:.3f} | {count} |" for skill, (share, count) in used.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, asked: Sequence[Asked], samples: int) -> str:
    if not asked:
        return f"| {name} | 0 |" + " |" * (3 + len(KS) + len(GROUPS))
    right, count = [x.right for x in asked], len(asked)
    cells = [name, str(count), f"{sum(x.greedy for x in asked) / count:.3f}"]
    cells += [f"{pass_at_k(right, samples, k):.3f}" for k in KS]
    cells += [f"{sum(x.entropy for x in asked) / count:.3f}"]
    cells += [f"{sum(x.tokens for x in asked) / count:.1f}"]
    cells += [f"{no_signal(right, samples, g):.3f}" for g in GROUPS]
    return "| " + " | ".join(cells) + " |"


def report(given: argparse.Namespace) -> str:
    """Return the card: description of the world, tables, origin of the numbers."""
    world, bank = load_world(given.world), load_bank()
    taught = tuple(given.templates or bank.names)
    for name in (*taught, given.template):
        bank[name]  # an unknown template is rejected before the build
    if given.samples < max(*KS, *GROUPS):
        raise UsageError(f"--samples {given.samples}: at least {max(*KS, *GROUPS)} are wanted")
    settings = Settings(world=world, templates=taught, seed=given.seed)
    folder = make(settings, bank, given.cache)
    asked = ask(folder, world, given)
    return f"# {world.name}\n\n{world.about.strip()}\n\n{card(world, asked, given.samples)}\n" + (
        f"The start model of seed {given.seed} under the template {given.template}, taught "
        f"{len(taught)} templates in {world.updates} updates; {given.questions} test questions, "
        f"each in {REPHRASINGS} forms, {given.samples} samples at temperature 1. Entropy in nats "
        "per token of the responses; pass@k and the shares of groups of G without signal (all "
        f"right or all wrong: silent) by their unbiased estimators.\n\n{_origin(given)}\n"
    )


def _origin(given: argparse.Namespace) -> str:
    """Return the command, machine and commit of a card; the command omits the output file."""
    now = describe()
    changes = ", with uncommitted changes" if now["uncommitted_changes"] else ""
    options = ("seed", "questions", "samples", "template")
    words = [given.world, *(f"--{name} {getattr(given, name)}" for name in options)]
    words += [f"--templates {' '.join(given.templates)}"] if given.templates else []
    return (
        f"`python -m recipe.toy.card {' '.join(words)}`, {os.cpu_count()} {platform.machine()} "
        f"CPU cores, commit {str(now['commit'])[:7]}{changes}."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.toy.card", __doc__, example="python -m recipe.toy.card staircase"
    )
    parser.add_argument("world", help="recipe/toy/worlds/NAME.yaml, or the path of a .yaml")
    parser.add_argument("--seed", type=int, default=0, help="of the world and its start model")
    parser.add_argument("--questions", type=int, default=48, help="test questions that are asked")
    parser.add_argument("--samples", type=int, default=64, help="of each of their rephrasings")
    parser.add_argument("--template", default=TEMPLATE, help="what it is asked under")
    parser.add_argument("--templates", nargs="+", help="those it is taught (default: all 13)")
    parser.add_argument("--cache", type=Path, default=Path(".toy"), help="of built worlds")
    parser.add_argument("--out", type=Path, help="a markdown file for the card, beside printing it")
    given = parser.parse_args(arguments)

    def show() -> int:
        text = report(given)
        if given.out:
            write_text(given.out, text)
        print(text)
        return 0

    return run("recipe.toy.card", show, interrupted="no card was written")


if __name__ == "__main__":
    sys.exit(main())
