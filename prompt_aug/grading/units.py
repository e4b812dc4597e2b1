r"""Units of values, and the meaning of words after a number.

Units are compared, not converted, except in `in_one_unit`. A missing unit contradicts nothing.
"""

import re

from prompt_aug.grading.notation import ONES, TENS

# A unit and its other names.
_UNITS = r"""
degree degrees deg \degree | rad radian radians | nm | mm millimeter millimeters | AU
cm centimeter centimeters centimetre centimetres | m meter meters metre metres | eV | MeV
km kilometer kilometers kilometre kilometres | in inch inches | ft foot feet | yd yard yards
mi mile miles | mph | angstrom angstroms | s sec secs second seconds | min mins minute minutes
h hr hrs hour hours | day days | week weeks | month months | year yr yrs years | decade decades
century centuries | Hz hertz | g gram grams | kg kilogram kilograms | lb lbs pound pounds
oz ounce ounces | ton tons tonne tonnes | mol moles | dollar dollars usd | cent cents
nickel nickels | dime dimes | euro euros eur | sterling gbp quid | yen jpy | unit units
l liter liters litre litres | gal gallon gallons | pint pints | quart quarts | acre acres
"""
_UNIT_OF = {"joule": "J", "joules": "J"} | {
    name.lower(): names.split()[0]
    for names in _UNITS.replace("\n", "|").split("|")
    for name in names.split()
}
# Case-sensitive symbols: mA, not Ma. There is no prefix p, since "pm" is a time of day.
_SYMBOLS = {
    prefix + base
    for base in "m s g L A V W J N Pa Hz K C F T eV mol cal bar pc B".split()
    for prefix in ("", *"GMkcdmn")
} - {"cd"}
# Symbols that are not products of variables, even without \text.
_PLAIN_SYMBOLS = frozenset("Hz kHz MHz GHz Pa kPa MPa GPa eV keV MeV GeV kW MW GW kJ MJ kN".split())
_COMPOUND = re.compile(r"\s*([A-Za-z]+)\s*(?:/|\bper\b)\s*([A-Za-z]+)\s*")
_SIGN_TAIL = re.compile(r"(?<=[\d}])\s*(?:\\mu\s*)?\\(?:Omega|mu)\s*(?:[a-zA-Z]\s*)?$")
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
# Without \text a unit has two letters or more: "2 xy" and "3 RC" are products.
_PLAIN_UNITS = frozenset(name for name in _UNIT_OF if len(name) > 1 and name.isalpha())
_MIN_UNKNOWN_WORD = 4
_WORD_TAIL = re.compile(r"\s*((?<![\\a-zA-Z])[A-Za-z][A-Za-z .,/'-]*(?:\^\{?-?\d\}?)?)$")
_CURRENCIES = frozenset(("dollar", "cent", "euro", "sterling", "yen"))
_RATE = re.compile(r"\s*per\s+([A-Za-z]+)\s*")
# Minutes of arc or of an hour, or feet: `30'`; seconds or inches: `30''`.
_PARTS_OF_DEGREES = re.compile(r"\\degree|\d\s*'+\s*\d")  # 12 degrees 30 minutes is no product
_PRIMES = re.compile(r"(?<=\d)\s*('{1,2}|\")\s*$")
# Words that deny, doubt or offer a choice: the text is no answer.
UNSURE = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|never|isn't|aren't|except|unknown|maybe|perhaps|possibly|either|or"
    r"|guess|unless|instead|wrong|incorrect|unsure|false|doubt|impossible|can't|cannot|couldn't"
    r"|won't|wouldn't|could|might|neither|nor|nobody|otherwise|else|alternatively|versus"
    r"|at\s+least|at\s+most|less\s+than|more\s+than|greater\s+than|and\s+(?:above|below)|twice)(?![a-zA-Z])|\?",
    re.IGNORECASE,
)
# Words that change the number before them: 5 million, 4 cubed, 3x in \text{}, 2 sinx, 5 alpha.
_CHANGES_VALUE = re.compile(
    r"(?<![a-zA-Z])(?:(?:ten|hundred|thousand|[a-z]{1,6}illion)s?|lakhs?|crores?|gross|grand|dozens?"
    r"|hal(?:f|ves)|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth"
    r"|[a-z]+(?:red|and|ion)th)s?|three quarters|percent of|per ?mille|promille|pp[mb]|basis points"
    r"|squared|cubed|factorial|root|inverse|reciprocal|plus|minus|negative|below zero|point"
    r"|times(?=\s+\w)"
    r"|multiplied|divided|added|doubled|tripled|halved|mod|base(?=\s+\w)"
    r"|alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|rho|pi|(?:sin|cos|tan|log|ln|sqrt)\w*"
    r"|(?<!\S)(?-i:[a-fijknp-rt-z]|[xyz]{2,3})\s*$)(?![a-zA-Z-])",
    re.IGNORECASE,
)
_SECOND_NUMBER = re.compile(  # 5 and six, 5 to six, 5, six
    r"\W*(?:(?:and|to|through|then|but|also|rather|actually|with|over|vs)\s+)*"
    rf"(?:{'|'.join((*ONES[1:], *TENS))})(?![a-zA-Z-]|\s+[a-z]{{3}})"
)
# A digit in the words after a value, except the power of a unit (m3, m^3, s^{-1}).
_NUMERAL = re.compile(r"(?<![a-zA-Z^{\d])(?<![\^{]-)\d")
_TEXT_TAIL = re.compile(r"\s*\\text\{([^{}]*)\}\s*(\^\{?-?\d\}?)?\s*$")
_PARTS_OF = {  # how many of the smaller unit make the larger one
    ("year", "month"): 12,
    ("week", "day"): 7,
    ("day", "h"): 24,
    ("h", "min"): 60,
    ("min", "s"): 60,
    ("ft", "in"): 12,
    ("lb", "oz"): 16,
}
_LARGE_AND_SMALL = re.compile(
    r"(\d{1,6})[\s~]*(?:\\text\{)?\s*([A-Za-z]+)\.?[\s,}]*(?:(?:\\text\{)?\s*and[\s}]*)?"
    r"(\d{1,6})[\s~]*(?:\\text\{)?\s*([A-Za-z]+)\.?[\s}]*"
)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Return (the text without its unit, the unit): ("80", "cent") of `80\text{ cents}`.

    The unit is None if there is none, and "" for an unknown word ("apples") or several units.
    """
    rest, words = text, ""
    while match := _TEXT_TAIL.search(rest):
        words = " ".join((match.group(1), match.group(2) or "", words))
        rest = rest[: match.start()]
    if not words and (match := _WORD_TAIL.search(rest)) and _is_unit_phrase(match.group(1)):
        words, rest = match.group(), rest[: match.start()]
    if not words and (match := _SIGN_TAIL.search(rest)):
        return rest[: match.start()], ""
    if not words and (match := _PRIMES.search(rest)) and not _PARTS_OF_DEGREES.search(rest):
        return rest[: match.start()], "min|ft" if match[1] == "'" else "s|in"
    if rest.rstrip().endswith("\\degree") and not TRIGONOMETRIC.search(rest):
        words, rest = "degrees", rest.rstrip().removesuffix("\\degree")
    if not words or not rest.strip() or UNSURE.search(words) or _CHANGES_VALUE.search(words):
        return text, None
    if _SECOND_NUMBER.match(words) or _NUMERAL.search(words):
        return text, None
    return rest.strip(), _unit_of(words)


def in_one_unit(text: str) -> tuple[str, ...]:
    r"""Return `2\text{ hours }30\text{ minutes}` as 150 minutes and as 150/60 hours; else ()."""
    found = _LARGE_AND_SMALL.fullmatch(text)
    if found is None:
        return ()
    large, small = _UNIT_OF.get(found[2].lower(), ""), _UNIT_OF.get(found[4].lower(), "")
    size = _PARTS_OF.get((large, small), 0)
    if int(found[3]) >= size:
        return ()
    total = int(found[1]) * size + int(found[3])
    return rf"{total}\text{{ {found[4]}}}", rf"\frac{{{total}}}{{{size}}}\text{{ {found[2]}}}"


def words_behind(text: str) -> str:
    """Return the words after a value without their plural s; "" without words."""
    behind = text[len(split_unit(text)[0]) :].lower()
    return " ".join(word.removesuffix("s") for word in re.findall(r"[a-z]+", behind))


def _unit_of(words: str) -> str:
    """Return the unit that words name; "" for none or several."""
    if rate := _RATE.match(words):
        per = _UNIT_OF.get(rate[1].lower())
        return f"/{per}" if per else ""
    if compound := _COMPOUND.match(words):
        parts = [_UNIT_OF.get(part.lower(), "") for part in compound.groups()]
        return "/".join(parts) if all(parts) else ""
    said = re.findall(r"[A-Za-z]+", words)
    known = {unit for word in said if (unit := _name_of(word, alone=len(said) == 1))}
    if len(known) != 1:
        return ""
    power = re.search(r"\^\s*\{?\s*(-?\d)", words)
    named = re.search(r"\b(?:(sq)|(cu))", words.lower())
    return known.pop() + (
        "^" + power[1] if power else ("^2" if named[1] else "^3") if named else ""
    )


def _name_of(word: str, *, alone: bool) -> str:
    """Return the unit that a word names. A symbol of one capital, except L, counts if `alone`."""
    if word in _SYMBOLS and (len(word) > 1 or alone) and word.lower() not in ("m", "s", "g", "l"):
        return {"mL": "ml", "Hz": "Hz", "eV": "eV"}.get(word, word)
    return _UNIT_OF.get(word.lower(), "")


def units_contradict(one: str | None, other: str | None) -> bool:
    """Return whether units differ, as cm and m, or cm^2 and cm^3. "min|ft" is either of the two.

    A missing unit or power contradicts nothing, nor does a price without its "per hour".
    """
    if not one or not other:
        return False
    (name, _, power), (other_name, _, other_power) = one.partition("^"), other.partition("^")
    if power and other_power and power != other_power:
        return True
    (top, _, per), (other_top, _, other_per) = name.partition("/"), other_name.partition("/")
    if top and other_top and not {*top.split("|")} & {*other_top.split("|")}:
        return True
    priced = bool(_CURRENCIES & {top, other_top})
    return per != other_per and bool((per and other_per) or not priced)


def _is_unit_phrase(words: str) -> bool:
    if (compound := _COMPOUND.match(words)) and compound[1].lower() in _UNIT_OF:
        return compound[2].lower() in _UNIT_OF
    parts = re.findall(r"[A-Za-z]+", words)
    return all(
        part.lower() in _PLAIN_UNITS
        or part in _PLAIN_SYMBOLS
        or len(part) >= _MIN_UNKNOWN_WORD
        or part in ("of", "per", "sq")
        for part in parts
    ) and not words.startswith("and")
