"""Equality of two answers in three values: True and False are proven here, None needs algebra.

`compare` walks the two structures; at leaves it compares spelling, words, labels, units and
values (`evaluate`). Where that proves nothing it asks `oracle(gold, prediction)`, if there is
one; without it the answer is None. See GRADING.md for the policy that this code carries out.
"""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction

from prompt_aug.grading.arithmetic import TooBig, Unsupported
from prompt_aug.grading.evaluate import Value, evaluate, rounds_to, same_digits, surely_different
from prompt_aug.grading.normalize import UNSURE, split_unit, squeeze, units_contradict
from prompt_aug.grading.structure import Node, as_union, build, split_top

Oracle = Callable[[str, str], bool]

MAX_ITEMS = 64
_ROUNDING = 0.01  # of the sides of a chain: 41/6 = 6.8 is one, 3 = 4 is not
_BASED = re.compile(r"(-?\d+(?:\.\d+)?)\s*_\s*\{?\s*(\d+)\s*\}?")
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
_CHOICE_GOLD = re.compile(r"(?:\\text\{)?\s*\(?\s*([A-J])\s*\)?\s*\}?\)?")
_CHOICE_MARKED = re.compile(r".*(?:\\text|\().*")
_CHOICE_PRED = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?"
    r"(?:\(\s*([A-Ja-j])\s*\)|([A-Ja-j])\s*[).:]|([A-Ja-j])$)(.*)",
    re.IGNORECASE | re.DOTALL,
)
_SECOND_CHOICE = re.compile(
    r"\([A-Ja-j]\)|(?<![A-Za-z])[A-J]\s*[).:](?:\W|$)|^\W*(?:(?:or|and)\b)?\W*[A-J](?![A-Za-z'])"
)
_CHOICE_DENIED = re.compile(
    r"\W*(?:is\s+)?(?:wrong|false|incorrect|not|no)\b|.*\b(?:also|through|plus)\W+[A-J]\b",
    re.IGNORECASE | re.DOTALL,
)
_TEXT = re.compile(r"\\text\{[^{}]*\}")
_MODULUS = re.compile(r"\\[pb]?mod(?![a-z])")
_RESIDUE = re.compile(
    r"(?:[a-z]\s*\\equiv\s*)?(-?\d+)\s*\(?\s*\\[pb]?mod\s*\{?\s*(\d+)\s*\}?\s*\)?"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z' ,.\-]{2,}")
_EMPTY = frozenset(("none", "no solution", "no solutions", "no real solution", "no real solutions"))
_EMPTY_SIGN = re.compile(r"\\emptyset|\\\{\s*\\\}")
# `1 2 3` is not 6, and `5_x`, `12_3+1` are not 5 and 13, as math-verify has it.
_OR = re.compile(r"(?<![\\a-zA-Z])or(?![a-zA-Z])")
_NO_NUMBER = (re.compile(r"(?<![\d.,/_{])\d+\s+\d+(?!\d*\s*/)"), re.compile(r"\d\s*_"))
_OPPOSED = [
    {a: b, b: a}
    for a, b in (
        *(("am", "pm"), ("north", "south"), ("east", "west"), ("left", "right"), ("up", "down")),
        *(("profit", "loss"), ("gain", "loss"), ("increase", "decrease"), ("boys", "girls")),
        *(
            ("more", "less"),
            ("f", "c"),
            ("fahrenheit", "celsius"),
            ("clockwise", "counterclockwise"),
        ),
    )
]
_SIMPLE_LABEL = re.compile(r"[A-Za-z]|\\[a-z]+|[A-Za-z]_\{?\w\}?")


def compare(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """Whether `pred` answers `gold`."""
    if squeeze(gold.text) == squeeze(pred.text) and not _labels_contradict(gold, pred):
        return True
    if (chosen := _compare_choices(gold.text, pred.text)) is not None:
        return chosen
    if gold.kind != "leaf" and pred.kind != "leaf" and _labels_contradict(gold, pred):
        return False
    if "either" in (gold.kind, pred.kind):
        return _any(compare(g, p, oracle) for g, p in _readings(gold, pred))
    if gold.kind == "leaf" == pred.kind:
        return _compare_leaves(gold, pred, oracle)
    if _same_union(gold, pred):
        return True
    return _compare_structures(_unwrapped(gold), _unwrapped(pred), oracle)


def _compare_structures(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """The same, of which one at least was no leaf before it was unwrapped."""
    if "leaf" in (gold.kind, pred.kind):
        return (
            _compare_leaves(gold, pred, oracle)
            if gold.kind == pred.kind
            else _mixed(gold, pred, oracle)
        )
    if "union" in (gold.kind, pred.kind):
        same = _unordered(gold, pred, None) if gold.kind == pred.kind else None
        return True if same else _ask(gold, pred, oracle)
    if gold.kind == "matrix" or pred.kind == "matrix":
        return _compare_matrices(gold, pred, oracle)
    if gold.kind == "tuple" or pred.kind == "tuple":
        return _compare_tuples(gold, pred, oracle)
    return _unordered(gold, pred, oracle)


def _same_union(gold: Node, pred: Node) -> bool:
    """Whether both are the same intervals, written as such or as solved inequalities."""
    if gold.kind == pred.kind == "list" or gold.kind == pred.kind == "tuple":
        return False  # lists of points, perhaps
    one, other = as_union(gold), as_union(pred)
    if one is None or other is None or (one[0] and other[0] and one[0] != other[0]):
        return False
    return bool(_unordered(one[1], other[1], None))


def _any(results: Iterable[bool | None]) -> bool | None:
    found: bool | None = False
    for result in results:
        if result:
            return True
        found = None if result is None else found
    return found


def _all(results: Iterable[bool | None]) -> bool | None:
    found: bool | None = True
    for result in results:
        if result is False:
            return False
        found = None if result is None else found
    return found


def _ask(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    return None if oracle is None else oracle(gold.text, pred.text)


def _readings(gold: Node, pred: Node) -> list[tuple[Node, Node]]:
    golds = gold.items if gold.kind == "either" else (gold,)
    preds = pred.items if pred.kind == "either" else (pred,)
    pairs = [(g, p) for g in golds for p in preds if (g.kind == "leaf") == (p.kind == "leaf")]
    point = "." in pred.text
    return [(g, p) for g, p in pairs if point or not _is_decimal_comma(gold, g)]


def _is_decimal_comma(gold: Node, reading: Node) -> bool:
    """1,2 read as 1.2: only where the prediction has a decimal point, else the gold is a list."""
    return "." in reading.text and "." not in gold.text


def _unwrapped(node: Node) -> Node:
    r"""`\{5\}` and a list whose members are all the same are their one member.

    Not `\{\emptyset\}`, which has a member where `\emptyset` has none.
    """
    if node.kind in ("list", "set") and node.items:
        first = node.items[0]
        one = first.kind != "set" and not _EMPTY_SIGN.fullmatch(first.text)
        if one and all(squeeze(item.text) == squeeze(first.text) for item in node.items[1:]):
            return first
    return node


def _mixed(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    """A leaf against a structure: only algebra can make them equal (an inequality, a formula)."""
    leaf, other = (gold, pred) if gold.kind == "leaf" else (pred, gold)
    if other.kind in ("list", "set", "matrix", "tuple") and not leaf.relation and _is_plain(leaf):
        return False
    return _ask(gold, pred, oracle)


def _is_plain(leaf: Node) -> bool:
    """A single value or word: never equal to a structure of several."""
    return _is_number(leaf.text.replace("%", "")) or bool(words_of(leaf.text))


def _member(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    r"""`compare` for members of two structures, where `\{1\}` is not 1."""
    if (gold.kind == "set") != (pred.kind == "set"):
        return False
    return compare(gold, pred, oracle)


def _unordered(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    golds, preds = _distinct(gold.items), _distinct(pred.items)
    if gold.kind == pred.kind == "list" and len(gold.items) == len(pred.items):
        golds, preds = list(gold.items), list(pred.items)  # 3, 4, 4 is not 3, 3, 4
    if len(golds) != len(preds):
        return False
    if len(golds) > MAX_ITEMS:
        return _ask(gold, pred, oracle)
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


def _distinct(items: tuple[Node, ...]) -> list[Node]:
    return list({item.label + "=" + squeeze(item.text): item for item in items}.values())


def _compare_tuples(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    if "set" in (gold.kind, pred.kind) or len(gold.items) != len(pred.items):
        return False
    if gold.bounds and pred.bounds and gold.bounds != pred.bounds and len(gold.items) == 2:
        return False
    if pred.kind == "list" and (gold.bounds in ("(]", "[)") or _OR.search(pred.text)):
        return False  # of `2, 3` nobody sees which end belongs to an interval
    preds, labels = list(pred.items), [item.label for item in pred.items]
    if all(map(_SIMPLE_LABEL.fullmatch, labels)) and not any(item.label for item in gold.items):
        if len(set(labels)) < len(labels):
            return False
        preds.sort(key=lambda item: item.label)  # y = 1, x = 2 is (2, 1)
    if any(p.relation and not g.relation for g, p in zip(gold.items, preds, strict=True)):
        return False  # x + y = 3 is no coordinate
    return _all(_member(g, p, oracle) for g, p in zip(gold.items, preds, strict=True))


def _compare_matrices(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    flat_gold, flat_pred = _vector(gold), _vector(pred)
    if gold.kind != pred.kind:
        if flat_gold is None or flat_pred is None or len(flat_gold) != len(flat_pred):
            return False
        return _all(compare(g, p, oracle) for g, p in zip(flat_gold, flat_pred, strict=True))
    if [len(row.items) for row in gold.items] != [len(row.items) for row in pred.items]:
        return False
    return _all(
        compare(g, p, oracle)
        for gold_row, pred_row in zip(gold.items, pred.items, strict=True)
        for g, p in zip(gold_row.items, pred_row.items, strict=True)
    )


def _vector(node: Node) -> tuple[Node, ...] | None:
    """The entries of a tuple or of a matrix with one row or one column."""
    if node.kind != "matrix":
        return node.items if node.kind == "tuple" and node.bounds in ("()", "[]") else None
    if len(node.items) == 1:
        return node.items[0].items
    if all(len(row.items) == 1 for row in node.items):
        return tuple(row.items[0] for row in node.items)
    return None


def _compare_leaves(gold: Node, pred: Node, oracle: Oracle | None) -> bool | None:
    if (residues := _compare_residues(gold.text, pred.text, oracle)) is not None:
        return residues
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
    if gold.relation or pred.relation:
        return _ask(_with_label(gold), _with_label(pred), oracle)
    return _compare_texts(gold.text, pred.text, oracle)


def _compare_texts(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Two leaves without a relation: words, ratios, quantities."""
    for rule in (_compare_words(gold, pred), _compare_ratios(gold, pred, oracle)):
        if rule is not None:
            return rule
    if any(sign.search(pred) and not sign.search(gold) for sign in _NO_NUMBER):
        return False
    return _compare_quantities(gold, pred, oracle)


def _leads_to(gold: Node, pred: Node) -> bool:
    """Whether the sides before the last are the gold's label or numbers: 2x = 5 is not x = 5."""
    if pred.label:
        return not _labels_contradict(gold, pred)
    sides = [_TEXT.sub("", side) for side in split_top(pred.text, "=")[:-1]]
    return all(squeeze(side) == squeeze(gold.label) or _number(side) is not None for side in sides)


def _compare_ratios(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """a : b : c is d : e : f where a e = d b and a f = d c; None where there are no three."""
    golds, preds = split_top(gold, ":"), split_top(pred, ":")
    if max(len(golds), len(preds)) < 3:
        return None
    if len(golds) != len(preds):
        return False
    first, other = golds[0], preds[0]
    return _all(
        _compare_numbers(f"({g})\\cdot({other})", f"({p})\\cdot({first})", oracle)
        for g, p in zip(golds[1:], preds[1:], strict=True)
    )


def _compare_quantities(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Two values, each with a unit or without: two units that contradict are never equal."""
    gold_text, gold_unit = split_unit(gold)
    pred_text, pred_unit = split_unit(pred)
    percents = (gold_text.endswith("%"), pred_text.endswith("%"))
    if (
        units_contradict(gold_unit, pred_unit)
        or (gold_unit is not None and pred_unit is not None and _opposed(gold, pred))
        or (percents == (True, False) and pred_unit)
        or (percents == (False, True) and gold_unit)
    ):
        return False
    if squeeze(gold_text) == squeeze(pred_text):
        return True
    return _compare_numbers(gold_text, pred_text, oracle)


def _opposed(gold: str, pred: str) -> bool:
    """Whether one says "north" where the other says "south"."""
    golds, preds = (set(re.findall(r"[a-z]+", t.lower().replace(".", ""))) for t in (gold, pred))
    return any(
        pair[word] in preds and word not in preds
        for pair in _OPPOSED
        for word in golds & set(pair)
        if pair[word] not in golds
    )


def _labels_contradict(gold: Node, pred: Node) -> bool:
    """x = 3 against y = 3; f(x) = 3 or "the answer = 3" against y = 3 is no contradiction."""
    simple = [_SIMPLE_LABEL.fullmatch(node.label) for node in (gold, pred)]
    return all(simple) and squeeze(gold.label) != squeeze(pred.label)


def _with_label(node: Node) -> Node:
    return Node(kind="leaf", text=f"{node.label}={node.text}" if node.label else node.text)


def _last_side(pred: Node) -> Node:
    """a = b = c answers with c."""
    sides = split_top(pred.text, "=")
    if len(sides) < 2 or not sides[-1] or re.search(r"\\(?:le|ge|ne|in)(?![a-z])|[<>]", pred.text):
        return pred
    last = build(sides[-1])
    return last if last.kind == "leaf" else pred


def _contradicts_itself(relation: str) -> bool:
    """3 = 4, 2023 = 2024, numbers that differ by more than a rounding, and "not" = 3."""
    values = [value for side in split_top(relation, "=") if (value := _number(side)) is not None]
    numbers = [value.at(0) for value in values]
    whole = [value.exact for value in values if value.exact is not None and value.exact % 1 == 0]
    return (
        bool(UNSURE.search(relation))
        or len(set(whole)) > 1
        or any(abs(number - numbers[-1]) > _ROUNDING * abs(number) for number in numbers)
    )


def _compare_choices(gold: str, pred: str) -> bool | None:
    """Whether the chosen letter is that of the gold; None where either is no choice.

    Whoever marks a second letter has not chosen: `(A)(B)`, `A. B.`, but `C. larger than A or D`.
    """
    choice = _CHOICE_GOLD.fullmatch(gold)
    chosen = _CHOICE_PRED.fullmatch(_flat(pred)) if choice else None
    if choice is None or chosen is None:
        return None
    letter = chosen[1] or chosen[2] or chosen[3]
    if _SECOND_CHOICE.search(chosen[4]) or _CHOICE_DENIED.match(chosen[4]):
        return False
    if not (_CHOICE_MARKED.fullmatch(gold) or letter.isupper()):
        return None
    return letter.upper() == choice[1]


def _compare_words(gold: str, pred: str) -> bool | None:
    """Numbers in a base and plain text; None where neither applies."""
    based = [_BASED.fullmatch(text) for text in (gold, pred)]
    if any(based):
        digits = [m.group(1) if m else t.strip() for m, t in zip(based, (gold, pred), strict=True)]
        bases = {match.group(2) for match in based if match}
        return (
            (digits[0] == digits[1] and len(bases) == 1) if _DIGITS.fullmatch(digits[1]) else None
        )
    if _is_empty(gold) and _is_empty(pred):
        return True
    words = [words_of(text) for text in (gold, pred)]
    if all(words):
        return words[0] == words[1]
    return False if any(words) and _is_number(pred if words[0] else gold) else None


def _compare_residues(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    r"""`7 \pmod{11}` against 7 or 7 \pmod{11}; None where there is no modulus."""
    parts = [_RESIDUE.fullmatch(text) for text in (gold, pred)]
    if not parts[1] or (not parts[0] and _MODULUS.search(gold)):
        return None
    if parts[0] and parts[0][2] != parts[1][2]:
        return False
    stated = parts[1][1]
    if r"\bmod" in pred:  # a sign of arithmetic: 12 \bmod 5 is 2
        stated = str(int(stated) % int(parts[1][2])) if int(parts[1][2]) else stated
    return _compare_numbers(parts[0][1] if parts[0] else gold, stated, oracle)


def _is_empty(text: str) -> bool:
    return bool(_EMPTY_SIGN.fullmatch(text)) or _flat(text).strip(" .").lower() in _EMPTY


def _flat(text: str) -> str:
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split())


def words_of(text: str) -> str:
    """The words of an answer that is nothing but words, in one spelling; "" otherwise."""
    if not _WORDS.fullmatch(flat := _flat(text)):
        return ""
    return " ".join(re.findall(r"[a-z]+", flat.lower()))


def _value(text: str) -> Value | None:
    try:
        return evaluate(text)
    except Unsupported:
        return None


def _number(text: str) -> Value | None:
    """The value of a text that is one number, its unit left out."""
    try:
        value = _value(split_unit(text)[0])
    except TooBig:
        return None
    return None if value is None or value.has_letters else value


def _is_number(text: str) -> bool:
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
        if rounds_to(pred_value, gold_number):
            return True
        if surely_different(gold_value, pred_value):
            return False
        try:
            if (same := same_digits(gold_value, pred_value)) is not None:
                return same
        except (TooBig, Unsupported):  # a function's pole that only more digits see
            pass
    return _ask_text(gold_number, pred_number, oracle)


def _ask_text(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    return None if oracle is None else oracle(gold, pred)
