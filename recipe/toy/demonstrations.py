"""What the start model has read: worked answers in every template's format, slips included.

Two kinds of slip, each at a stated rate, drawn by a hash (so the text is a function of the seed):
the carry or borrow is forgotten, or the template's format is (the plain form is written instead).
"""

from recipe.toy.world import Problem, unit, worked

FORGET_RATE = 0.60  # of the problems with a carry or a borrow
MISREAD_RATE = 0.05  # of all problems: the boxed answer is one too large
FORMAT_SLIP_RATE = 0.30  # of the templates that have a format

PLAIN = "{work}. {box}"
_PHRASE = "{work}. The final answer is: {box}"
_THINK = "{work}</think> <answer>{box}</answer>"
_THINK_LINES = "{work}\n</think>\n<answer>\n{box}\n</answer>"
_CHECK = "{work}\n</solution>\n<check>\nLet's verify step by step: {answer}.\n</check>\n{box}"

FORMS = {
    "deepseek-r1": "<think>" + _THINK,
    "deepseek-r1-teacher": _THINK,
    "open-r1": "<think>\n" + _THINK_LINES,
    "open-r1-teacher": _THINK_LINES,
    "lm_eval_prompt1": _PHRASE,
    "lm_eval_prompt4": _PHRASE,
    "reflective_prompt": "<solution>\n" + _CHECK,
    "reflective_prompt-teacher": _CHECK,
}


def demonstration(
    problem: Problem,
    template: str,
    *,
    forget: bool = False,
    misread: bool = False,
    form: bool = True,
) -> str:
    """The response that a learner writes to `problem` under the template named `template`."""
    work, answer = worked(problem, forget=forget)
    shown = str(int(answer) + 1) if misread else answer
    text = FORMS.get(template, PLAIN) if form else PLAIN
    box = "\\boxed{" + shown + "}"
    return text.replace("{work}", work).replace("{box}", box).replace("{answer}", shown)


def draw_demonstration(problem: Problem, template: str, *key: object) -> str:
    """A demonstration whose slips are a pure function of `key`."""
    place = (*key, template, problem.a, problem.op, problem.b)
    return demonstration(
        problem,
        template,
        forget=unit("forget", *place) < FORGET_RATE,
        misread=unit("misread", *place) < MISREAD_RATE,
        form=unit("format", *place) >= FORMAT_SLIP_RATE,
    )
