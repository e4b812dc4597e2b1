"""Accept and reject rates of the checks of `prompt_aug.rephrase` on public pairs.

Each set is read from a checkout that you name (`--set NAME=DIR`). Nothing is downloaded.
prompt_aug/rephrase/README.md has the limits of sets marked `held out`.
"""

import csv
import heapq
import io
import itertools
import json
import math
import random
import zlib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import in_columns
from prompt_aug.base.errors import UserError
from prompt_aug.base.estimates import wilson
from prompt_aug.grading import grade_many
from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex, words
from prompt_aug.prepare.sources import load_rows
from prompt_aug.rephrase.verify import Check, check

EXAMPLE = "--set gsm-plus=checkouts/GSM-Plus"
SURE, CLEAR = 0.45, 0.1  # least cosine of a pair, and least lead over the next question
CHANGED = {
    "numerical substitution": "numbers replaced",
    "digit expansion": "digits added",
    "integer-decimal-fraction conversion": "whole to decimal",
    "reversing operation": "reversed",
    "adding operation": "step added",
    "critical thinking": "condition removed",
}
MATHCHECK = {
    "problem_understanding_question": ("reworded", "good"),
    "scenario_understanding": ("other unknown", "changed"),
    "distractor_insertion_question": ("distractor", "extra"),
}


class BenchError(UserError):
    """A checkout that lacks a file, or a set that is unknown."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A question, a candidate, the kind of the candidate, and responses of solvers to both.

    kind: "good", "changed", "hidden" (changed inside a rewording) or "extra" (a distractor, same
    answer). `solved`: solver -> (its response to the question, its response to the candidate).
    """

    group: str
    kind: str
    question: str
    candidate: str
    answer: str = ""
    solved: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def _text(path: Path) -> str:
    if not path.is_file():
        raise BenchError(f"{path}: no such file. Name the checkout of the set.")
    return path.read_bytes().decode("utf-8")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _text(path).splitlines() if line]


def _table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(_text(path), newline="")))


