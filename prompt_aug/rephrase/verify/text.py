r"""Prose and formulas of a text; TeX, Unicode and ASCII formulas get one spelling.

A dollar sign marks an amount if no second one follows, or if the text between reads as prose. A
formula that is only a number (``$20,\!000$``, ``$6\%$``, ``$60^\circ$``) becomes prose.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

FORMULA, AMOUNT = "\ue000", "\ue001"  # placeholders in the prose
DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
MOST_NESTED = 8  # depth of nested fractions that are rewritten
_FORMULAS = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$(?P<inline>[^$]+)\$"
    r"|\\begin\{(?:align|equation|gather|eqnarray)\*?\}(.+?)\\end\{[a-z]+\*?\}",
    re.DOTALL,
)
_ARRAY = re.compile(r"\\(?:begin|end)\{(?:tabular|array)\}(?:\{[^{}]*\})?|\\\\(?=\s)")
_MARKED_TEXT = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm|operatorname)\s*\{[^{}]*\}")
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset("sin cos tan cot sec csc log gcd lcm mod max min det abs exp arcsin".split())
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}\s*|,\s*\\!\s*|,)(?=\d{3}(?!\d))")
_NUMBER = re.compile(rf"{AMOUNT}? ?-?(?:\d+ )?(?:\d*\.)?\d+(?:/\d+)?(?: ?(?:%|[a-z]+))*")
_TERM = r"(?:[A-Za-z]\([a-z]\)|\d*[a-zA-Z](?:\^\{?\d+\}?)?|\d+(?:\.\d+)?)"
_BARE = re.compile(rf"(?<![\w\\])(?:{_TERM}\s*(?:<=|>=|[-+*/=<>≤≥−])\s*)+{_TERM}(?![\w\\])")
_SIGNS = (
    "×* ·* ⋅* ∙* ÷/ −- –- ½1/2 ⁿ^n ≤<= ≥>= ≠!= ⌊floor( ⌋) ⌈ceil( ⌉) …... ′' ’' "
    "πpi ∞infty θtheta αalpha βbeta ωomega λlambda"
)
_UNICODE = str.maketrans(
    {said[0]: said[1:] for said in _SIGNS.split()} | {"°": " ", "√": " \\sqrt ", "∈": " in "}
)
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SPELLINGS = {
    "": "left right displaystyle overline operatorname text textbf textrm textit mathbf mathrm "
    "mathit circ degree",
    **{" ": "cdot times quad qquad", "\\frac": "frac dfrac tfrac", "\\sqrt": "sqrt", "/": "div"},
    **{"<=": "le leq leqslant", ">=": "ge geq geqslant", "!=": "ne neq", "<": "lt", ">": "gt"},
    **{"...": "dots ldots cdots", "floor(": "lfloor", "ceil(": "lceil", ")": "rfloor rceil"},
}
_COMMANDS = {name: sign for sign, names in _SPELLINGS.items() for name in names.split()}
_SEPARATOR = re.compile(r"\\\\|\\(?:text|mbox|textnormal)\s*\{[^{}]*[a-z]{2}[^{}]*\}")
_SPACE = re.compile(r"\\[,!;: ]|&|\^(?=\s*\{?\s*\\circ)")
_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]+)\}|(\w))\s*(?:\{([^{}]+)\}|(\w))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]+)\}|\(([^()]+)\))")
# A number, a letter or a Greek letter by name. Of a product the brackets stay: 1/(2x) is not 1/2x.
_ATOM = r"(?:\d+(?:\.\d+)?|[A-Za-z]|pi|theta|alpha|beta|omega|lambda)"
_POWER = re.compile(rf"{_ATOM}(?:\^{_ATOM})?")
_ALONE = re.compile(rf"(?:(?<=[/^])|(?<=sqrt))\(({_ATOM})\)|(?<![A-Za-z0-9^])\((\w)\)(?=[/^])")


@dataclass(frozen=True, slots=True)
class Reading:
    """A text without drawings: `prose` has `FORMULA` for each of the compact `formulas`."""

    prose: str
    formulas: tuple[str, ...] = ()
    whole: str = ""


@functools.lru_cache(maxsize=256)
def read(text: str) -> Reading:
    """Split `text` into prose and formulas, in time linear in its length."""
    text = _ARRAY.sub(" ", DRAWING.sub(" ", text)).replace("\\$", AMOUNT)
    prose: list[str] = []
    formulas: list[str] = []

    def bare(match: re.Match[str]) -> str:
        found = match.group()  # a formula without dollar signs: x^2 + 1 = y
        if not re.search(r"[A-Za-z]", found):
            return found
        formulas.append(compact(found))
        return f" {FORMULA} "

    for piece, is_formula in _pieces(text):
        if not is_formula:
            prose.append(_BARE.sub(bare, piece))
        elif number := _as_number(piece):
            prose.append(f" {number} ")
        elif spelled := compact(piece):
            formulas.append(spelled)
            prose.append(f" {FORMULA} ")
    return Reading("".join(prose), tuple(formulas), text)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the text in order, as (piece, True for a formula)."""
    start = 0
    while match := _FORMULAS.search(text, start):
        inside = next(group for group in match.groups() if group is not None)
        if match["inline"] and _is_money(inside, text[match.end() : match.end() + 1]):
            yield text[start : match.start()] + AMOUNT, False
            start = match.start() + 1
        else:
            yield text[start : match.start()], False
            yield inside, True
            start = match.end()
    yield text[start:].replace("$", AMOUNT), False


