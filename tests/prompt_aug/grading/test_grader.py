"""The grader: statuses, workers, choices, normal forms, and the bounded reader of formulas."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.grading import Extraction, Grade, grade, grade_answer, grade_many, grader
from prompt_aug.grading import normal_form as form
from prompt_aug.grading.evaluate import TooBig, Unsupported, evaluate, surely_different
from prompt_aug.grading.pool import PoolSettings, WorkerPool

NEEDS_ALGEBRA = ("(x+3)(x-3)", "x^2-9")


@pytest.fixture(autouse=True, scope="module")
def quick_pool() -> Iterator[None]:
    """One worker that gives up early: the time-outs below are endless at any limit."""
    quick = WorkerPool(PoolSettings(workers=1, cpu_seconds=0.4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grader, "default_pool", lambda: quick)
        yield
    quick.close()


@pytest.mark.parametrize(
    ("response", "gold", "status"),
    [
        (r"so \boxed{5}", "5", "correct"),
        (r"so \boxed{6}", "5", "wrong"),
        (r"\boxed{x^2-1}", "(x+1)(x-1)", "correct"),
        (r"\boxed{x^2+1}", "(x+1)(x-1)", "wrong"),
        ("no idea", "5", "no_answer"),
        (r"\boxed{}", "5", "no_answer"),
        (r"\boxed{\frac{}{}}", "5", "unparsable"),
        (r"\boxed{" + "1" * 1001 + "}", "5", "too_long"),
        (r"\boxed{" + "{" * 41 + "5" + "}" * 41 + "}", "5", "too_long"),
        (r"\boxed{9^{9^{9^9}}}", "5", "too_long"),
        (r"\boxed{((9!)!)!}", "5", "too_long"),
        (r"\boxed{\prod_{k=1}^{9999} k^{k}}", "5", "timeout"),
    ],
)
def test_statuses(response: str, gold: str, status: str) -> None:
    result = grade(response, gold)
    assert result.status == status
    assert result.correct == (status == "correct")


def test_a_failing_worker_or_grader_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(ask=lambda _: {"status": "error", "detail": "memory limit"})
    monkeypatch.setattr(grader, "default_pool", lambda: failing)
    result = grade_answer("(x+7)(x-7)", "x^2-49")
    assert (result.status, result.detail) == ("error", "memory limit")
    monkeypatch.setattr(grader, "canonical", lambda _: [][0])
    result = grade_answer("5", "6")
    detail = "internal: IndexError: list index out of range"
    assert (result.status, result.detail) == ("error", detail)


def test_a_timeout_on_one_gold_does_not_hide_the_next() -> None:
    slow = r"\prod_{k=1}^{9998} k^{k}"
    assert grade_answer(NEEDS_ALGEBRA[0], [slow, NEEDS_ALGEBRA[1]]).correct


def test_any_gold_may_match_and_blank_ones_are_ignored() -> None:
    assert grade_answer("7", ["6", " ", "7\n"]).correct
    assert not grade_answer("8", ["6", "7"]).correct
    assert grade_answer("6, 7", "\\boxed{6}\n\\boxed{7}").correct


@pytest.mark.parametrize(
    ("gold", "message"),
    [*((gold, "gold is empty") for gold in ("", "  ", [], ["", "\n"])), ([5], "gold must be text")],
)
def test_an_unusable_gold_is_refused(gold: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        grade_answer("5", gold)


def test_a_verdict_does_not_depend_on_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses of a group are often equal; the limit of calls counts known verdicts too."""

    def ask(pair: dict[str, str]) -> dict[str, str]:
        same = Counter(pair["gold"]) == Counter(pair["pred"])
        return {"status": "correct" if same else "wrong", "detail": ""}

    monkeypatch.setattr(grader, "default_pool", lambda: SimpleNamespace(ask=ask))
    gold = ", ".join(rf"\int_0^{n} f(x)dx" for n in range(1, 8))
    pred = ", ".join(rf"\int_0^{n} dxf(x)" for n in range(7, 0, -1))
    assert len({grade_answer(pred, gold).status for _ in range(4)}) == 1


def test_settings_of_the_extraction() -> None:
    tagged = "<result>5</result> <answer>6</answer>"
    assert grade(tagged, "5", extraction=Extraction(answer_tag="result")).correct
    assert grade("<answer>6</answer>", "6").extracted == "6"
    assert grade("The answer is 5.", "5").correct
    assert grade("The answer is 5.", "5", extraction=Extraction(strict=True)).status == "no_answer"
    assert grade("we get 5", "5").status == "no_answer"
    assert grade("we get 5", "5", extraction=Extraction(last_number=True)).correct


