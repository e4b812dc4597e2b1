r"""Coverage-guided fuzzing of the grader: mutates answers, keeps those that reach new lines.

Laws that every input must keep:
 1. grading returns a `Grade` with a known status, never raises and has no internal error;
 2. an answer is equal to itself: `grade_answer(x, x)` is correct, and so is `\boxed{x}` where the
    braces of x are balanced;
 3. `correct` is exactly status "correct";
 4. no grade takes longer than `MAX_SECONDS` (the wall limit and some);
 5. the same pair gets the same grade again;
 6. a prediction is right for at most one of several golds that differ in value;
 7. a sign that makes no formula of a value (`GARBAGE`) before or after it earns nothing;
 8. two values with a `SEPARATOR` between them are not right for either of them, nor for the digits
    of both or for their product;
 9. a formula of the question is no answer: what math-verify would work out is `echo`, also where
    its numbers are respelled or nothing is done to it;
10. an unclosed box, and a second marked choice, earn nothing;
11. an answer has a normal form, the same with other white space around it;
12. a number with a unit (`UNITS`) is not right for the same number with another unit;
13. coordinates, counted things and letters in another order are another answer;
14. a logarithm without a base is neither the natural nor the decimal one;
15. a magnitude in words, a wrong rounding and a wrong mixed number are never right.
Prints one JSON line; exits 1 and prints the inputs when a law is broken.
"""

import json
import random
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tqdm import tqdm

from prompt_aug.grading import STATUSES, Extraction, grade, grade_answer, normal_form
from prompt_aug.grading.extract import extract

EXAMPLE = "--minutes 1"
MAX_SECONDS = 240.0
SEEDS = (
    r"\frac{1}{2} 3\sqrt{5} x=5 \pm (1,2] \{1,2\} 50\% 1,234 52_8 \text{(C)} 90^\circ x^2-1 2i \pi"
    r" \begin{pmatrix}1\\2\end{pmatrix} (-\infty,1)\cup(3,\infty) 7\frac{3}{4} \log_{2}8 x\le3"
    r" 1,\!234 2.5e3 |x| \binom{5}{2} 5! \$3.50 80\text{cents} \emptyset y=2x+1 x\in[1,2) \sin^2x"
).split()
PIECES = (
    *r"\frac \sqrt \text{ \left( \right] \{ \} { } ( ) [ ] ^ _ = , ; : . - + * / ! % & \\".split(),
    *r"\cup \pm \mp \infty \approx \in \le < > | \circ ^{ } \begin{pmatrix} \end{pmatrix}".split(),
    *r"\boxed{ </answer> <answer> <|im_end|> \times10^{ \sum_{k=1}^{ \int_0^1 \prod \$ $".split(),
    *("\x00", "\ud800", "\u202e", "\u00bd", "\u221a", "\u03c0", "\u2212", "\u00b2", "\u0663"),
    *("9" * 50, "{" * 60, "(" * 60, "!" * 9, "^9" * 9, "x" * 300, "1," * 200, r"\\" * 80, "1e999"),
    *(r"__import__('os').system('x')", "eval(1)", "lambda:0", "nan", "inf", "None", "0/0"),
    *(" and ", " or ", " ", "\n", "\t", "\U0001f642", r"\lim_{x\to0}"),
)

# Values of which no two are equal, in the spellings that models use.
VALUES = (
    r"\frac{3}{4} \frac{1}{3} 12 34 -5 \sqrt{2} 2\pi x+1 3+4i 7! 0.125 10^{5} (1,2,5) \{8,9\}"
    r" (-\infty,3) (3,\infty)"
).split()
GARBAGE = (
    *("\\neq ", "<", ">", "@ ", "# ", "? ", r"\text{not } ", r"\foo ", "}", "((", r"\cdot ", "| "),
)
BEHIND = (
    *(" @", " #", " +", r" \cdot", "}", "))", r" \setminus 2", r" \cup 7", r" \foo", " =", " <"),
    r", \ldots",
)
SEPARATORS = (
    *(r" \quad ", r" \qquad ", r" \text{ or } ", " or ", ", ", "; ", r" \mid ", r" \to ", " | "),
    *(r" \text{ maybe } ", r" \\ ", r" \ne ", r" \Rightarrow ", " ? ", " / "),
)
UNSOLVED = (
    (r"\log_2 32", "5", r"What is $\log_2 32$?"),
    (r"\sum_{i=1}^{100} i", "5050", r"Find $\sum_{i=1}^{100} i$."),
    (r"\gcd(84,36)", "12", "Compute gcd(84, 36)."),
    (r"\frac{1}{x-5}>0", r"(5,\infty)", r"Solve \[\frac{1}{x - 5} > 0.\]"),
    (r"(x+1)(x-1)", "x^2-1", "Expand $(x+1)(x-1)$."),
    (r"\sqrt{242}", r"11\sqrt{2}", r"Simplify $\sqrt{242}$."),
)


