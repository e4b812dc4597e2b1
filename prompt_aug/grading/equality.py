"""Equality of two answers: True and False are proven here, None needs algebra.

`compare` walks the two structures; at leaves it compares spelling, words, labels, units and values
(`evaluate`). If that proves nothing, it returns `oracle(gold, prediction)`, or None without an
oracle. GRADING.md has the policy.
"""

import re
from dataclasses import replace
from string import ascii_letters

from prompt_aug.grading.intervals import as_union
from prompt_aug.grading.normalize import squeeze
from prompt_aug.grading.notation import TEXT
from prompt_aug.grading.quantities import (
    NO_NUMBER,
    Oracle,
    all_of,
    any_of,
    compare_quantities,
    compare_ratios,
    compare_residues,
    is_number,
    number_of,
)
from prompt_aug.grading.structure import OR, Node, build, split_top
from prompt_aug.grading.units import UNSURE, words_behind
from prompt_aug.grading.words import (
    CHOICE_GOLD,
    EMPTY_SIGN,
    LETTER_LABEL,
    compare_choices,
    compare_times,
    compare_words,
    formula_of,
    labels_contradict,
    option_of,
    text_of_choice,
    words_of,
)

MAX_ITEMS = 64
_ROUNDING = 0.01  # relative, of the sides of a chain: 41/6 = 6.8, not 3 = 4
_WHOLE = re.compile(r"^[-+]?\d+\.0+(?!\d)")  # 2,0 is the number 2 only beside a decimal point
_DECIMAL = re.compile(r"-?\d{1,15}\.(\d{1,15})")
_ORDER = {r"\alpha": "a", r"\beta": "b", r"\gamma": "c", r"\delta": "d"}


