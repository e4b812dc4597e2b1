"""Equality of two answers: True and False are proven here, None needs algebra.

`compare` walks the two structures; at leaves it compares spelling, words, labels, units and values
(`evaluate`). If that proves nothing, it returns `oracle(gold, prediction)`, or None without an
oracle. GRADING.md has the policy.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import partial

from prompt_aug.grading.evaluate import (
    TooBig,
    Unsupported,
    Value,
    evaluate,
    same_digits,
    surely_different,
)
from prompt_aug.grading.normalize import TEXT, TEXT_PATTERN, canonical, flat, squeeze
from prompt_aug.grading.structure import OR, Node, build, split_list, split_top
from prompt_aug.grading.units import UNSURE, split_unit, units_contradict

Oracle = Callable[[str, str], bool]
MAX_ITEMS = 64
_ROUNDING = 0.01  # relative, of the sides of a chain: 41/6 = 6.8, not 3 = 4
_WHOLE = re.compile(r"^[-+]?\d+\.0+(?!\d)")  # 2,0 is the number 2 only beside a decimal point
_LETTER_LABEL = re.compile(r"([A-Za-z]|\\[a-z]+)('*)(?:_(\{[^{}]*\}|\w))?")
_FUNCTION = re.compile(r"\([a-z](?:,[a-z])*\)$")
_FUNCTION_NAMES = frozenset("yfghFGp")
_EMPTY_SIGN = re.compile(r"\\emptyset|\\\{\s*\\\}")
_BASED = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*_\s*\{?\s*(\d+)\s*\}?)?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' ,.\-]{2,}")
_OPTION = re.compile(r"\(?[A-J]\)[.:]?\s+(\S.*)", re.DOTALL)
_RUN = re.compile(r"[A-Za-z]|[A-Z]{2,}|[A-Za-z][a-z]+")  # not mgR
_PLAIN_WORD = re.compile(r"(?=.*[aeiouyAEIOUY])(?:[A-Z]{4,}|[A-Za-z][a-z]{3,})|[Yy]es|[Nn]o|[Oo]dd")
_CAPITALS = re.compile(r"[A-Z]{2,20}")
_CHOICE = re.compile(r"(?:\\text\{)?\s*\(?\s*([A-J])\s*\)?\s*\}?\)?")
_CHOSEN = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?(\(\s*)?(?-i:([A-J]))(?(1)\s*\)|(?:\s*[).:]|$))(.*)",
    re.IGNORECASE | re.DOTALL,
)
# Another letter or a judgment after the letter of a choice.
_NOT_CHOSEN = re.compile(
    r"(?<![A-Za-z'\\])[A-HJ](?![A-Za-z'])|(?i:\b(?:option|choice|answer)\s+[a-j]\b)|\b(?:is|was|are"
    r"|has|had|can|would|will|does|did|must|should|may|actually|rather|but|[a-z]+n't|ruled|crossed"
    r"|eliminated|excluded|rejected|wait)\b"
)
# math-verify reads `1 2 3` as 6, `5_x` as 5 and `12_3+1` as 13.
_NO_NUMBER = (
    re.compile(r"\\approx"),  # decimals that are not its own
    re.compile(r"(?<![\d.,/_{])\d+\s+\d+(?!\d*\s*/)"),
    re.compile(r"\d\s*_"),
    UNSURE,
)
# Words and primes that math-verify takes for factors: `2\text{ boys }3\text{ girls}`, `30' 15`.
_NO_FORMULA = (re.compile(rf"[\w)}}]\s*{TEXT_PATTERN}\s*[\d(\\]"), re.compile(r"\d\s*['\"]"))
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_INEQUALITY = re.compile(r"\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])|[<>]")
# x, x_1, f(x), \theta, \text{area}, |x|
_LONE = re.compile(
    r"\s*\|?\s*(?!e\s*$|\\(?:pi|infty)\s*$)(?:(?:[A-Za-z]|\\[a-zA-Z]+)(?:_(?:\{[^{}]*\}|\w))?"
    r"|[A-Za-z]\([a-z]\)|\\text\{[^{}]*\})\s*\|?\s*"
)
_AND = re.compile(r"(?<![\\a-zA-Z])and(?![a-zA-Z])")
_OTHER_PERCENT = re.compile(r"%\s*%|[\w)}]\s*[-+][^%]*%")  # 100-50% is no half


def compare(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Return whether `pred` answers `gold`; None if undecided."""
    if _labels_contradict(gold, pred):
        # x = y is y = x
        return (gold.label, squeeze(gold.text)) == (squeeze(pred.text), pred.label)
    if squeeze(gold.text) == squeeze(pred.text):
        return True
    if (chosen := _compare_choices(gold.text, pred.text)) is not None:
        return chosen
    if option := _OPTION.fullmatch(flat(pred.text)):
        return compare(gold, build(canonical(option[1])), oracle)
    if "either" in (gold.kind, pred.kind):
        return any_of(compare(g, p, oracle) for g, p in _readings(gold, pred))
    return _compare_structures(_unwrapped(gold), _unwrapped(pred), oracle)


