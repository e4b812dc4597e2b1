"""The alphabet of `grading_reader`: tokens, functions, letters and the values letters get."""

import cmath
import hashlib
import re
from collections.abc import Callable

from prompt_aug.grading.arithmetic import Unsupported

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[a-zA-Z]+)|(?P<letter>[a-zA-Z]'*)"
    r"|(?P<sign>[-+*/^_(){}\[\]!]))"
)
GREEK = frozenset(
    rf"\{name}"
    for name in [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
    ]
)
FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    r"\sin": cmath.sin,
    r"\cos": cmath.cos,
    r"\tan": cmath.tan,
    r"\cot": lambda x: 1 / cmath.tan(x),
    r"\sec": lambda x: 1 / cmath.cos(x),
    r"\csc": lambda x: 1 / cmath.sin(x),
    r"\arcsin": cmath.asin,
    r"\arccos": cmath.acos,
    r"\arctan": cmath.atan,
    r"\sinh": cmath.sinh,
    r"\cosh": cmath.cosh,
    r"\tanh": cmath.tanh,
    r"\ln": cmath.log,
    r"\log": cmath.log,
    r"\exp": cmath.exp,
}


def tokens_of(text: str) -> list[str]:
    """The tokens of a formula; raises `Unsupported` at the first sign that is none."""
    tokens, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unsupported(text[position])
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def letter_value(name: str, point: int) -> complex:
    """A fixed positive number in [0.4, 1.4) for a letter, another at every point."""
    digest = hashlib.blake2b(f"{point}:{name}".encode(), digest_size=6).digest()
    return complex(0.4 + int.from_bytes(digest, "big") / 2**48)
