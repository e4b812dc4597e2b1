r"""Units of values, and the meaning of words after a number.

Units are compared, never converted. A missing unit contradicts nothing.
"""

import re

# A unit and its other names.
_UNITS = r"""
degree degrees deg | rad radian radians | mm millimeter millimeters | cm centimeter centimeters
m meter meters metre metres | km kilometer kilometers | in inch inches | ft foot feet
yd yard yards | mi mile miles | mph | am | pm | s sec secs second seconds | min mins minute minutes
h hr hrs hour hours | day days | week weeks | month months | year yr yrs years | g gram grams
kg kilogram kilograms | lb lbs pound pounds | oz ounce ounces | ton tons | dollar dollars usd
cent cents | nickel nickels | dime dimes | euro euros eur | sterling gbp | yen jpy | unit units
north | south | east | west | left | right | profit gain | loss | clockwise | counterclockwise
more increase higher older above late later up
less decrease lower younger below early earlier down
january | february | march | april | may | june | july | august | september | october | november
december | boy boys | girl girls | l liter liters | ml milliliter milliliters
gal gallon gallons | pint pints | quart quarts
"""
_UNIT_OF = {
    name: names.split()[0]
    for names in _UNITS.replace("\n", "|").split("|")
    for name in names.split()
}
# Without \text a unit has two letters or more: "2 xy" and "3 RC" are products.
_PLAIN_UNITS = {name for name in _UNIT_OF if len(name) > 1} | {"of", "per", "sq"}
_SYMBOLS = frozenset("Hz kHz MHz GHz Pa kPa eV keV MeV kW MW kJ kN".split())
_PRICES = frozenset("dollar cent euro sterling yen".split())
_TIMES = frozenset("s min h day week month year".split())  # of rates: km/h is no km
_OPPOSITES = frozenset("more less clockwise counterclockwise".split())
_IDLE = frozenset("of per sq the a in st nd rd th".split())
_MIN_UNKNOWN_WORD = 4
_MAX_SYMBOL = 3  # letters; longer unknown words ("apples") are no units
_WORD_TAIL = re.compile(r"\s*((?<![\\a-zA-Z])[A-Za-z][A-Za-z .,/'-]*(?:\^\{?-?\d\}?)?)$")
_TEXT_TAIL = re.compile(r"\s*\\text\{([^{}]*)\}\s*(\^\{?-?\d\}?)?\s*$")
_PRIMES = re.compile(r"(?<=\d)\s*('{1,2}|\")\s*$")  # 30'; not of 12 degrees 30 minutes
_PARTS_OF_DEGREES = re.compile(r"\\degree|\d\s*'+\s*\d")
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
# Words that deny, doubt or offer a choice: the text is no answer.
UNSURE = re.compile(
    r"(?<![\\a-zA-Z])(?:not|no|never|isn't|aren't|except|unknown|maybe|perhaps|possibly|either|or"
    r"|guess|unless|instead|wrong|incorrect|unsure|false|doubt|impossible|can't|cannot|couldn't"
    r"|won't|wouldn't|could|might|neither|nor|nobody|otherwise|else|alternatively|versus"
    r"|at\s+least|at\s+most|less\s+than|more\s+than|greater\s+than|and\s+(?:above|below)|twice)(?![a-zA-Z])|\?",
    re.IGNORECASE,
)
# Words that change the number before them: 5 million, 4 cubed, 3x in \text{}, 2 sinx, 5 and six.
_CHANGES_VALUE = re.compile(
    r"(?<![a-zA-Z])(?:(?:hundred|thousand|[a-z]{1,6}illion)s?|lakhs?|crores?|gross|grand|dozens?"
    r"|hal(?:f|ves)|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth"
    r"|[a-z]+(?:red|and|ion)th)s?|percent of|per ?mille|promille|pp[mb]|basis points"
    r"|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|[a-z]+ty"
    r"|squared|cubed|factorial|root|inverse|reciprocal|plus|minus|negative|below zero|point"
    r"|times(?=\s+\w)|multiplied|divided|added|doubled|tripled|halved|mod|base(?=\s+\w)"
    r"|alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|rho|pi|(?:sin|cos|tan|log|ln|sqrt)\w*"
    r"|(?<!\S)(?-i:[a-fijknp-rt-z]|[xyz]{2,3})\s*(?:\^\s*\{?-?\d\}?\s*)?$)(?![a-zA-Z-])",
    re.IGNORECASE,
)
# A digit in the words after a value, except the power of a unit (m3, m^3, s^{-1}).
_NUMERAL = re.compile(r"(?<![a-zA-Z^{\d])(?<![\^{]-)\d")


def split_unit(text: str) -> tuple[str, str | None]:
    r"""Return (the text without its unit, the unit): ("80", "cent") of `80\text{ cents}`.

    The unit is None if there is none, and "" for unknown words ("apples").
    """
    rest, words = text, ""
    while match := _TEXT_TAIL.search(rest):
        words = " ".join((match.group(1), match.group(2) or "", words))
        rest = rest[: match.start()]
    if not words and (match := _WORD_TAIL.search(rest)) and _is_unit_phrase(match.group(1)):
        words, rest = match.group(), rest[: match.start()]
    if not words and (match := _PRIMES.search(rest)) and not _PARTS_OF_DEGREES.search(rest):
        return rest[: match.start()], match[1]
    if rest.rstrip().endswith("\\degree") and not TRIGONOMETRIC.search(rest):
        words, rest = f"degrees {words}", rest.rstrip().removesuffix("\\degree")
    if not words or not rest.strip() or UNSURE.search(words) or _CHANGES_VALUE.search(words):
        return text, None
    if _NUMERAL.search(words):
        return text, None
    return rest.strip(), _unit_of(words)


def _unit_of(words: str) -> str:
    """Return the units and symbols among the words with their powers: "km h" of km/h."""
    units = []
    pattern = r"(?:\b(sq|square|cu|cubic) +)?([A-Za-z]+)|\^\s*\{?\s*(-?\d)"
    for kind, word, power in re.findall(pattern, words.replace(".", ""), re.IGNORECASE):
        if power:
            units.append(f"^{power}")
        elif unit := _UNIT_OF.get(word.lower(), word if len(word) <= _MAX_SYMBOL else ""):
            units.append(unit)
        if kind:
            units.append("^2" if kind[0] in "sS" else "^3")
    return " ".join(unit for unit in units if unit not in _IDLE)


def units_contradict(first: str | None, second: str | None) -> bool:
    """Return whether units differ, as cm and m, cm^2 and cm^3, or km and km/h.

    A missing unit or power contradicts nothing, nor does a price without its "per hour".
    """
    units, others = (first or "").split(), (second or "").split()
    if units and others and (units[0] in _OPPOSITES) != (others[0] in _OPPOSITES):
        return False  # 7 younger, 7 years
    if any(unit != another for unit, another in zip(units, others, strict=False)):
        return True
    if not units or not others or units[0] in _PRICES:
        return False
    return bool(_TIMES.intersection(max(units, others, key=len)[min(len(units), len(others)) :]))


def _is_unit_phrase(words: str) -> bool:
    parts = re.findall(r"[A-Za-z]+", words)
    rate = re.fullmatch(r"\s*[A-Za-z]+\s*/\s*[A-Za-z]+\s*", words)  # km/h, m/s
    if rate and parts[0].lower() in _UNIT_OF:
        return parts[1].lower() in _UNIT_OF
    return not words.startswith("and") and all(
        part.lower() in _PLAIN_UNITS or part in _SYMBOLS or len(part) >= _MIN_UNKNOWN_WORD
        for part in parts
    )
