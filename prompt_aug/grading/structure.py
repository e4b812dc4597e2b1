r"""Structure of canonical LaTeX: a leaf, a list, a tuple or interval, a union, a matrix.

Evaluates nothing but the two sides of \approx. A text of unknown structure is a leaf.
"""

import re
from dataclasses import dataclass, replace
from itertools import cycle, product

from prompt_aug.grading.evaluate import evaluate
from prompt_aug.grading.normalize import TEXT_PATTERN, end_of_group, remark_as_unit
from prompt_aug.grading.units import UNSURE, split_unit

MAX_DEPTH = 12

_RELATION = re.compile(
    r"\\(?:le|ge|ne|lt|gt|equiv|sim|in|notin|subset|mapsto|to)(?![a-zA-Z])|[=<>]"
)
_NAME = r"(?:[A-Za-z]|\\[a-zA-Z]+|\\text\{[^{}=]*\}|\\angle\s*[A-Z]{1,3}|[A-Za-z]{2,20})"
_LABEL = re.compile(
    rf"\s*((?:{_NAME})'*\s*(?:_\s*(?:\{{[^{{}}=]*\}}|\w))?\s*(?:\((?:\\text\{{[^(){{}}=]{{1,60}}\}}|[^()=]){{1,20}}\))?)\s*=\s*(?=\S)"
)
BUILDER = re.compile(r"^\s*\\\{\s*[a-z](?:\s*\\in[^|:]{1,12})?\s*[|:](.+)\\\}\s*$")  # {x | x > 2}
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*\\in\s*(?![a-zA-Z])")
_NOT_A_LABEL = re.compile(
    rf"\\(?:frac|sqrt|pi|sin|cos|tan|log|ln|pm|infty|begin|let|[exg]?def)|{UNSURE.pattern}",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_SPACED_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_LEADING_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_MIXED = re.compile(r"([-+]?\d+) (\d+)/(\d+)")
_MATRIX = re.compile(
    r"\\begin\s*\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?((?:(?!\\end).)*)\\end\s*\{\1\}", re.DOTALL
)
OR = re.compile(r"\s*,?\s*(?<![\\a-zA-Z])or(?![a-zA-Z])\s*")
# After 1,2 it shows a list: 1,2/3 has no decimal comma. 1,2 \cdot 10^5 has one.
_OPERATION = re.compile(r"\s*(?:[-+/*^!(]|\\(?:frac|sqrt|pi|div|(?:cdot|times)(?!\s*10))(?![a-z]))")
_LIST_WORD = re.compile(r"\s*,?\s*(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z])\s*")
_ACCENT = r"(?:\\(?:bar|hat|vec|tilde)\s*)?"
_COORDINATE = rf"\s*{_ACCENT}(?:[A-Za-z]|\\[a-z]+)'*(?:_(?:\{{[^{{}}]*\}}|\w))?\s*"
_NAMES = re.compile(rf"\(({_COORDINATE}(?:,{_COORDINATE})+)\)\s*=\s*(?=[(\[{{]|\\\{{)")
# A value, and after it its decimals, which are dropped.
_ROUNDED = re.compile(
    r"((?:(?!\\approx).)+)\\approx\s*([-+]?[\d.,]+(?:\s*\\times\s*10\^\{?-?\d+\}?)?)"
    rf"\s*(?:%|\\degree|{TEXT_PATTERN}|[A-Za-z]{{1,12}}(?:\^\{{?\d\}}?)?)?\s*(?:\.\.\.)?\s*",
    re.DOTALL,
)
_NEAR = 0.02
_MAX_SIGNS = 3
_PLUS_MINUS = re.compile(r"\\(?:(p)m|mp)(?![a-z])")
_NAME_ONLY = re.compile(rf"\s*{_NAME}\s*")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an answer.

    kind:    leaf | list (bare, or what `\\pm` means) | set | tuple | union | matrix |
             either (the items are different readings of one text)
    text:    canonical LaTeX of this part, without its label
    label:   the text before "=" ("x", "f(x)"), or ""
    bounds:  the brackets of a tuple or interval, "(]" for example
    """

    kind: str
    text: str
    items: tuple["Node", ...] = ()
    label: str = ""
    bounds: str = ""
    relation: bool = False


def build(text: str, depth: int = 0) -> Node:
    """Return the structure of canonical LaTeX."""
    text = _peel(text)
    if depth >= MAX_DEPTH:
        return Node("leaf", text)
    if names := _NAMES.match(text):
        return _named(names[1], build(text[names.end() :], depth + 1), text)
    label = _LABEL.match(text)
    if label and not _NOT_A_LABEL.search(label[1].partition(r"(\text{")[0]):
        node = build(text[label.end() :], depth + 1)
        plain = not any(item.label or item.relation for item in node.items)
        if not node.relation and (plain or node.kind != "list"):
            return _labeled(node, "".join(label[1].split()))
    if (number := _number(text, depth)) is not None:
        return number
    for kind, parts in (("union", split_top(text, r"\\cup")), ("list", split_list(text))):
        if len(parts) > 1:
            return _solutions(_group(kind, parts, text, depth))
    return _bracketed(text, depth) or _leaf(text, depth)


def _labeled(node: Node, name: str) -> Node:
    """Label a node and, as in `a = 4, -8` (tests of Math-Verify), every value of a list."""
    if node.kind not in ("list", "either"):
        return replace(node, label=name)
    items = tuple(_labeled(item, name) for item in node.items)
    if node.kind == "list":
        return replace(node, items=items, text=f"{name}={node.text}")
    return replace(node, items=items, label=name)


def _solutions(node: Node) -> Node:
    """Add the reading of `p=5, q=2; p=7, q=2` (tests of Math-Verify) as (5, 2), (7, 2)."""
    labels = [item.label for item in node.items]
    size = len(set(labels))
    repeated = labels[:size] * (len(labels) // size) == labels
    if node.kind != "list" or not all(labels) or not 1 < size < len(labels) or not repeated:
        return node
    rows = (node.items[start : start + size] for start in range(0, len(labels), size))
    tuples = tuple(
        Node("tuple", ", ".join(f"{item.label}={item.text}" for item in row), row) for row in rows
    )
    return Node("either", node.text, (replace(node, items=tuples), node))


def _peel(text: str) -> str:
    """Remove braces around the whole text, and the name of a member of a set."""
    text = text.strip()
    while text.startswith("{") and end_of_group(text, 0) == len(text):
        text = text[1:-1].strip()
    return remark_as_unit(_MEMBER.sub("", BUILDER.sub(r"\1", text)))


def _named(names: str, node: Node, text: str) -> Node:
    """Label the coordinates of `(x,y) = (1,2)`, also in every tuple of a list."""
    letters = ["".join(name.split()) for name in names.split(",")]
    if node.kind in ("list", "set"):
        items = tuple(_named(names, item, f"({names})={item.text}") for item in node.items)
        return replace(node, items=items, text=text)
    labeled = any(item.label for item in node.items)
    if node.kind != "tuple" or len(node.items) != len(letters) or labeled:
        named = node.text.startswith("(") and "=" in node.text
        return node if named else Node("leaf", text, relation=True)
    pairs = zip(node.items, letters, strict=True)
    items = tuple(replace(item, label=letter) for item, letter in pairs)
    return replace(node, items=items, text=text)


def _group(kind: str, parts: list[str], text: str, depth: int) -> Node:
    items = tuple(build(part, depth + 1) for part in parts)
    if kind in ("list", "set"):
        nested = (item.items if item.kind == "list" else (item,) for item in items)
        items = tuple(leaf for group in nested for leaf in group)
    return Node(kind, text, items, relation=any(item.relation for item in items))


def _number(text: str, depth: int) -> Node | None:
    """Return the readings of a number with separators; None for any other text."""
    if _SPACED_THOUSANDS.fullmatch(text):
        return Node("leaf", text.replace(" ", ""))
    if mixed := _MIXED.fullmatch(text):
        integer, top, bottom = mixed.groups()
        return Node("leaf", rf"{integer}\frac{{{top}}}{{{bottom}}}")
    leading = _LEADING_NUMBER.match(text)
    if leading is None or "," in (tail := text[leading.end() :]):
        return None
    body, listed = leading[0], _LIST_WORD.search(tail) or _OPERATION.match(tail)
    thousands = _THOUSANDS.fullmatch(body)
    if not thousands and (listed or not _DECIMAL_COMMA.fullmatch(body)):
        return None
    readings = [Node("leaf", body.replace(",", "" if thousands else ".") + tail)]
    if not re.search(r",0\d", body) and re.fullmatch("[a-z]?", tail):  # 0,3a; not 276,000
        readings.append(_group("list", text.split(","), text, depth))
    return Node("either", text, tuple(readings))


def _bracketed(text: str, depth: int) -> Node | None:
    if matrix := _MATRIX.fullmatch(text):
        rows = [split_top(row, "&") for row in split_top(matrix[2], r"\\\\") if row.strip()]
        items = tuple(_group("tuple", row, " & ".join(row), depth) for row in rows)
        return Node("matrix", text, items)
    if text.startswith(r"\{") and text.endswith(r"\}") and len(text) >= 4:
        inside = text[2:-2]
        closed = end_of_group(text, 1) == len(text)
        plain = closed and inside.strip() and not {"|", ":"} & set(inside)
        return _group("set", split_list(inside), text, depth) if plain else None
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and end_of_group(text, 0) == len(text):
        parts = split_top(text[1:-1], "[,;]")
        if len(parts) > 1:
            if len(points := _both_signs(text)) == 2 and depth + 1 < MAX_DEPTH:
                return _group("list", points, text, depth)
            node = _group("tuple", parts, text, depth)
            return replace(node, bounds=text[0] + text[-1])
        if text[0] == "(" and text[-1] == ")" and not _RELATION.search(text):
            return build(text[1:-1], depth + 1)
    return None


def _leaf(text: str, depth: int) -> Node:
    if _PLUS_MINUS.search(text):
        return _group("list", _both_signs(text), text, depth)
    name, sign, value = text.partition(r"\approx")
    named = _NAME_ONLY.fullmatch(name) and name.strip() != r"\pi"
    if sign and (named or not name.strip()) and value.strip():
        return build(value, depth + 1)
    if (shown := _ROUNDED.fullmatch(text)) and _is_near(shown[1], shown[2]):
        return build(shown[1], depth + 1)
    sides = split_top(text, "=")
    if len(sides) == 2 and _NAME_ONLY.fullmatch(sides[1]) and _is_arithmetic(sides[0]):
        node = build(sides[0], depth + 1)
        return node if node.label else replace(node, label="".join(sides[1].split()))
    return Node("leaf", text, relation=bool(_RELATION.search(text)))


def _is_near(exact: str, decimals: str) -> bool:
    """Return whether decimals are within 2 % of an exact value; False if it is not a number."""
    exact = split_unit(split_top(exact, "=")[-1])[0]
    scale = 100.0 if exact.endswith("%") else 1.0
    try:
        value, shown = evaluate(exact.rstrip("% ")), evaluate(decimals.replace(",", ""))
    except ValueError:
        return False
    if value.has_letters:
        return False
    errors = [abs(value.at(0) * x - shown.at(0)) for x in (1.0, 1.0 / scale)]
    return min(errors) <= _NEAR * abs(shown.at(0)) + 1e-12


def _both_signs(text: str) -> list[str]:
    r"""Return the texts that `\pm` stands for; with `\mp` all signs change together.

    Without `\mp`, a tuple with several signs (ambiguous) or a text with over three is unchanged.
    """
    signs = _PLUS_MINUS.findall(text)
    together = "" in signs
    if not together and len(signs) > (1 if text[:1] in "([" else _MAX_SIGNS):
        return [text]
    choices = product("+-", repeat=1 if together else len(signs))
    return [_signed(text, choice) for choice in choices]


def _signed(text: str, choice: tuple[str, ...]) -> str:
    left = cycle(choice)

    def sign(match: re.Match[str]) -> str:
        chosen = next(left)
        return chosen if match[1] == "p" else {"+": "-", "-": "+"}[chosen]

    return re.sub(r"(^|[(\[,;{=])\s*\+\s*", r"\1", _PLUS_MINUS.sub(sign, text))


def _is_arithmetic(side: str) -> bool:
    """Return whether a side has numbers and no letter. In `2y = x` either may be the label."""
    plain = re.sub(r"\\[a-zA-Z]+", " ", split_unit(side)[0])
    return bool(re.search(r"\d", side)) and not re.search(r"[A-Za-z]", plain)


def split_list(text: str) -> list[str]:
    """Split a bare list at commas, semicolons, "and" and "or" outside brackets."""
    pieces = split_top(text, "[,;]")
    parts = [part for piece in pieces for part in split_top(piece, _LIST_WORD.pattern)]
    return [part for part in parts if part] or [text]


def split_top(text: str, separator: str) -> list[str]:
    """Split `text` at a regular expression outside every bracket."""
    parts, start, level = [], 0, 0
    for match in re.finditer(rf"({separator})|[(\[{{]|[)\]}}]|\\\\", text):
        if match[1] is None:
            level += (match[0] in "([{") - (match[0] in ")]}")
        elif level == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]