def gsm_plus(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """GSM-Plus (arXiv 2402.19255, github.com/qtli/GSM-Plus): 300 questions of each perturbation."""
    for line in _lines(folders["gsm-plus"] / "dataset/gsmplus_testmini.jsonl"):
        name, own = line["perturbation_type"], (line["seed_question"], line["question"])
        if name == "problem understanding":
            yield Pair("reworded", "good", *own, str(line["seed_answer"]))
        elif name == "distraction insertion":
            yield Pair("distractor", "extra", *own)
        elif str(line["answer"]) != str(line["seed_answer"]):  # some perturbations keep the answer
            yield Pair(CHANGED[name], "changed", *own)


def mathcheck(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """MathCheck-GSM (arXiv 2407.08733, github.com/PremiLab-Math/MathCheck), 129 seeds.

    Its `results` hold one response of each model to each question: the stored solver answers.
    """

    def solving(file: Path) -> Iterator[dict[str, Any]]:
        yield from (line for line in json.loads(_text(file)) if line["task_type"] == "solving")

    responses: dict[str, dict[str, str]] = {}
    for solver in ("gpt-3.5-turbo", "gemini-1.5-pro-latest", "o1-mini"):
        name = f"gsm_checklist_{solver}_task_all_question_all_zeroshot_prediction.json"
        if (file := folders["mathcheck"] / "results" / name).is_file():
            responses[solver] = {x["question"]: str(x["model_prediction"]) for x in solving(file)}
    groups: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in solving(folders["mathcheck"] / "gsm_checklist.json"):
        groups[line["group_id"]][line["question_type"]] = line
    for group in groups.values():
        seed = group["seed_question"]
        for name, (shown, kind) in MATHCHECK.items():
            text = group[name]["question"]
            if kind == "changed" and group[name]["answer"] == seed["answer"]:
                continue  # another unknown with the same value has the same answer
            solved = {
                solver: (answers[seed["question"]], answers[text])
                for solver, answers in responses.items()
                if seed["question"] in answers and text in answers
            }
            yield Pair(shown, kind, seed["question"], text, str(seed["answer"]), solved)


def _gsm_rewordings(folders: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield (question of GSM8K's test set, its rewording by llm-decontaminator), in order."""
    asked = [line["query"] for line in _lines(folders["metamath"] / "data/test/GSM8K_test.jsonl")]
    said = _lines(folders["llm-decontaminator"] / "data/rephrase/rephrase_gsm8k.jsonl")
    for question, line in zip(asked, said, strict=False):
        text = line["text"].split("\nAnswer:")[0].removeprefix("Question:").strip()
        if text:
            yield question, text


def decontaminator(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """GSM8K test, reworded to evade n-gram search (arXiv 2311.04850, lm-sys/llm-decontaminator)."""
    for question, text in _gsm_rewordings(folders):
        yield Pair("reworded", "good", question, text)


def hidden(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """A changed question of GSM-Plus against a rewording of its seed, from another source."""
    reworded = {" ".join(q.split()): text for q, text in _gsm_rewordings(folders)}
    for pair in gsm_plus(folders):
        text = reworded.get(" ".join(pair.question.split()))
        if text and pair.kind == "changed":
            yield Pair(pair.group, "hidden", pair.candidate, text)


def _paired(
    texts: Sequence[str], found: Iterable[str], group: str = "rewritten", kind: str = "good"
) -> Iterator[Pair]:
    """Yield `found` texts with their nearest question if it is clear, which favors rare words.

    The measure is the cosine of words and word pairs, weighted by rarity.
    """
    counts = [_grams(text) for text in texts]
    seen = Counter(gram for own in counts for gram in own)

    def weights(own: Mapping[str, int]) -> dict[str, float]:
        rare = {g: math.log(len(texts) / seen[g]) * (1 + math.log(n)) for g, n in own.items()}
        norm = math.sqrt(sum(weight**2 for weight in rare.values())) or 1.0
        return {gram: weight / norm for gram, weight in rare.items()}

    places: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, own in enumerate(counts):
        for gram, weight in weights(own).items():
            if seen[gram] < len(texts) / 3:
                places[gram].append((place, weight))
    for text in found:
        scores: dict[int, float] = defaultdict(float, {-1: 0.0, -2: 0.0})
        for gram, weight in weights({g: n for g, n in _grams(text).items() if g in seen}).items():
            for place, other in places.get(gram, ()):
                scores[place] += weight * other
        nearest, second = heapq.nlargest(2, scores, key=lambda place: (scores[place], place))
        if scores[nearest] > SURE and scores[nearest] - scores[second] > CLEAR:
            yield Pair(group, kind, texts[nearest], text)


def _grams(text: str) -> Counter[str]:
    found = words(text)
    return Counter([*found, *map(" ".join, itertools.pairwise(found))])


def _math(folders: Mapping[str, Path]) -> list[str]:
    rows = load_rows(str(folders["math"]))
    return [text for row in rows if (text := row.get("problem") or row.get("question"))]


def dice_gsm(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """GSM8K test, rewritten by GPT-4 (arXiv 2406.04197, github.com/THU-KEG/DICE)."""
    folder = folders["dice"] / "OOD_test/scripts/data/gsm8k"
    own = [line["question"] for line in _table(folder / "original.csv")]
    return _paired(own, [line["question"] for line in _table(folder / "rephrased1.csv")])


def dice_math(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """MATH test, rewritten by GPT-4 (DICE); its originals are the questions of `math`."""
    lines = _table(folders["dice"] / "OOD_test/scripts/data/math/rephrased1.csv")
    return _paired(_math(folders), [line["question"] for line in lines])


def _perturbed(folders: Mapping[str, Path], name: str) -> dict[str, str]:
    lines = _lines(folders["math-perturb"] / f"math_perturb/math_perturb_{name}.jsonl")
    return {line["problem_id"]: line["problem"] for line in lines}


def math_perturb(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """MATH-Perturb (arXiv 2502.06453, Kaffaljidhmah2/MATH-Perturb): simple against hard."""
    hard = _perturbed(folders, "hard")
    for number, text in _perturbed(folders, "simple").items():
        if number in hard:
            yield Pair("simple, hard", "changed", text, hard[number])


def math_original(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """MATH-Perturb, simple and hard, against the originals, found among the questions of `math`."""
    for name in ("simple", "hard"):
        found = _perturbed(folders, name).values()
        yield from _paired(_math(folders), found, f"original, {name}", "changed")


def var_math(folders: Mapping[str, Path]) -> Iterator[Pair]:
    """VAR-MATH (arXiv 2507.12885, github.com/nigelyaoj/VAR-MATH): AMC 23 with other numbers."""
    folder = folders["var-math"] / "VAR_data"
    own = {line["id"]: line for line in _lines(folder / "amc23/test.jsonl")}
    for line in _lines(folder / "VAR_amc23/test.jsonl"):
        seed = own.get(line["id"].split("_")[0])
        if seed and seed["answer"] != line["answer"]:
            yield Pair("other numbers", "changed", seed["question"], line["question"])


def audit(perturbation: str, group: str, kind: str, folders: Mapping[str, Path]) -> Iterator[Pair]:
    """GPT-4o's edits of MATH-500, of github.com/ademcodesproducts/contamination-audit."""
    path = folders["audit"] / "data/processed/contaminated_and_perturbations.csv"
    rows = [row for row in _table(path) if row["problem"].strip()]
    own = {r["math500_id"]: r["problem"] for r in rows if r["perturbation_type"] == "original"}
    for row in rows:
        if row["perturbation_type"] == perturbation and row["math500_id"] in own:
            yield Pair(group, kind, own[row["math500_id"]], row["problem"])


@dataclass(frozen=True, slots=True)
class PairSet:
    """A set of pairs: its reader, the checkouts it needs, its subject. `held_out`: not tuned on.

    `half` selects half of the pairs: 0 for tuning, 1 held out.
    """

    reader: Callable[[Mapping[str, Path]], Iterator[Pair]]
    needs: tuple[str, ...]
    subject: str = "word problems"
    half: int | None = None
    held_out: bool = True

    def read(self, folders: Mapping[str, Path]) -> Iterator[Pair]:
        for pair in self.reader(folders):
            if self.half in (None, zlib.crc32(pair.candidate.encode()) % 2):
                yield pair


NUMBERS = partial(audit, "number_swap", "numbers replaced", "changed")
CONTEXT = partial(audit, "surface_noise", "sentence of context", "extra")
HIDDEN = ("gsm-plus", "llm-decontaminator", "metamath")
SETS = {
    "Contamination audit, numbers": PairSet(NUMBERS, ("audit",), "MATH"),
    "Contamination audit, context": PairSet(CONTEXT, ("audit",), "MATH"),
    "GSM-Plus": PairSet(gsm_plus, ("gsm-plus",), held_out=False),
    "MathCheck-GSM": PairSet(mathcheck, ("mathcheck",), held_out=False),
    "MATH-Perturb": PairSet(math_perturb, ("math-perturb",), "MATH"),
    "MATH-Perturb, original": PairSet(math_original, ("math-perturb", "math"), "MATH"),
    "VAR-MATH": PairSet(var_math, ("var-math",), "MATH"),
    "llm-decontaminator": PairSet(decontaminator, ("llm-decontaminator", "metamath")),
    "DICE GSM8K": PairSet(dice_gsm, ("dice",)),
    "DICE MATH, half": PairSet(dice_math, ("dice", "math"), "MATH", 0, held_out=False),
    "DICE MATH, other half": PairSet(dice_math, ("dice", "math"), "MATH", 1),
    "GSM-Plus, reworded, half": PairSet(hidden, HIDDEN, half=0, held_out=False),
    "GSM-Plus, reworded, other half": PairSet(hidden, HIDDEN, half=1),
}


def rephrase(options: Namespace, names: set[str]) -> None:
    """Print the table of all sets whose checkouts are named."""
    folders: dict[str, Path] = dict(options.set)
    if not folders:
        raise BenchError("--set: missing. Name at least one checkout.")
    if unknown := folders.keys() - names:
        raise BenchError(f"--set {', '.join(sorted(unknown))}: unknown. See --help.")
    rows = [["set", "kind", "pairs", "n", "accept", "doubtful", "reject", "overlap"]]
    totals: dict[tuple[str, str, bool], Counter[str]] = defaultdict(Counter)
    everything: list[Pair] = []
    known = {name: one for name, one in SETS.items() if folders.keys() >= {*one.needs}}
    for name, one in known.items():
        groups: dict[tuple[str, str], list[tuple[Pair, Check]]] = defaultdict(list)
        for pair in one.read(folders):
            everything.append(pair)
            verdict = check(pair.question, pair.candidate)
            groups[pair.kind, pair.group].append((pair, verdict))
            totals[one.subject, pair.kind, one.held_out][verdict.verdict] += 1
        shown = name + (" (held out)" if one.held_out else "")
        for (kind, group), found in sorted(groups.items()):
            rates = _rates(Counter(str(c.verdict) for _, c in found))
            rows.append([shown, kind, group, *rates, f"{_overlap([p for p, _ in found]):.3f}"])
        for line in _solved([pair for pairs in groups.values() for pair in pairs]):
            rows.append([shown, *line, ""])
        if options.show and not one.held_out:
            _show(groups, options.show)
    for (subject, kind, held_out), counts in sorted(totals.items()):
        shown = f"all {'held out' if held_out else 'tuned on'}"
        rows.append([shown, kind, subject, *_rates(counts), ""])
    if options.fuzz:
        print(_fuzz(everything, options.fuzz))
    print(in_columns(rows, left=("kind", "pairs", "accept")))


def _overlap(pairs: Sequence[Pair]) -> float:
    """Return the share of candidates that decontamination against the questions finds."""
    index = OverlapIndex({"questions": [pair.question for pair in pairs]})
    found = (index.best(pair.candidate) for pair in pairs)
    return sum(match is not None and match.score >= OVERLAP_LIMIT for match in found) / len(pairs)


def _fuzz(pairs: Sequence[Pair], count: int) -> str:
    """Check random edits of the pairs; return how many filters raised, with five errors."""
    rng, raised = random.Random(0), list[str]()
    pieces = ["0 times", "1/0", "$", "\\frac{", "{", "^", "half of 0", "²", "3:00", "", "%", "√("]
    for _ in range(count):
        pair = rng.choice(pairs)
        place = rng.randrange(len(pair.candidate) + 1)
        rest = pair.candidate[place + rng.randrange(9) :]
        text = pair.candidate[:place] + rng.choice(pieces) + rest
        raised += [r.detail for r in check(pair.question, text).reasons if r.filter == "error"]
    return f"{count} random edits: {len(raised)} filters raised {sorted(set(raised))[:5]}"


def _rates(counts: Counter[str]) -> list[str]:
    total = counts.total()
    low, high = wilson(counts["accept"] / total, total)
    accept, *rest = (f"{counts[name] / total:.3f}" for name in ("accept", "doubtful", "reject"))
    return [str(total), f"{accept} [{low:.3f}, {high:.3f}]", *rest]


def _solved(found: Sequence[tuple[Pair, Check]]) -> Iterator[list[str]]:
    """Yield rates with one stored answer of each solver: if right, a doubtful pair is accepted."""
    for solver in sorted({name for pair, _ in found for name in pair.solved}):
        for kind in ("good", "changed", "extra"):
            of_kind = [(p, c) for p, c in found if p.kind == kind and solver in p.solved]
            grades = grade_many([(p.solved[solver][1], [p.answer]) for p, _ in of_kind])
            counts: Counter[str] = Counter(
                "accept" if c.verdict == "doubtful" and grade.correct else c.verdict
                for (_, c), grade in zip(of_kind, grades, strict=True)
            )
            if counts:
                yield [kind, f"with one answer of {solver}", *_rates(counts)]


def _show(groups: Mapping[Any, Sequence[tuple[Pair, Check]]], count: int) -> None:
    """Print the first wrong verdicts of each group, and the counts of verdicts by filter."""
    for (kind, group), found in sorted(groups.items()):
        wanted = "accept" if kind == "good" else "reject"
        wrong = [(p, c) for p, c in found if (c.verdict == "accept") != (wanted == "accept")]
        spoke = Counter(f"{r.filter}: {r.verdict}" for _, c in found for r in c.reasons)
        most = dict(spoke.most_common(9))
        print(f"## {kind}, {group}: {len(wrong)} of {len(found)} wrong; {most}")
        for pair, verdict in wrong[:count]:
            print(f"  Q {pair.question}\n  R {pair.candidate}")
            print("   ", [(r.filter, r.verdict, r.detail) for r in verdict.reasons])


def named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise ArgumentTypeError(f"{text}: not NAME=PATH")
    return name, Path(path)


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    names = {need for found in SETS.values() for need in found.needs}
    listed = f"NAME=CHECKOUT of {', '.join(sorted(names))}"
    parser.add_argument("--set", type=named, action="append", default=[], help=listed)
    parser.add_argument("--show", type=int, default=0, help="wrong verdicts to print per group")
    parser.add_argument("--fuzz", type=int, default=0, help="random edits that must raise nothing")
    rephrase(parser.parse_args(arguments), names)