# No two are the same unit.
UNITS = (
    *(r"\${}", "€{}", "£{}", "{}¢", r"{}\text{{ yen}}", r"{}\%\text{{ loss}}", r"{}\text{{ cm}}"),
    *("{} km/h", r"{}\text{{ yd}}^2", "{}^\\circ", "{}'", r"{}\text{{ hours}}", "{} kg"),
    *(r"{}\text{{ kW}}", r"{}\text{{ W}}", r"{}\text{{ ns}}", "{} GHz", r"{}\text{{ mA}}"),
)


def misread(rng: random.Random) -> list[str]:
    """Laws 12 to 15 on one draw: what was paid and must not be."""
    a, b = rng.sample(range(2, 60), 2)
    unit, other = rng.sample(UNITS, 2)
    x, y = rng.sample("abcdmnpqstuvxyz", 2)
    toss = "".join(rng.choices("HT", k=rng.randrange(2, 7)))
    base = rng.choice((r"\ln {}", r"\log_{{10}} {}", r"\log_{{10}}({})"))
    wrong = [
        (unit.format(a), other.format(a)),
        (f"({x},{y})=({a},{b})", f"({y},{x})=({a},{b})"),
        (rf"{a}\text{{ boys, }}{b}\text{{ girls}}", rf"{b}\text{{ boys, }}{a}\text{{ girls}}"),
        (rf"{a}\text{{ cm}}, {b}\text{{ m}}", rf"{b}\text{{ cm}}, {a}\text{{ m}}"),
        (base.format(a), rf"\log {a}"),
        (rf"\log {a}", base.format(a)),
        (rf"{a}\text{{ {rng.choice(('hundred', 'thousand', 'million'))}}}", str(a)),
        (rf"\frac{{{a}}}{{{b}}}={a / b + 0.02:.2f}", rf"\frac{{{a}}}{{{b}}}"),
        (rf"\frac{{{a}}}{{{b}}}\approx {1.1 * a / b + 0.01:.3f}", rf"\frac{{{a}}}{{{b}}}"),
        (f"{{{a}}}{{{b}}}", str(a * b)),
        (rf"y={a}\frac{{1}}{{{b}}}x", rf"y=\frac{{{a}}}{{{b}}}x"),
        (rf"(\pm{a},{b})", f"({a},{b})"),
        (f"]{a},{a + b}[", f"[{a},{a + b}]"),
        (f"x>{a + b} and x<{a}", rf"(-\infty,{a})\cup({a + b},\infty)"),
    ]
    if toss[::-1] != toss:
        wrong.append((toss, toss[::-1]))
    return [f"misread: {one!r} for {two!r}" for one, two in wrong if grade_answer(one, two).correct]


def unearned(rng: random.Random) -> list[str]:
    """Laws 6 to 10 on one draw: what was paid and must not be."""
    one, other = rng.sample(VALUES, 2)
    both = one + rng.choice(SEPARATORS) + other
    golds = [one, other, rf"({one})\cdot({other})"]
    golds += [one + other] if one.isdigit() and other.isdigit() else []
    paid = [
        f"two values: {both!r} for {gold!r}"
        for gold in golds
        if grade_answer(both, gold).correct and both != gold
    ]
    for text in (rng.choice(GARBAGE) + one, one + rng.choice(BEHIND)):
        if grade_answer(text, one).correct:
            paid.append(f"garbage: {text!r} for {one!r}")
    copied, gold, question = rng.choice(UNSOLVED)
    wrappers = ("{}", " {} ", "({})", r"\left({}\right)", "x={}", r"\displaystyle {}", "{}+1-1")
    again = rng.choice((*wrappers, "1({})", r"\frac{{2({})}}{{2}}", "{0},{0}"))
    if grade_answer(again.format(copied), gold, question=question).correct:
        paid.append(f"echo: {again.format(copied)!r}")
    cut = rng.choice((rf"\boxed{{{one}", rf"So $\boxed{{{one}$", rf"The answer is \boxed{{{one}."))
    if grade(cut, one).correct:
        paid.append(f"unclosed box: {cut!r}")
    paid += copied_work(rng)
    letters = "".join(f"({letter})" for letter in "ABCDE"[: rng.randrange(2, 6)])
    paid += [f"choices: {letters}" for gold in "ABCDE" if grade_answer(letters, gold).correct]
    return paid


RESPELLED = (r"\frac{{{2}}}{{2}}", "({0}+1)", "({1}-1)", "{{{3}}}^{{1}}", r"(2\cdot{3}-{3})", "{3}")
UNCHANGED = (
    *(r"\frac{{2({})}}{{2}}", r"\int_0^1 ({})\,dt", r"\sum_{{i=1}}^1 ({})", "{}-{}+{}", "{}+7-7"),
)


