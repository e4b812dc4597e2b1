"""The sandboxed process in which math-verify reads model text: `python worker.py`.

A parent imports and warms math-verify; a child of `prompt_aug.base.forks` parses and compares. An
audit hook refuses what a hole in a parser could reach: compiling text, writing files, processes,
sockets.

Request:  TOKEN {"gold": str, "pred": str}, LaTeX without delimiters.
Reply:    TOKEN {"status": "correct" | "wrong" | "unparsable" | "timeout" | "error", "detail": str}
"""

import importlib
import json
import os
import pkgutil
import random
import re
import resource
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, BinaryIO

from prompt_aug.base.forks import Limits, answer_requests, deadline, limit_process

MAX_RECURSION = 3000
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED_EVENTS = (
    "subprocess.", "socket.", "shutil.", "pty.", "ctypes.dlopen",
    "os.exec", "os.fork", "os.posix_spawn", "os.system", "os.kill", "os.chmod", "os.truncate",
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
)  # fmt: skip

# Parsed once in the parent: fills ANTLR's prediction tables, which every fork then shares.
_WARM_UP = (
    (r"\frac{1}{2}+2\pi x^{2}-x_{1}\sqrt{3}", r"0.5-\sqrt{3}x_{1}+2x^{2}\pi"),
    (r"y=2x+1", r"2x-y+1=0"),
    (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", r"\begin{pmatrix}1 & 2\\3 & 5\end{pmatrix}"),
    (r"\sin(x)+\cos^2 x-\log_{2} 8", r"\tan x+\ln x+e^{-x}"),
    (r"(-\infty,1)\cup(3,\infty)", r"x^{2}-4x+3>0"),
)
# Packages whose modules sympy imports when it first needs them. In a child such an import would
# count as the answer's CPU time.
_LAZY_PACKAGES = (
    "assumptions calculus concrete functions integrals logic matrices polys sets series simplify"
    " solvers"
).split()


class RefusedOperation(RuntimeError):  # noqa: N818
    """An operation inside the sandbox that grading never needs."""


# sympy compiles this code for polynomials, from the number of letters alone; it has no calls.
_MONOMIALS = re.compile(
    r"def monomial_[a-z]+\([ABk, ]+\):\n"
    r"(?:\b(?:[abr]\d+|[ABk]|return|if|else|None)\b|[\s()+*,=<>0:-])*"
)
_refused: list[str] = []  # by the current request; sympy may swallow the exception


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "compile":
        # Lazy imports compile files (named by path); eval, exec and lambdify compile "<...>".
        source = args[0].decode() if isinstance(args[0], bytes) else str(args[0])
        named = isinstance(args[1], str) and not args[1].startswith("<")
        if not named and not _MONOMIALS.fullmatch(source):
            _refuse("compiling text")
    elif event == "open":
        mode, flags = args[1], args[2]
        if (isinstance(flags, int) and flags & _WRITE_FLAGS) or (mode and set(mode) & set("wax+")):
            _refuse("opening a file for writing")
    elif event.startswith(_REFUSED_EVENTS):
        _refuse(event)


def _refuse(what: str) -> None:
    _refused.append(what)
    raise RefusedOperation(what)


def _confine(limits: Limits) -> None:
    """Permanently limit this process to what grading needs."""
    limit_process(limits)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.dont_write_bytecode = True  # an import that `_import_all` missed must not try to write
    sys.addaudithook(_audit)


def _exact_number(_reader: object, text: str) -> Any:
    """Return a number token as an exact rational: 0.5 is 1/2, and 0.333333 is not 1/3.

    Replaces `sympy.Number(text)`, which calls exec and eval, in both places of latex2sympy.
    """
    from sympy import Rational

    return Rational(*Fraction(text.replace(",", "")).as_integer_ratio())


def _polynomial(letter: Any, expression: Any) -> Callable[[int], int]:
    """Return a polynomial with whole coefficients as a function of whole numbers."""
    from sympy import Poly

    value = Poly(expression, letter)
    return lambda number: int(value(number))


def _parse(text: str, real: bool) -> Any | None:
    """Return all of `text` as one formula; None if any part cannot be read.

    `math_verify.parse` would look for a formula inside: `< \\frac{3}{4}` would be 3/4. With
    `real`, letters are real numbers: for sympy a real x and another x are two letters. The reader
    takes i for a letter where there are others; here it is the imaginary unit.
    """
    from latex2sympy2_extended import latex2sympy
    from sympy import Eq, Expr, I

    try:
        value = latex2sympy(text, is_real=real, normalization_config=None)
        if isinstance(value, Expr | Eq):  # an inequality of i has an index
            value = value.subs({x: I for x in value.free_symbols if x.name == "i"})
        return value
    except (MemoryError, RecursionError, RefusedOperation):
        raise
    except Exception:  # sandboxed; the reader raises anything. What it was refused is in `_refused`
        return None


def _is_infinite(value: Any) -> bool:
    """Return whether a formula, or one of several, is infinite; False for sums and limits.

    math-verify finds some infinities equal to a number: 1^1\\infty^{10} to 2\\pi.
    """
    from sympy import Basic, Expr, FiniteSet, Integral, Limit, Product, S, Sum, Tuple

    if isinstance(value, (Tuple, FiniteSet)):
        return any(map(_is_infinite, value.args))
    infinities: tuple[Basic, ...] = (S.Infinity, S.NegativeInfinity, S.ComplexInfinity, S.NaN)
    if not isinstance(value, Expr) or value.has(Sum, Product, Integral, Limit):
        return False
    return value.has(*infinities) and value.doit().has(*infinities)


def _both_unsolvable(wanted: Any, target: Any) -> bool:
    """Return whether `wanted` has no real solution and is not a multiple of `target`."""
    from sympy import Eq, S, simplify, solveset

    if not (isinstance(wanted, Eq) and isinstance(target, Eq) and len(wanted.free_symbols) == 1):
        return False
    (letter,) = wanted.free_symbols
    if solveset(wanted, letter, S.Reals) is not S.EmptySet:
        return False
    ratio = simplify((wanted.lhs - wanted.rhs) / (target.lhs - target.rhs))
    return bool(ratio.free_symbols)


def _same_where_real(wanted: Any, target: Any) -> bool:
    r"""Return whether two formulas are real at the same values of a letter, and equal there.

    `\sqrt{5/y}` and `\sqrt5/\sqrt y` are, although they differ at complex numbers. Only one letter
    may be below a root or in a logarithm.
    """
    from sympy import Dummy, Expr, Interval, Pow, S, Union, log, oo, simplify
    from sympy.calculus.util import continuous_domain

    if not (isinstance(wanted, Expr) and isinstance(target, Expr)):
        return False
    difference, positive = wanted - target, Dummy(positive=True)
    partial = (p for p in difference.atoms(log, Pow) if not (p.is_Pow and p.exp.is_integer))
    letters = {letter for part in partial for letter in part.free_symbols}
    if len(letters) != 1:
        return False
    (letter,) = letters
    domain, other = (continuous_domain(value, letter, S.Reals) for value in (wanted, target))
    pieces = domain.args if isinstance(domain, Union) else (domain,)
    if domain != other or domain == S.Reals or not all(isinstance(p, Interval) for p in pieces):
        return False
    for low, high in ((piece.start, piece.end) for piece in pieces):
        inside = (low + high * positive) / (1 + positive)
        if oo in (high, -low):
            inside = low + positive if high == oo else high - positive
        if simplify(difference.subs(letter, inside)) != 0:
            return False
    return True


def judge(gold: str, pred: str) -> dict[str, str]:
    """Return the verdict on one pair as a reply.

    math-verify's own timeouts are off: they cannot interrupt a C call, and overwrite the deadline.
    """
    from math_verify import verify
    from math_verify.parser import should_treat_as_complex
    from sympy import Expr, Integer, Symbol

    random.seed(0)  # sympy draws random points; the same pair must always get the same grade
    real = not any(map(should_treat_as_complex, (gold, pred)))
    if (target := _parse(pred, real)) is None:
        return {"status": "unparsable", "detail": "prediction"}
    if (wanted := _parse(gold, real)) is None:
        return {"status": "wrong", "detail": "gold is not symbolic"}
    try:
        if isinstance(wanted, Symbol) and len(wanted.name) == 1 and isinstance(target, Expr):
            # math-verify compares a lone letter by its name; x + 0 and x^2/x are x all the same
            wanted, target = wanted + 1, target + 1
        if _is_infinite(target) != _is_infinite(wanted):
            return {"status": "wrong", "detail": "infinite"}
        size = abs(wanted.evalf()) if isinstance(wanted, Expr) and wanted.is_number else 1
        # The bound of `verify`, 1e-15, is absolute. The lower bound excludes unsimplified zeros.
        if 1e-90 < size < 1e-3 and isinstance(target, Expr):
            wanted, target = Integer(1), target / wanted
        equal = verify(
            wanted, target, timeout_seconds=0, allow_set_relation_comp=True, raise_on_error=True
        )
        equal = equal or _same_where_real(wanted, target)
        if equal and _both_unsolvable(wanted, target):
            return {"status": "wrong", "detail": "two equations without a solution"}
    except (MemoryError, RecursionError, RefusedOperation):
        raise  # not an answer of the algebra but a limit of the sandbox
    except Exception as error:  # sympy raises anything
        return {"status": "wrong", "detail": f"not comparable: {type(error).__name__}"}
    return {"status": "correct" if equal else "wrong", "detail": ""}


def _answer(line: bytes, limits: Limits) -> dict[str, str]:
    request = json.loads(line)
    _refused.clear()
    try:
        with deadline(limits):
            verdict = judge(request["gold"], request["pred"])
        if _refused and verdict["status"] != "correct":
            return {"status": "error", "detail": f"refused: {_refused[0]}"}
        return verdict
    except RecursionError:
        return {"status": "unparsable", "detail": "nested too deep"}
    except MemoryError:
        return {"status": "error", "detail": "memory limit"}
    except Exception as error:  # one pair must not fail those after it
        return {"status": "error", "detail": f"{type(error).__name__}: {error}"[:200]}


def _serve(requests: BinaryIO, replies: BinaryIO, limits: Limits) -> None:
    _confine(limits)
    for line in requests:
        token, _, request = line.partition(b" ")
        replies.write(token + b" " + json.dumps(_answer(request, limits)).encode() + b"\n")
        replies.flush()


def _import_all() -> None:
    """Import the modules that sympy would import while it answers."""
    for name in _LAZY_PACKAGES:
        package = importlib.import_module(f"sympy.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not {"tests", "benchmarks"} & set(module.name.split(".")):
                importlib.import_module(module.name)


def main() -> None:
    """Serve requests from stdin until it closes; argv: cpu_seconds wall_seconds memory_bytes."""
    parent, limits = os.getppid(), Limits(*map(float, sys.argv[1:]))
    sys.setrecursionlimit(MAX_RECURSION)
    try:
        import latex2sympy2_extended.latex2sympy2 as reader
        import sympy.core.evalf as sums

        sums.lambdify = _polynomial  # of a hypergeometric sum; the original one compiles text
        reader._Latex2Sympy.parse_number = _exact_number
        reader.Number = partial(_exact_number, None)
        _import_all()
        warm = [judge(gold, pred)["status"] for gold, pred in _WARM_UP]
    except Exception as error:  # reported to the caller, which raises GraderError
        warm = [f"{type(error).__name__}: {error}"]
    sys.stdout.buffer.write(json.dumps({"ready": warm}).encode() + b"\n")
    sys.stdout.flush()
    answer_requests(parent, sys.stdout.buffer, limits, _serve)


if __name__ == "__main__":
    main()
