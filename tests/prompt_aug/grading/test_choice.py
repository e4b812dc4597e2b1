"""Multiple choice: the letter decides, and the text behind it must be that option's."""

from pathlib import Path

import pytest

from prompt_aug.grading import grade

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
        assert (
            grade(rf"So \boxed{{{box}}}.\n\n{conclusion}", "B", options=options).correct == correct
        )


def test_what_was_chosen_is_the_letter_so_that_votes_for_it_are_one_answer() -> None:
    chosen = [
        grade(text, "A", options=OPTIONS).extracted
        for text in (r"\boxed{B}", r"\boxed{(B) 10^-4 eV}", "The answer is (B) 10^-4 eV.")
    ]
    assert chosen == ["B"] * 3