def test_grade_many_keeps_the_order_and_reports_progress() -> None:
    seen: list[Grade] = []
    pairs = [(rf"\boxed{{{n}}}", str(n if n % 2 else n + 1)) for n in range(50)]
    results = grade_many(
        [*pairs, (rf"\boxed{{{NEEDS_ALGEBRA[0]}}}", NEEDS_ALGEBRA[1])], on_grade=seen.append
    )
    assert [result.correct for result in results] == [*(n % 2 == 1 for n in range(50)), True]
    assert len(seen) == 51


def test_many_threads_and_coroutines_at_once() -> None:
    pairs = [(f"(x+{n})(y-{n})", f"xy-{n}x+{n}y-{n * n}") for n in range(2, 14)]
    with ThreadPoolExecutor(24) as threads:
        assert all(r.correct for r in threads.map(lambda pair: grade_answer(*pair), pairs))

    async def together() -> list[Grade]:
        return await asyncio.gather(*(asyncio.to_thread(grade_answer, *pair) for pair in pairs))

    assert all(result.correct for result in asyncio.run(together()))


@pytest.mark.config  # starts worker processes
def test_a_fork_grades_with_workers_of_its_own() -> None:
    assert grade_answer(*NEEDS_ALGEBRA).correct
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = b"0"
        try:
            outcome = b"1" if grade_answer("(x+5)(x-5)", "x^2-25").correct else b"0"
        finally:
            os.write(write, outcome)
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    assert grade_answer("(x+6)(x-6)", "x^2-36").correct


OPTIONS = ("10^-11 eV", "10^-4 eV", "10^{-9} \\text{ eV}", "No, since the key is -5; it grows")
QUESTION = "Two states live 10^-4 s. Which energies tell them apart? (A) 10^-11 eV (B) 10^-4 eV"
TABLE = Path(__file__).with_name("policy.tsv").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("row", [line for line in TABLE if line.startswith("choice\t")])
def test_the_right_letter_is_right_alone_and_with_its_text_or_the_start_of_it(row: str) -> None:
    _, answer, gold, _, status = row.split("\t")
    result = grade(rf"\boxed{{{answer}}}", gold, question=QUESTION, options=OPTIONS)
    assert result.status == status


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("110-130", "140-160"), ("Bb Bb", "BB BB"), ("True, False", "False, True"), ("3 km", "3")],
)
def test_the_text_of_another_option_is_wrong_however_near(right: str, wrong: str) -> None:
    options = ("none", right, wrong)
    assert grade(rf"\boxed{{(B) {right}}}", "B", options=options).correct
    assert not grade(rf"\boxed{{(B) {wrong}}}", "B", options=options).correct


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        (r"Thus \boxed{10^-4}. The answer is (B).", True),
        (r"Thus \boxed{10^-4}. The answer is (A).", False),
        (r"Thus \boxed{A}. The answer is (B).", False),
        (r"Thus \boxed{A or B}. The answer is (B).", False),
        (r"Thus \boxed{\text{Both A and B}}. The answer is (B).", False),
        (r"Thus \boxed{(A) 10^-4 eV}. The answer is (B).", False),
        (r"Thus \boxed{\text{Neither C nor D}}. The answer is (B).", False),
        (r"Thus \boxed{\text{not A}}. The answer is (B).", False),
        (r"Thus \boxed{5\text{ (A)}}. The answer is (B).", False),
        (r"Thus \boxed{\text{the correct option is } C}. The answer is (B).", False),
        (r"Thus \boxed{(B) 10^-4 eV}. So the energy is 10^-4 eV.", True),
        (r"Thus \boxed{B 10^-4 eV}. So the energy is 10^-4 eV.", True),
        (r"Thus \boxed{10^-4}.</s> The answer is (B).", False),
        ("The answer is (B).\n\nNow, considering all the above, the final answer is:", True),
        ("The answer is (A).\n\nNow, considering all the above, the final answer is:", False),
        ("It is long. " * 40 + "The correct option is **B**.", True),
        ("It is long. " * 40 + "Correct Option: B", True),
        ("It is long. " * 40 + "Therefore, option B is correct.", True),
        ("It is long. " * 40 + "Therefore, option B is not correct.", False),
        ("The answer is C. The incorrect option is B.", False),
        ("The answer is B since 5+7=12.", True),
    ],
)
def test_a_letter_after_a_box_without_one_counts(response: str, correct: bool) -> None:
    assert grade(response, "B", options=OPTIONS).correct == correct


@pytest.mark.parametrize(
    "box",
    [
        *("CO_2", "k_B T", "C_6H_{12}O_6", "BF_3", r"\Delta C", r"\text{A larger force}", "P(A)"),
        *(r"\frac{A}{2}", r"A \cup B", "A^T", "D = 5", r"2\text{ A}", "AB", r"\text{I and II}"),
    ],
)
def test_a_letter_of_a_formula_or_sentence_is_no_choice(box: str) -> None:
    options = (*OPTIONS, "5", "6", "7", "8", "9")
    for conclusion, correct in (("Answer: B", True), ("The answer is (C).", False), ("", False)):
        response = rf"So \boxed{{{box}}}.\n\n{conclusion}"
        assert grade(response, "B", options=options).correct == correct


