"""The toy world: arithmetic by hand, disjoint splits, demonstrations that earn their reward."""

import pytest

from prompt_aug.grading import grade
from prompt_aug.templates import load_bank
from recipe.toy import world
from recipe.toy.demonstrations import FORMS, PLAIN, demonstration, draw_demonstration
from recipe.toy.world import Problem


@pytest.mark.parametrize(
    ("problem", "forget", "work", "answer"),
    [
        (Problem(a=7, op="+", b=8, level=1), False, "7+8=15", "15"),
        (Problem(a=21, op="+", b=34, level=2), False, "21+34: 1+4=5, 2+3=5", "55"),
        (Problem(a=47, op="+", b=38, level=3), False, "47+38: 7+8=15, 4+3+1=8", "85"),
        (Problem(a=47, op="+", b=38, level=3), True, "47+38: 7+8=15, 4+3=7", "75"),
        (Problem(a=67, op="+", b=58, level=3), False, "67+58: 7+8=15, 6+5+1=12", "125"),
        (Problem(a=68, op="-", b=23, level=4), False, "68-23: 8-3=5, 6-2=4", "45"),
        (Problem(a=52, op="-", b=27, level=5), False, "52-27: 12-7=5, 5-2-1=2", "25"),
        (Problem(a=52, op="-", b=27, level=5), True, "52-27: 12-7=5, 5-2=3", "35"),
    ],
)
def test_worked_by_hand(problem: Problem, forget: bool, work: str, answer: str) -> None:
    assert world.worked(problem, forget=forget) == (work, answer)


def test_worked_answers_are_right_and_slips_are_wrong() -> None:
    for problem in world.all_problems():
        assert world.worked(problem)[1] == str(problem.answer)
        slip = world.worked(problem, forget=True)[1]
        assert (slip != str(problem.answer)) == (problem.level in (3, 5))


def test_splits_are_disjoint_and_a_function_of_the_seed() -> None:
    of = {s: {(p.a, p.op, p.b) for p in world.problems(s, 60, 0)} for s in world.SPLITS}
    assert all(len(p) >= 54 for p in of.values())  # 6 of level 1 may be missing
    assert not of["train"] & of["test"]
    assert not of["validation"] & (of["train"] | of["test"])
    again = {(p.a, p.op, p.b) for p in world.problems("test", 60, 0)}
    other = {(p.a, p.op, p.b) for p in world.problems("test", 60, 1)}
    assert again == of["test"] != other


def test_too_many_questions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"level 2 .* has .* 600 wanted"):
        world.problems("validation", 4000, 0)


def test_question_has_three_other_phrasings() -> None:
    question = world.to_question(Problem(a=47, op="+", b=38, level=3), "train", 0)
    assert question.answers == ("85",)
    assert len({question.text, *question.neighbours}) == 4
    assert all("47" in text and "38" in text for text in (question.text, *question.neighbours))


def test_every_template_pays_its_demonstration_in_full() -> None:
    problem = Problem(a=52, op="-", b=27, level=5)
    for name, template in load_bank().items():
        text = demonstration(problem, name)
        assert template.format_reward(text) == 1.0, name
        assert grade(text, "25", template).correct, name
        assert not grade(demonstration(problem, name, forget=True), "25", template).correct, name
        assert not grade(demonstration(problem, name, misread=True), "25", template).correct, name


def test_a_forgotten_format_costs_format_and_not_accuracy() -> None:
    problem = Problem(a=21, op="+", b=34, level=2)
    for name in FORMS:
        text = demonstration(problem, name, form=False)
        template = load_bank()[name]
        assert text == PLAIN.replace("{work}", "21+34: 1+4=5, 2+3=5").replace(
            "{box}", "\\boxed{55}"
        )
        assert template.format_reward(text) < 1.0
        assert grade(text, "55", template).correct


def test_slips_come_at_their_rates() -> None:
    problem = Problem(a=47, op="+", b=38, level=3)
    texts = [draw_demonstration(problem, "deepseek-r1", i) for i in range(2000)]
    forgot = sum("4+3=7" in t for t in texts) / len(texts)
    plain = sum("<think>" not in t for t in texts) / len(texts)
    assert abs(forgot - 0.60) < 0.044  # four standard errors of a share of 2000
    assert abs(plain - 0.30) < 0.04
    assert texts[7] == draw_demonstration(problem, "deepseek-r1", 7)
