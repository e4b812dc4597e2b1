r"""Intervals, written as such or as solved inequalities: `x > 2` is `(2,\infty)`."""

import re
from dataclasses import replace

from prompt_aug.grading.normalize import squeeze
from prompt_aug.grading.quantities import number_of
from prompt_aug.grading.structure import OR, Node, build

_ORDER = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>]")
_FLIPPED = {r"\lt": "<", r"\gt": ">"}
_MIRROR = {">": "<", r"\ge": r"\le"}
_LETTER = re.compile(r"[A-Za-z]|(?!\\(?:infty|pi)$)\\[a-z]+")
_LOWEST, _HIGHEST = r"-\infty", r"\infty"
_REALS = r"\mathbb{R}"
_AND = re.compile(r"(?<![\\a-zA-Z])and(?![a-zA-Z])")


def as_union(node: Node) -> tuple[str, Node] | None:
    """Return (letter, union of intervals) of a union, an interval or solved inequalities, or None.

    The letter is "" if none is named. Inequalities joined by "or" unite, and two joined by "and"
    intersect. Two joined by a comma intersect if they can (`x > 1, x < 2`), else unite.
    """
    if node.kind in ("union", "list") and all(_is_interval(item) for item in node.items):
        return "", replace(node, kind="union")
    if _is_interval(node):
        return "", Node("union", node.text, (node,))
    if squeeze(node.text) == _REALS:
        return "", Node("union", _REALS, (_interval(_LOWEST, _HIGHEST, "()"),))
    parts = node.items if node.kind == "list" else (node,)
    if not parts or not all(part.relation and not part.items for part in parts):
        return None
    found = [_solved(part.text) for part in parts]
    letters = {letter for letter, _ in found}
    if len(letters) != 1 or not all(items for _, items in found):
        return None
    intervals = tuple(item for _, items in found for item in items)
    common = None if OR.search(node.text) else _intersection(intervals)
    if common is not None:
        intervals = (common,)
    elif _AND.search(node.text):
        return None
    return letters.pop(), Node("union", node.text, intervals)


def _intersection(rays: tuple[Node, ...]) -> Node | None:
    """Return the intersection of two rays that point at each other; None for others."""
    if len(rays) != 2:
        return None
    from_low, to_high = rays if squeeze(rays[0].items[0].text) != _LOWEST else rays[::-1]
    (low, top), (bottom, high) = from_low.items, to_high.items
    if squeeze(top.text) != _HIGHEST or squeeze(bottom.text) != _LOWEST:
        return None
    ends = [end.at(0) for text in (low.text, high.text) if (end := number_of(text)) is not None]
    if len(ends) < 2 or any(end.imag for end in ends) or ends[0].real >= ends[1].real:
        return None
    return _interval(low.text, high.text, from_low.bounds[0] + to_high.bounds[1])


def _is_interval(node: Node) -> bool:
    named = any(item.label for item in node.items)  # (x = 1, y = 2) is a point
    return node.kind == "tuple" and len(node.items) == 2 and bool(node.bounds) and not named


def _solved(text: str) -> tuple[str, list[Node]]:
    r"""Return letter and intervals of `x > 2`, `2 \le x < 3` or `x \ne 2`; [] for others."""
    signs = [_FLIPPED.get(sign, sign) for sign in _ORDER.findall(text)]
    sides = [side.strip() for side in _ORDER.split(text)]
    letters = [side for side in sides if _LETTER.fullmatch(side)]
    if len(letters) != 1 or not all(sides):
        return "", []
    letter, at = letters[0], sides.index(letters[0])
    if signs == [r"\ne"] and at == 0:
        return letter, [_interval(_LOWEST, sides[1], "()"), _interval(sides[1], _HIGHEST, "()")]
    falling = {sign in _MIRROR for sign in signs}
    if r"\ne" in signs or len(falling) != 1:
        return "", []
    if True in falling:  # read from the right
        sides, signs, at = sides[::-1], [_MIRROR[sign] for sign in signs[::-1]], len(signs) - at
    if len(sides) > 3 or (len(sides) == 3 and at != 1):
        return "", []
    low = (sides[at - 1], "[" if signs[at - 1] == r"\le" else "(") if at else (_LOWEST, "(")
    last = at == len(signs)
    high = (_HIGHEST, ")") if last else (sides[at + 1], "]" if signs[at] == r"\le" else ")")
    return letter, [_interval(low[0], high[0], low[1] + high[1])]


def _interval(low: str, high: str, bounds: str) -> Node:
    text = f"{bounds[0]}{low},{high}{bounds[1]}"
    return Node("tuple", text, (build(low), build(high)), bounds=bounds)