def test_what_was_chosen_is_the_letter_so_that_votes_for_it_are_one_answer() -> None:
    for text in (r"\boxed{B}", r"\boxed{(B) 10^-4 eV}", "The answer is (B) 10^-4 eV."):
        assert grade(text, "A", options=OPTIONS).extracted == "B"


ALIKE = [
    (r"\frac12", "0.50", r"x = \frac{2}{4}", r"\boxed{\dfrac{1}{2}}", "1/2", "50/100"),
    (r"\{3,1\}", "1, 3", "3 and 1", r"\{1,3,3\}"),
    (r"\sqrt{12}", r"2\sqrt3", r"\sqrt{3}+\sqrt3"),
    ("(1,2)", r"\left( 1, \frac{4}{2} \right)"),
    ("(1,2]", r"( 1 , 2 ]"),
    ("(x+1)^2", "x^2+2x+1"),
    ("1,234", "1234", r"1{,}234"),
    (r"3+4i", "4i+3"),
    ("Navin", r"\text{navin}"),
    ("12 cm", "12", r"12\%"),
    (r"(-\infty,1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,1)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ \frac42 \end{bmatrix}"),
]


@pytest.mark.parametrize("answers", ALIKE)
def test_alike_answers_have_one_form(answers: tuple[str, ...]) -> None:
    assert len({form(answer) for answer in answers}) == 1


def test_numbers_too_long_for_python_to_write_are_still_alike() -> None:
    """More than 4300 digits: each spelling of such a number was a vote of its own."""
    power = "10^{5000}"
    assert form(power) == form(r"10^{2500}\cdot 10^{2500}") == f"{10**5000:#x}/0x1"
    assert form(power) != form(power + "+1")


def test_answers_that_differ_have_different_forms() -> None:
    groups = [*(group[0] for group in ALIKE), "(2,1)", "[1,2]", "x", "X", "(x-1)^2", "-1/2"]
    assert len({form(answer) for answer in groups}) == len(groups)
    assert form(r"\frac13") != form("0.333333333")
    assert form(r"\sqrt{2}") != form(r"\sqrt{2}+10^{-25}")


@pytest.mark.parametrize(
    "text", ["", "?", r"\frac{", "9^{9^{9}}", "x" * 5000, "(" * 60, "0/0", r"\begin{pmatrix}"]
)
def test_hostile_text_has_a_form(text: str) -> None:
    assert isinstance(form(text), str)


def test_length_and_nesting_are_bounded() -> None:
    with pytest.raises(TooBig):
        evaluate("9" * 20_000)
    with pytest.raises(Unsupported, match="deep"):
        evaluate("(" * 500 + "1" + ")" * 500)


Formula = tuple[str, Fraction]


def _join(pair: tuple[Formula, Formula], sign: str) -> Formula:
    (left, x), (right, y) = pair
    texts = {
        "+": (f"({left})+({right})", x + y),
        "-": (f"{{{left}}}-{{{right}}}", x - y),
        "*": (rf"({left})\cdot({right})", x * y),
        "/": (rf"\frac{{{left}}}{{{right}}}", x / y) if y else (left, x),
    }
    return texts[sign]


numbers = st.integers(0, 99).map(lambda n: (str(n), Fraction(n))) | st.builds(
    lambda n, digits: (f"{n}.{digits:02d}", Fraction(100 * n + digits, 100)),
    st.integers(0, 9),
    st.integers(0, 99),
)
formulas = st.recursive(
    numbers,
    lambda inner: st.builds(_join, st.tuples(inner, inner), st.sampled_from("+-*/")),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(formulas)
def test_random_formulas_have_their_value(formula: Formula) -> None:
    text, value = formula
    assert evaluate(text).exact == value


@settings(max_examples=80, deadline=None)
@given(formulas, formulas)
def test_difference_is_exactly_difference(first: Formula, second: Formula) -> None:
    assert surely_different(evaluate(first[0]), evaluate(second[0])) == (first[1] != second[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
def test_equal_formulas_are_never_surely_different(a: int, b: int, c: int) -> None:
    left = rf"\frac{{(x+{c})({a}x-{b})}}{{\sqrt{{{c}}}}}".replace("--", "+")
    right = rf"\frac{{\sqrt{{{c}}}({a}x^2-{b}x+{a * c}x-{b * c})}}{{{c}}}"
    right = right.replace("--", "+").replace("+-", "-")
    assert not surely_different(evaluate(left), evaluate(right))
    assert surely_different(evaluate(left), evaluate(right + "+1"))