def _is_money(inside: str, after: str) -> bool:
    """Return True if the dollar before `inside` marks an amount: the text reads as prose."""
    listed = _PROSE_WORD.findall(_MARKED_TEXT.sub(" ", inside))
    words = [word for word in listed if word.lower() not in _FUNCTIONS and not word.isupper()]
    if not re.match(r"\s?\d", inside):
        return len(words) > 5  # an unclosed formula runs into a sentence
    return bool(words) or (inside[-1:].isspace() and after.isdigit())


def _as_number(formula: str) -> str | None:
    """Return a formula that is one number, with or without a unit, as prose, else None."""
    plain = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", " degrees ", _THOUSANDS.sub("", formula))
    plain = re.sub(r"\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))", r" \1\2/\3\4", plain)
    plain = re.sub(r"\^?\s*\{?\\(?:text|mathrm|textrm|rm)\b|\\[,;!: ]|[{}]", " ", plain)
    plain = " ".join(plain.replace("\\%", "%").split()).strip(" .,;:?")
    return plain if _NUMBER.fullmatch(plain) else None


@functools.lru_cache(maxsize=1024)
def compact(formula: str) -> str:
    """Return TeX, Unicode or ASCII in one spelling without spaces: "x^2+1/(2y)", "sqrt5", "<="."""
    plain = formula.replace(r"\$", " ").replace(AMOUNT, " ").translate(_UNICODE)
    plain = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+",
        lambda match: "^{" + match.group().translate(_LOWERED) + "}",
        _THOUSANDS.sub("", plain),
    )
    plain = re.sub(r"\\not\s*=", "!=", _SPACE.sub(" ", _SEPARATOR.sub(";", plain)))
    plain = re.sub(r"\\([a-zA-Z]+)", lambda m: _COMMANDS.get(m[1], m[1]), plain.replace("=<", "<="))
    for _ in range(MOST_NESTED):  # from the inside out
        before, plain = plain, _ROOT.sub(r"sqrt(\1\2)", _FRACTION.sub(_divided, plain))
        if plain == before:
            break
    plain = re.sub(r"[\s*\\]", "", plain.translate(str.maketrans("{}[]", "()()")))
    return _ALONE.sub(r"\1\2", plain).rstrip(".,;")


def _divided(match: re.Match[str]) -> str:
    """Return a fraction on one line: 3x/2, 1/(2x), (x+1)/(x-2)."""
    above, below = (match.group(1) or match.group(2), match.group(3) or match.group(4))
    above = above if re.fullmatch(r"[\w^.]+", above) else f"({above})"
    return f"{above}/{below if _POWER.fullmatch(below) else f'({below})'}"