def copied_work(rng: random.Random) -> list[str]:
    """Law 9 on a formula with other numbers each time: its work is left to the grader."""
    a, b = rng.sample(range(3, 40), 2)
    formula, gold = rng.choice(
        (
            (r"{0}\cdot {1}", str(a * b)),
            ("(x+{0})(x-{1})", f"x^2+{a - b}x-{a * b}".replace("+-", "-")),
            (r"\sqrt{{{0}}}\cdot\sqrt{{{1}}}", rf"\sqrt{{{a * b}}}"),
            (r"\frac{{{0}}}{{{1}+\sqrt{{2}}}}", rf"\frac{{{a}({b}-\sqrt{{2}})}}{{{b * b - 2}}}"),
        )
    )
    question = f"Find ${formula.format(a, b)}$."
    respelled = [rng.choice(RESPELLED).format(n - 1, n + 1, 2 * n, n) for n in (a, b)]
    copy = rng.choice((*UNCHANGED, "{}")).replace("{}", formula.format(*respelled))
    copy = copy.replace("{{", "{").replace("}}", "}")
    right = grade_answer(copy, gold, question=question).correct
    return [f"copied work: {copy!r} for {gold!r}"] if right else []


def many_golds_of_infinity(rng: random.Random) -> list[str]:
    """Law 6 where it was broken once: an infinity in arithmetic was equal to any number."""
    return many_golds(rng.choice(VALUES) + rng.choice((r"\infty", "inf", r"\cdot\infty^{10}")))


def many_golds(text: str) -> list[str]:
    """Law 6 on any text."""
    right = [gold for gold in VALUES if grade_answer(text, gold).correct]
    return [f"{text!r} is right for {right}"] if len(right) > 1 else []


def mutated(rng: random.Random, corpus: list[str]) -> str:
    """A new input from one or two old ones."""
    text = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.randrange(1, 8))
        action = rng.randrange(6)
        if action <= 1:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif action == 2:
            text = text[:at] + text[to:]
        elif action == 3:
            text = text[:at] + rng.choice(corpus) + text[to:]
        elif action == 4:
            text = text[:at] + text[at:to] * rng.randrange(2, 6) + text[to:]
        else:
            text = text[:at] + str(rng.choice((0, 1, -1, 7, 10, 1000, 10**9))) + text[to:]
    return text[: rng.choice((40, 200, 200, 1500))]


class Lines:
    """The lines of the grader that have run so far, in this thread."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if "grading" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    def grew(self, prediction: str, gold: str) -> bool:
        """Grades once under trace; whether new lines ran."""
        before = len(self.seen)
        sys.settrace(self._trace)
        try:
            grade_answer(prediction, gold)
        finally:
            sys.settrace(None)
        return len(self.seen) > before


def broken_laws(text: str, gold: str) -> list[str]:
    """The names of the laws that this pair breaks."""
    broken = []
    first = grade_answer(text, gold)
    if first.status not in STATUSES or first.correct != (first.status == "correct"):
        broken.append(f"status {first}")
    if first.detail.startswith("internal"):
        broken.append(first.detail)
    if first.seconds > MAX_SECONDS:
        broken.append(f"slow {first.seconds:.1f} s")
    again = grade_answer(text, gold)
    if again.status != first.status and "error" not in (first.status, again.status):
        broken.append(f"unstable {first.status} {again.status}")
    if normal_form(text) != normal_form(f" {text}\n"):
        broken.append("another normal form with white space around it")
    if text.strip():
        if not grade_answer(text, text).correct:
            broken.append("not equal to itself")
        boxed = rf"So \boxed{{{text}}}."
        if extract(boxed, Extraction()) == text.strip() and not grade(boxed, text).correct:
            broken.append("not equal to itself in a box")
    return broken


def main(parser: ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--trace-every", type=int, default=4, help="inputs for each traced one")
    options = parser.parse_args(arguments)
    rng, corpus, lines = random.Random(options.seed), list(SEEDS), Lines()
    statuses: Counter[str] = Counter()
    failures: dict[str, list[str]] = {}
    inputs, start, slowest = 0, time.monotonic(), 0.0
    progress = tqdm(total=round(options.minutes * 60), unit="s")
    while (elapsed := time.monotonic() - start) < options.minutes * 60:
        text, gold = mutated(rng, corpus), rng.choice(corpus)
        inputs += 1
        try:
            problems = broken_laws(text, gold) + unearned(rng) + misread(rng)
            if inputs % options.trace_every == 0:
                problems += many_golds(mutated(rng, list(VALUES)))
                problems += many_golds_of_infinity(rng)
            if problems:
                failures[text] = [gold, *problems]
            result = grade_answer(text, gold)
            statuses[result.status] += 1
            slowest = max(slowest, result.seconds)
            if inputs % options.trace_every == 0 and lines.grew(text, gold):
                corpus.append(text if text.strip() else "0")
        except Exception as error:
            failures[text] = [gold, f"raised {type(error).__name__}: {error}"]
        progress.update(round(elapsed) - progress.n)
    report = {
        "minutes": options.minutes,
        "inputs": inputs,
        "lines reached": len(lines.seen),
        "kept": len(corpus),
        "statuses": dict(statuses.most_common()),
        "slowest cached grade, s": round(slowest, 2),
        "failures": len(failures),
    }
    print(json.dumps(report))
    for text, (gold, *problems) in list(failures.items())[:20]:
        print(json.dumps({"input": text, "gold": gold, "problems": problems}))
    return int(bool(failures))