def all_of(results: Iterable[bool | None], deciding: bool = False) -> bool | None:
    """Return `deciding` at the first result that is it, None if any is None, else the other."""
    verdict: bool | None = not deciding
    for result in results:
        if result is deciding:
            return deciding
        verdict = None if result is None else verdict
    return verdict


any_of = partial(all_of, deciding=True)


def _compare_choices(gold: str, pred: str) -> bool | None:
    """Return whether the chosen letter is that of the gold; None if either is not a choice."""
    choice = _CHOICE.fullmatch(gold)
    chosen = _CHOSEN.fullmatch(flat(pred)) if choice else None
    if choice is None or chosen is None:
        return None
    if UNSURE.search(chosen[3]) or _NOT_CHOSEN.search(chosen[3]):
        return False
    return chosen[2] == choice[1]


def _compare_structures(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    kinds = {gold.kind, pred.kind}
    if kinds == {"leaf"}:
        return _compare_leaves(gold, pred, oracle)
    if "leaf" in kinds:
        return _mixed(gold, pred, oracle)
    if "union" in kinds:
        if "list" in kinds and all(map(_are_intervals, (gold, pred))):
            return _unordered(gold, pred, oracle)
        same = len(kinds) == 1 and _unordered(gold, pred, None)
        return True if same else _ask(gold, pred, oracle)
    if "matrix" in kinds:
        return _compare_matrices(gold, pred, oracle)
    return (_compare_tuples if "tuple" in kinds else _unordered)(gold, pred, oracle)


def _are_intervals(node: Node) -> bool:
    """Return whether all items are intervals or, as in `x < 2 or x > 3`, bounds of one letter."""
    letters = set(_LETTER.findall(node.text))
    several = node.kind == "list" and (len(letters) > 1 or _AND.search(node.text))
    return not several and all(item.relation or item.bounds for item in node.items)


def _ask(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    if r"\approx" in pred.text and r"\approx" not in gold.text:
        return False  # decimals that are not its own
    if _is_unsolved(pred.text) and not _is_unsolved(gold.text):
        return False
    return None if oracle is None else oracle(gold.text, pred.text)


def _is_unsolved(text: str) -> bool:
    """Return whether an inequality is not one variable between or beside constants."""
    for part in split_list(text):
        sides = _INEQUALITY.split(part)
        others = [side for side in sides if not _LONE.fullmatch(side)]
        letters = {letter for side in others for letter in _LETTER.findall(side)}
        if len(sides) > 1 and (len(others) != len(sides) - 1 or letters - {"e"}):
            return True
    return False


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
        has_members = first.kind != "set" and not _EMPTY_SIGN.fullmatch(first.text)
        if has_members and all(_alike_exactly(item, first) for item in node.items):
            return first
    return node


def _alike_exactly(item: Node, first: Node) -> bool:
    """Return whether two members have one spelling, or one label and rational value."""
    if squeeze(item.text) == squeeze(first.text):
        return True
    plain = [node.text for node in (item, first) if split_unit(node.text)[1] is None]
    exact = [value.exact for value in map(number_of, plain) if value and value.exact is not None]
    return item.label == first.label and len(exact) == 2 and exact[0] == exact[1]


def _mixed(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Compare a leaf with a structure. Only algebra can prove them equal (an inequality)."""
    leaf, structure = (gold, pred) if gold.kind == "leaf" else (pred, gold)
    several = structure.kind in ("list", "set", "matrix", "tuple") and not leaf.relation
    if structure.kind == "tuple" and any(item.label for item in structure.items):
        return False  # x = 1, y = 2 is no interval
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
    if (places := _places(golds, preds)) or _have_places(golds):
        pairs = places or [list(zip(golds, preds, strict=True))]
        return any_of(all_of(_member(g, p, oracle) for g, p in each) for each in pairs)
    undecided = False
    for item in golds:
        results = [_member(item, p, None) for p in preds]
        if True in results:
            preds.pop(results.index(True))
            continue
        open_ones = [p for p, result in zip(preds, results, strict=True) if result is None]
        if not open_ones:
            return False
        if oracle is None:
            undecided = True
            continue
        match = next((p for p in open_ones if _member(item, p, oracle)), None)
        if match is None:
            return False
        preds.remove(match)
    return None if undecided else True


def _places(golds: list[Node], preds: list[Node]) -> list[list[tuple[Node, Node]]]:
    r"""Return how values with names belong together, if their order does not matter by itself.

    AB = 9, CD = 4 is CD = 4, AB = 9 and 9, 4, but not 4, 9; f = 1, g = 2 is not f = 2, g = 1;
    3 red, 4 blue is not 4 red, 3 blue. y = 2, x = 1 is also 1, 2. But x_1 = 1, x_2 = 2 is 2, 1, as
    roots have no order.
    """
    names, theirs = [_name(item) for item in golds], [_name(item) for item in preds]
    if not 1 < len(golds) == len({*names} - {""}):
        return []
    by_name = sorted(golds, key=_name)
    if {*theirs} == {*names}:
        return [list(zip(by_name, sorted(preds, key=_name), strict=True))]
    labels = [item.label for item in golds]
    if not any(labels):
        found = [[p for p, x in zip(preds, theirs, strict=True) if _alike(n, x)] for n in names]
        if all(len(one) == 1 for one in found) and len({id(one[0]) for one in found}) == len(golds):
            return [[(gold, one[0]) for gold, one in zip(golds, found, strict=True)]]
    if any(labels) and (any(theirs) or len({x.partition("_")[0] for x in names}) < len(names)):
        return []
    letters = all(labels) and all(len(name) < 3 for name in names)
    return [list(zip(order, preds, strict=True)) for order in [golds, *[by_name] * letters]]


def _name(item: Node) -> str:
    """Return what names a value of a list: its label, or the words after it."""
    return _label(item) or flat(item.text.removeprefix(split_unit(item.text)[0])).lower()


def _alike(name: str, other: str) -> bool:
    """Return whether words name one thing, as "red" and "red balls", "apples" and "apple"."""
    stems = (
        [re.sub("(?<=..)(?:ies|y|e?s)$", "", word) for word in text.split()]
        for text in (name, other)
    )
    few, many = sorted(stems, key=len)
    return bool(few) and all(any(x.startswith(y) or y.startswith(x) for y in many) for x in few)


def _label(item: Node) -> str:
    return _FUNCTION.sub("", re.sub(r"[{}\s]", "", TEXT.sub(r"\1", item.label)))


def _have_places(items: list[Node]) -> bool:
    r"""Return whether items are several solutions (x = 1, y = 2, x = 3, y = 4) or quantities."""
    labels = [item.label for item in items]
    units = [split_unit(item.text)[1] or "" for item in items]
    measured = len(items) > 1 and all(units) and len(set(units)) == len(units)
    return 1 < len(set(labels)) < len(labels) or measured


def _compare_tuples(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    golds, preds = list(gold.items), list(pred.items)
    if "set" in (gold.kind, pred.kind) or len(golds) != len(preds):
        return False
    if gold.bounds and pred.bounds and gold.bounds != pred.bounds and len(golds) == 2:
        return False
    interval = len(golds) == 2 and gold.bounds not in ("", "()")
    if pred.kind == "list" and (interval or OR.search(pred.text)):
        return False  # `2, 3` does not show which end is closed
    labels = [item.label for item in preds]
    if all(map(_LETTER_LABEL.fullmatch, labels)):  # y = 1, x = 2 is (2, 1)
        if len(set(labels)) < len(labels):
            return False
        for items in (golds, preds):  # a stable sort: no labels, no change
            items.sort(key=lambda item: item.label.lstrip("\\"))
    if any(p.relation and not g.relation for g, p in zip(golds, preds, strict=True)):
        return False  # x + y = 3 is no coordinate
    return all_of(_member(g, p, oracle) for g, p in zip(golds, preds, strict=True))


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
    if pred.relation and not gold.relation:
        if _contradicts_itself(pred.text):
            return False
        if not gold.label or gold.label == pred.label:
            pred = _last_side(pred)
    if gold.relation and not pred.relation and len(split_top(gold.text, "=")) > 2:
        gold = _last_side(gold)
    if gold.relation or pred.relation:
        gold, pred = (
            replace(node, text=f"{node.label}={node.text}") if node.label else node
            for node in (gold, pred)
        )
        return _ask(gold, pred, oracle)
    if (same := compare_words(gold.text, pred.text)) is not None:
        return same
    # 1 2 is not 12, and \text{not }0 is no product.
    if any(sign.search(pred.text) and not sign.search(gold.text) for sign in _NO_NUMBER):
        return False
    return _compare_quantities(gold.text, pred.text, oracle)


def _labels_contradict(gold: Node, pred: Node) -> bool:
    """Return whether labels differ, as x and y, f(1) and f(2), x_1 and x_2 do.

    One function may have two names (y, f(x)), and words ("area") may name any letter.
    """
    names = [_label(node) for node in (gold, pred)]
    if names[0] == names[1] or not all(names):
        choice = names[1:] if _CHOICE.fullmatch(gold.text) and not names[0] else []
        return bool(choice) and bool(re.fullmatch("[A-J]", names[1])) and names[1] not in gold.text
    words = [bool(re.fullmatch(r"[A-Za-z]{3,}", name)) for name in names]
    return not set(names) <= _FUNCTION_NAMES and words[0] == words[1]


def _last_side(pred: Node) -> Node:
    """Return the last side of a chain: c of a = b = c."""
    sides = split_top(pred.text, "=")
    if len(sides) < 2 or not sides[-1] or re.search(r"\\(?:le|ge|ne|in)(?![a-z])|[<>]", pred.text):
        return pred
    last = build(sides[-1])
    return last if last.kind == "leaf" else pred


def _contradicts_itself(relation: str) -> bool:
    """Return True for a false chain (3 = 4, or over 1 % apart) and for words of doubt."""
    values = [value for side in split_top(relation, "=") if (value := number_of(side)) is not None]
    numbers = [value.at(0) for value in values]
    integers = [value.exact for value in values if value.exact is not None and value.exact % 1 == 0]
    return (
        bool(UNSURE.search(relation))
        or len(set(integers)) > 1
        or any(abs(number - numbers[-1]) > _ROUNDING * abs(number) for number in numbers)
    )


def compare_words(gold: str, pred: str) -> bool | None:
    """Compare numbers in a base, or words; None if neither applies."""
    based = [_BASED.fullmatch(text.strip()) for text in (gold, pred)]
    if based[0] and based[1] and (based[0][2] or based[1][2]):
        # 101110 as a gold is taken for binary digits, 72 for decimal ones.
        plain = based[0][2] is None and re.fullmatch(
            "[01]{3,}_2|.+_10", "_".join(based[1].groups())
        )
        same_base = based[1][2] in (None, based[0][2]) or bool(plain)
        return based[0][1] == based[1][1] and same_base
    runs = ["".join(flat(text).split()) for text in (gold, pred)]
    if all(map(_CAPITALS.fullmatch, runs)):
        return runs[0] == runs[1]  # as products of letters, IV would equal VI, and TH HT
    marked = r"\text{" in gold + pred
    words = [words_of(text, marked=marked) for text in (gold, pred)]
    if all(words):
        return words[0] == words[1]
    if marked and all(map(_WORDS.fullmatch, map(flat, (gold, pred)))):
        return runs[0] == runs[1]  # m-M and mgR: signs and case count
    return False if any(words) and is_number(pred if words[0] else gold) else None


def words_of(text: str, *, marked: bool = False) -> str:
    r"""Return the words of an answer of words only, in one spelling; "" for any other.

    Single letters and short runs of them are a formula (`p - q`, `ab-c`, `mgR`), unless \text marks
    this answer, or the one it is compared with.
    """
    plain = flat(text)
    runs = re.findall(r"[A-Za-z]+", plain.replace("'", ""))
    if not _WORDS.fullmatch(plain) or not all(map(_RUN.fullmatch, runs)):
        return ""
    if "-" in plain and not (marked and all(len(run) > 1 for run in runs)):
        return ""
    if not marked and not any(map(_PLAIN_WORD.fullmatch, runs)):
        return ""
    if len(runs) > 1 and runs[0].lower() in ("a", "an", "the"):
        runs = runs[1:]
    return " ".join(run if len(run) == 1 else run.lower() for run in runs)


def _compare_quantities(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Compare two values with or without units. Units that contradict are never equal."""
    gold_text, gold_unit = split_unit(gold)
    pred_text, pred_unit = split_unit(pred)
    percents = (gold_text.endswith("%"), pred_text.endswith("%"))
    if (
        units_contradict(gold_unit, pred_unit)
        or (percents == (True, False) and pred_unit)
        or (percents == (False, True) and gold_unit)
    ):
        return False
    if squeeze(gold_text) == squeeze(pred_text):
        return True
    if {"am", "pm"} & {gold_unit, pred_unit}:  # 12:15 is no ratio
        return False
    parts = [split_top(text, ":") for text in (gold_text, pred_text)]
    if max(map(len, parts)) > 2:  # math-verify takes ratios for products
        return len(parts[0]) == len(parts[1]) and all_of(
            _compare_numbers(g, p, oracle) for g, p in zip(*parts, strict=True)
        )
    return not _OTHER_PERCENT.search(pred_text) and _compare_numbers(gold_text, pred_text, oracle)


def _value(text: str) -> Value | None:
    try:
        return evaluate(text)
    except Unsupported:
        return None


def number_of(text: str) -> Value | None:
    """Return the value of a text that is one number, with or without a unit, else None."""
    try:
        value = evaluate(split_unit(text)[0])
    except (Unsupported, TooBig):
        return None
    return None if value.has_letters else value


def is_number(text: str) -> bool:
    try:
        return _value(text) is not None
    except TooBig:
        return True


def _compare_numbers(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    gold_number, pred_number = gold.rstrip(" %"), pred.rstrip(" %")
    scales = [Fraction(1)]
    if gold.endswith("%") != pred.endswith("%"):
        scales.append(Fraction(1, 100) if pred.endswith("%") else Fraction(100))
    try:
        gold_value = _value(gold_number)
    except TooBig:
        return _ask_text(gold_number, pred_number, oracle)
    pred_value = _value(pred_number)
    if gold_value is None or pred_value is None:
        return _ask_text(gold_number, pred_number, oracle)
    if gold_value.exact is not None and pred_value.exact is not None:
        return any(gold_value.exact == pred_value.exact * scale for scale in scales)
    if len(scales) == 1:
        if surely_different(gold_value, pred_value, real=True):
            return False
        try:
            if (same := same_digits(gold_value, pred_value)) is not None:
                return same
        except (TooBig, Unsupported):  # a pole that only more digits show
            pass
    return _ask_text(gold_number, pred_number, oracle)


def _ask_text(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    if any(sign.search(text) for sign in _NO_FORMULA for text in (gold, pred)):
        return False
    return None if oracle is None else oracle(gold, pred)