def compare(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Return whether `pred` answers `gold`; None if undecided."""
    same = squeeze(gold.text) == squeeze(pred.text)
    if same and not _labels_contradict(gold, pred) and not _multiplies(gold, pred):
        return True
    if gold.label and (gold.label, squeeze(gold.text)) == (squeeze(pred.text), pred.label):
        return True  # x = y is y = x
    if (option := option_of(gold.text)) is not None:
        return _compare_option(*option, pred, oracle)
    if (chosen := compare_choices(gold.text, pred.text)) is not None:
        return chosen and not _labels_contradict(gold, pred)
    if (option := option_of(pred.text)) is not None:
        return compare(gold, build(option[1]), oracle)
    if gold.kind != "leaf" and pred.kind != "leaf" and _labels_contradict(gold, pred):
        return False
    if "either" in (gold.kind, pred.kind):
        return any_of(compare(g, p, oracle) for g, p in _readings(gold, pred))
    if (gold.relation or pred.relation or gold.kind != "leaf") and _same_union(gold, pred):
        return True
    return _compare_structures(_unwrapped(gold), _unwrapped(pred), oracle)


def _compare_option(letter: str, value: str, pred: Node, oracle: Oracle | None) -> bool | None:
    r"""Compare with a gold such as `\text{(B)}\ 12`: B, 12 or both are right, not `(B) 13`."""
    chosen = compare_choices(f"({letter})", pred.text)
    if chosen is None:
        return compare(build(value), pred, oracle)
    said = text_of_choice(pred.text)
    if chosen and number_of(said) is not None:
        return compare(build(value), build(said), oracle)
    return chosen


def _compare_structures(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    kinds = {gold.kind, pred.kind}
    if kinds == {"leaf"}:
        return _compare_leaves(gold, pred, oracle)
    if "leaf" in kinds:
        return _mixed(gold, pred, oracle)
    if "union" in kinds:
        same = len(kinds) == 1 and _unordered(gold, pred, None)
        return True if same else _ask(gold, pred, oracle)
    if "matrix" in kinds:
        return _compare_matrices(gold, pred, oracle)
    return (_compare_tuples if "tuple" in kinds else _unordered)(gold, pred, oracle)


def _same_union(gold: Node, pred: Node) -> bool:
    """Return whether both are the same intervals, as such or as solved inequalities."""
    if gold.kind == pred.kind == "list" or gold.kind == pred.kind == "tuple":
        return False  # lists of points, perhaps
    one, other = as_union(gold), as_union(pred)
    if one is None or other is None or (one[0] and other[0] and one[0] != other[0]):
        return False
    return bool(_unordered(one[1], other[1], None))


def _ask(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    if r"\approx" in pred.text and r"\approx" not in gold.text:
        return False  # decimals that are not its own
    return None if oracle is None else oracle(gold.text, pred.text)


def _readings(gold: Node, pred: Node) -> list[tuple[Node, Node]]:
    golds = gold.items if gold.kind == "either" else (gold,)
    preds = pred.items if pred.kind == "either" else (pred,)
    return [
        (g, p)
        for g in golds
        for p in preds
        if (g.kind == "leaf") == (p.kind == "leaf")
        and ("." in pred.text or not _is_decimal_comma(gold, g))
        and ("." in gold.text or not (_is_decimal_comma(pred, p) and _WHOLE.search(p.text)))
    ]


def _is_decimal_comma(node: Node, reading: Node) -> bool:
    """Return whether the reading takes a comma for a decimal point: 1,2 as 1.2."""
    return reading.kind == "leaf" and "." in reading.text and "." not in node.text


def _unwrapped(node: Node) -> Node:
    r"""Return the one member of `\{5\}`, or of a list of equal members; else the node.

    `\{\emptyset\}` stays, because it has a member and `\emptyset` has none.
    """
    if node.kind in ("list", "set") and node.items:
        first = node.items[0]
        one = first.kind != "set" and not EMPTY_SIGN.fullmatch(first.text)
        if one and all(squeeze(item.text) == squeeze(first.text) for item in node.items[1:]):
            return first
    return node


def _mixed(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Compare a leaf with a structure. Only algebra can prove them equal (an inequality)."""
    leaf, other = (gold, pred) if gold.kind == "leaf" else (pred, gold)
    several = other.kind in ("list", "set", "matrix", "tuple") and not leaf.relation
    if several and (is_number(leaf.text.replace("%", "")) or words_of(leaf.text)):
        return False
    return _ask(gold, pred, oracle)


def _member(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    r"""Compare members of two structures, in which `\{1\}` is not 1."""
    if (gold.kind == "set") != (pred.kind == "set"):
        return False
    return compare(gold, pred, oracle)


def _unordered(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    golds, preds = list(gold.items), list(pred.items)
    if not gold.kind == pred.kind == "list" or len(golds) != len(preds):
        golds, preds = (  # but 3, 4, 4 is not 3, 3, 4
            list({f"{item.label}={squeeze(item.text)}": item for item in items}.values())
            for items in (golds, preds)
        )
    if len(golds) != len(preds):
        return False
    if len(golds) > MAX_ITEMS:
        return _ask(gold, pred, oracle)
    if counted := _counted(golds, preds):
        return all_of(_member(g, p, oracle) for g, p in counted)
    undecided = False
    for item in golds:
        results = [_member(item, other, None) for other in preds]
        if True in results:
            preds.pop(results.index(True))
            continue
        open_ones = [other for other, result in zip(preds, results, strict=True) if result is None]
        if not open_ones:
            return False
        if oracle is None:
            undecided = True
            continue
        match = next((other for other in open_ones if _member(item, other, oracle)), None)
        if match is None:
            return False
        preds.remove(match)
    return None if undecided else True


def _counted(golds: list[Node], preds: list[Node]) -> list[tuple[Node, Node]]:
    r"""Pair values by their words, `2\text{ boys}, 3\text{ girls}`; by place if the words differ.

    Return [] unless each value of the gold has its own words.
    """
    words, others = ([words_behind(item.text) for item in items] for items in (golds, preds))
    if not all(words) or len(set(words)) < max(2, len(words)):
        return []
    if sorted(words) != sorted(others):
        return list(zip(golds, preds, strict=True))
    return [(item, preds[others.index(word)]) for item, word in zip(golds, words, strict=True)]


def _compare_tuples(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    golds, preds = list(gold.items), list(pred.items)
    if "set" in (gold.kind, pred.kind) or len(golds) != len(preds):
        return False
    if gold.bounds and pred.bounds and gold.bounds != pred.bounds and len(golds) == 2:
        return False
    if pred.kind == "list" and (gold.bounds in ("(]", "[)") or OR.search(pred.text)):
        return False  # `2, 3` does not show which end is closed
    names, labels = (sorted(item.label for item in items) for items in (golds, preds))
    if all(map(LETTER_LABEL.fullmatch, labels)):
        if len(set(labels)) < len(labels):
            return False
        if names == labels:
            golds.sort(key=_place)
        if names == labels or _in_order(sorted(map(_place, preds))):
            preds.sort(key=_place)  # y = 1, x = 2 is (2, 1); n, k stay
    if any(p.relation and not g.relation for g, p in zip(golds, preds, strict=True)):
        return False  # x + y = 3 is no coordinate
    return all_of(_member(g, p, oracle) for g, p in zip(golds, preds, strict=True))


def _place(node: Node) -> tuple[str, int]:
    r"""Return the sort key of a label: ("x", 2) for `x_2`, ("b", 0) for `\beta`."""
    name, _, index = node.label.partition("_")
    index = index.strip("{}")
    return _ORDER.get(name, name), int(index) if index.isdecimal() and len(index) < 4 else 0


def _in_order(places: list[tuple[str, int]]) -> bool:
    """Return whether letters are consecutive in the alphabet, or one letter with indices."""
    names = [name for name, _ in places]
    return "".join(names) in ascii_letters or (len(set(names)) == 1 and len(set(places)) > 1)


def _compare_matrices(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Compare two matrices entry by entry, or a vector with a tuple."""
    if gold.kind == pred.kind:
        same = [len(row.items) for row in gold.items] == [len(row.items) for row in pred.items]
    else:
        same = _is_vector(gold) and _is_vector(pred)
    golds, preds = _entries(gold), _entries(pred)
    if not same or len(golds) != len(preds):
        return False
    return all_of(compare(g, p, oracle) for g, p in zip(golds, preds, strict=True))


def _is_vector(node: Node) -> bool:
    if node.kind != "matrix":
        return node.kind == "tuple" and node.bounds in ("()", "[]")
    return len(node.items) == 1 or all(len(row.items) == 1 for row in node.items)


def _entries(node: Node) -> list[Node]:
    rows = node.items if node.kind == "matrix" else (node,)
    return [item for row in rows for item in row.items]


def _compare_leaves(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    if (residues := compare_residues(gold.text, pred.text, oracle)) is not None:
        return residues
    if (exact := _before_rounding(pred)) is not None:
        return any_of(_compare_leaves(gold, node, oracle) for node in (exact, _last_side(pred)))
    if pred.relation and not gold.relation:
        if _contradicts_itself(pred.text):
            return False
        last = _last_side(pred)
        if not gold.label:
            pred = last
        elif last is not pred and _leads_to(gold, pred) and _compare_leaves(gold, last, None):
            return True
    if gold.relation and not pred.relation and len(split_top(gold.text, "=")) > 2:
        gold = _last_side(gold)
    if _labels_contradict(gold, pred):
        return False
    if gold.relation or pred.relation or _multiplies(gold, pred):
        gold, pred = (
            replace(node, text=f"{node.label}={node.text}") if node.label else node
            for node in (gold, pred)
        )
        return _ask(gold, pred, oracle)
    return _compare_texts(gold.text, pred.text, oracle)


def _compare_texts(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Compare two leaves without a relation: words, ratios, quantities."""
    for compared in (compare_words, compare_times):
        if (same := compared(gold, pred)) is not None:
            return same
    if (same := compare_ratios(gold, pred, oracle)) is not None:
        return same
    gold, pred = formula_of(gold), formula_of(pred)
    # 1 2 is not 12, and \text{not }0 is no product.
    if any(sign.search(pred) and not sign.search(gold) for sign in (*NO_NUMBER, UNSURE)):
        return False
    return compare_quantities(gold, pred, oracle)


def _leads_to(gold: Node, pred: Node) -> bool:
    """Return whether all sides but the last are numbers or the gold's label: not in 2x = 5."""
    if pred.label:
        return not _labels_contradict(gold, pred)
    sides = [TEXT.sub("", side) for side in split_top(pred.text, "=")[:-1]]
    return all(
        squeeze(side) == squeeze(gold.label) or number_of(side) is not None for side in sides
    )


def _labels_contradict(gold: Node, pred: Node) -> bool:
    """Return whether the labels contradict; also `B = A` to a gold that is a choice."""
    if re.fullmatch("[A-J]", pred.label) and not gold.label and CHOICE_GOLD.fullmatch(gold.text):
        return pred.label not in gold.text
    labels = (gold.label, pred.label)
    return labels_contradict(*(x if TEXT.match(x) else squeeze(x) for x in labels))


def _multiplies(gold: Node, pred: Node) -> bool:
    """Return whether a label, `xy` of `xy = 1`, is a product of letters of `y = 1/x`."""
    for one, other in ((gold, pred), (pred, gold)):
        letters = set(one.label)
        if len(one.label) > 1 and one.label.isalpha() and other.label in letters:
            known = set(other.label + re.sub(r"\\[a-zA-Z]+", "", other.text))
            if len(one.label) == 2 or letters <= known:
                return True
    return False


def _last_side(pred: Node) -> Node:
    """Return the last side of a chain: c of a = b = c."""
    sides = split_top(pred.text, "=")
    if len(sides) < 2 or not sides[-1] or re.search(r"\\(?:le|ge|ne|in)(?![a-z])|[<>]", pred.text):
        return pred
    last = build(sides[-1])
    return last if last.kind == "leaf" else pred


def _before_rounding(pred: Node) -> Node | None:
    r"""Return `\frac{41}{6} = 6.83` without its rounded last side; None if it has none."""
    sides = split_top(pred.text, "=")
    shown = _DECIMAL.fullmatch(sides[-1]) if len(sides) > 1 else None
    value = number_of(sides[-2]) if shown and not _DECIMAL.fullmatch(sides[-2]) else None
    if shown is None or value is None or value.at(0).imag:
        return None
    error = abs(value.at(0).real - float(shown[0]))
    if not 0 < error <= 0.5000001 / 10 ** len(shown[1]):
        return None
    return build(pred.text.rpartition("=")[0].strip())


def _contradicts_itself(relation: str) -> bool:
    """Return True for a false chain (3 = 4, or over 1 % apart) and for words of doubt."""
    values = [value for side in split_top(relation, "=") if (value := number_of(side)) is not None]
    numbers = [value.at(0) for value in values]
    whole = [value.exact for value in values if value.exact is not None and value.exact % 1 == 0]
    return (
        bool(UNSURE.search(relation))
        or len(set(whole)) > 1
        or any(abs(number - numbers[-1]) > _ROUNDING * abs(number) for number in numbers)
    )
