"""Worked answers in every template's format, with mistakes: the start model is trained on them.

``47 + 38`` -> work ``47+38: 7+8=15, 4+3+1=8``, answer ``85``. Every mistake has one place in the
text, and the work after it is right for the written digits: mistakes are independent, and an answer
is right only without any. They come at the rates of a world, each drawn by a hash of its own, so
that the text is a function of the key.
"""

from dataclasses import dataclass

from recipe.toy.world import Problem, World, columns_of, digits_of, unit

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistakes:
    """Errors introduced in one demonstration. Columns are counted from 0, the ones."""

    forget: frozenset[int] = frozenset()  # columns that leave out the carry or borrow due to them
    fact: frozenset[int] = frozenset()  # columns whose result is one off
    place: bool = False  # the last two digits of the answer change places
    copy: bool = False  # the answer is one too large


NONE = Mistakes()


def worked(a: int, op: str, b: int, mistakes: Mistakes = NONE) -> tuple[str, str]:
    """Return (work, answer) of ``a op b``; a mistake without a place in it changes nothing."""
    columns = columns_of(a, b)
    pairs = list(zip(digits_of(a, columns), digits_of(b, columns), strict=True))
    written, answer, due = [], "", False
    for column, (x, y) in enumerate(pairs):
        note = int(due and column not in mistakes.forget)
        left, last = x, column == columns - 1
        if op == "-":
            due = not last and x - note < y
            left += 10 if due else 0
            result = left - y - note
        else:
            result = x + y + note
            due = not last and result > 9
        if column in mistakes.fact:
            result += -1 if result % 10 else 1  # stays in its ten: no carry comes or goes
        written.append(f"{left}{op}{y}{f'{op}1' if note else ''}={result}")
        answer = (str(result) if last else str(result % 10)) + answer
    # One column restates the problem by itself.
    work = written[0] if columns == 1 else f"{a}{op}{b}: " + ", ".join(written)
    answer = str(int(answer) + int(mistakes.copy))
    return work, answer[:-2] + answer[:-3:-1] if mistakes.place else answer


def demonstration(
    problem: Problem,
    template: str,
    mistakes: Mistakes = NONE,
    *,
    form: bool = True,
) -> str:
    """Return the response to `problem` under the template named `template`.

    Without its `form` it is plain: work and box.
    """
    work, answer = worked(problem.a, problem.op, problem.b, mistakes)
    text = FORMS.get(template, PLAIN) if form else PLAIN
    box = "\\boxed{" + answer + "}"
    return text.replace("{work}", work).replace("{box}", box).replace("{answer}", answer)


def draw_mistakes(world: World, problem: Problem, *key: object) -> Mistakes:
    """Draw the mistakes of one demonstration, a pure function of `key` and the world's rates."""
    columns = range(columns_of(problem.a, problem.b))
    forgotten = world.slips.carry if problem.op == "+" else world.slips.borrow
    # The first column that a carry can reach has no number in its key: two digits have only that.
    forget = {c: unit("forget", *key, *([c] if c > 1 else [])) < forgotten for c in columns if c}
    fact = {c: unit("fact", *key, c) < world.slips.fact for c in columns}
    return Mistakes(
        forget=frozenset(c for c, made in forget.items() if made),
        fact=frozenset(c for c, made in fact.items() if made),
        place=unit("place", *key) < world.slips.place,
        copy=unit("misread", *key) < world.slips.copied,
    )


def draw_demonstration(world: World, problem: Problem, template: str, *key: object) -> str:
    """Return a demonstration whose mistakes are a function of `key`, template and problem."""
    place = (*key, template, problem.a, problem.op, problem.b)
    return demonstration(
        problem,
        template,
        draw_mistakes(world, problem, *place),
        form=unit("format", *place) >= world.slips.format,
    )
