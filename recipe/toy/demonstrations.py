"""What the start model has read: worked answers in every template's format, mistakes included.

The mistakes come at the rates of a world, each drawn by a hash of its own, so that the text is a
function of the key and one mistake says nothing about another.
"""

from recipe.toy.problems import Problem, unit
from recipe.toy.work import NONE, Mistakes, columns_of, worked
from recipe.toy.world import World

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
    mistakes: Mistakes = NONE,
    *,
    form: bool = True,
) -> str:
    """The response that a learner writes to `problem` under the template named `template`.

    Without its `form` it is written plainly: work and box.
    """
    work, answer = worked(problem.a, problem.op, problem.b, mistakes)
    text = FORMS.get(template, PLAIN) if form else PLAIN
    box = "\\boxed{" + answer + "}"
    return text.replace("{work}", work).replace("{box}", box).replace("{answer}", answer)


def draw_mistakes(world: World, problem: Problem, *key: object) -> Mistakes:
    """The mistakes of one demonstration, a pure function of `key` and of the world's rates."""
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
    """A demonstration whose mistakes are a pure function of `key`, template and problem."""
    place = (*key, template, problem.a, problem.op, problem.b)
    return demonstration(
        problem,
        template,
        draw_mistakes(world, problem, *place),
        form=unit("format", *place) >= world.slips.format,
    )
