"""The process that calls the user's verifiers: `python worker.py PATHS ...`.

A parent imports the functions once, and a child of `prompt_aug.base.forks` calls them. They are the
user's code: they may write files, start processes and open sockets. Each call has a child and pipes
of its own, because a function can read all that its process holds: it could answer later requests.
What a call leaves running ends with it.

Request:  TOKEN {"function": dotted path, "response": str, "row": {...}}
Reply:    TOKEN {"status", "detail"}, and for "correct" and "wrong" {"score", "parts", "pred"}
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from prompt_aug.base import forks

VERLS = {"solution_str"}  # a parameter that only functions in verl's signature have
KEY = "recipe.reward.verifiers.DATA_SOURCE"
REMEDY = (
    "Write my_module.my_function, with the folder of my_module in the PYTHONPATH, or "
    "FILE.py:my_function, either with arguments as in (strict=True)."
)
# The module or file of a function, its name, and its arguments.
_NAMED = re.compile(r"(.*?)[.:](\w+)(?:\((.*)\))?", re.DOTALL)
LARGEST = 10.0  # of a score; a larger one is taken for a mistake
LONGEST_TEXT = 1000
OUT_OF_MEMORY = b' {"status": "error", "detail": "memory limit"}\n'  # later memory may be missing
Function = tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]
_functions: dict[str, Function] = {}


class BadResultError(ValueError):
    """A result that is no score."""


def named(path: str) -> tuple[str, str, dict[str, Any]]:
    """Return module or file, name and keyword arguments of a verifier.

    Raises ValueError or SyntaxError.
    """
    match = _NAMED.fullmatch(path)
    place, name, given = match.groups("") if match else ("", path, "")
    call: Any = ast.parse(f"f({given})", mode="eval").body
    if call.args or None in (x.arg for x in call.keywords):
        raise ValueError("arguments without a name")
    return place, name, {x.arg: ast.literal_eval(x.value) for x in call.keywords}


def load_function(path: str) -> Function:
    """Return the function of a path, with its parameters. Raises ImportError with a remedy.

    Makes its module's imports inside functions, too: otherwise each call would make them.
    """
    try:
        place, name, arguments = named(path)
        loaded = of_file(place) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(loaded, name)
        parameters = inspect.signature(function).parameters
        if not parameters.keys() & VERLS and any(map(has_verls, cells(function))):
            raise TypeError("a decorator hides its parameters. Add functools.wraps to it")
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise ImportError(f"{KEY}={path}: {type(error).__name__}: {error}. {REMEDY}") from error
    if inspect.iscoroutinefunction(function):
        importlib.import_module("asyncio")  # 8 MB, which other functions' forks need not copy
    with suppress(OSError, TypeError):  # without its source
        for node in ast.walk(ast.parse(inspect.getsource(loaded))):
            with suppress(Exception, SystemExit):  # a branch that no call may take
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        importlib.import_module(alias.name)
                elif isinstance(node, ast.ImportFrom):
                    names = [alias.name for alias in node.names]
                    __import__(node.module or "", vars(loaded), None, names, node.level)
    return functools.partial(function, **arguments), parameters


def cells(function: Any) -> list[Any]:
    """Return what a wrapper holds, such as the function that it calls."""
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def has_verls(function: Any) -> bool:
    """Return whether something is a function with verl's parameters."""
    with suppress(TypeError, ValueError):  # no function, or one of C
        return bool(inspect.signature(function).parameters.keys() & VERLS)
    return False


def of_file(path: str) -> Any:
    """Return the module of a file, under a name that hides no other module: math.py."""
    spec = importlib.util.spec_from_file_location(f"verifier_{Path(path).stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(loaded: Function, response: str, row: Mapping[str, Any]) -> Any:
    """Return the result of a function, also an async one, with our parameters or verl's."""
    gold = (row.get("reward_model") or {}).get("ground_truth")
    function, parameters = loaded
    if parameters.keys() & VERLS:
        given = {
            "data_source": row["data_source"],
            "solution_str": response,
            "ground_truth": gold,
            "extra_info": row.get("extra_info"),
        }
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            given = {name: value for name, value in given.items() if name in parameters}
        result = function(**given)
    else:
        result = function(response, gold, row)
    return importlib.import_module("asyncio").run(result) if inspect.iscoroutine(result) else result


def verdict(result: Any) -> dict[str, Any]:
    """Return the reply for a result. Raises BadResultError."""
    named = dict(result) if isinstance(result, Mapping) else {"score": result}
    if "score" not in named:
        raise BadResultError(f"no 'score' among {', '.join(map(str, named))[:100]}")
    score = number(named.pop("score"), "score")
    if abs(score) > LARGEST:
        raise BadResultError(f"a score of {score:g}, beyond +-{LARGEST:g}")
    right = number(named.pop("acc", score), "acc") >= 1
    pred = named.pop("pred", None)
    parts = {
        re.sub(r"[^\w.-]+", "_", str(name)): number(value, str(name))
        for name, value in named.items()
        if isinstance(value, int | float) or hasattr(value, "item")
    }
    return {
        "status": "correct" if right else "wrong",
        "detail": "",
        "score": score,
        "parts": parts,
        "pred": None if pred is None else str(pred)[:LONGEST_TEXT],
    }


def number(value: Any, name: str) -> float:
    """Return a finite number, also of a numpy or torch scalar. Raises BadResultError."""
    if hasattr(value, "item"):
        value = value.item()
    with suppress(OverflowError):  # a whole number that no float holds
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    raise BadResultError(f"{name}={value!r:.80}, not a finite number")


def _answer(line: bytes, limits: forks.Limits) -> dict[str, Any]:
    """Return the reply to a request. Raises MemoryError without memory for it."""
    try:
        request = json.loads(line)
        with forks.deadline(limits):
            result = call(_functions[request["function"]], request["response"], request["row"])
            return verdict(result)
    except MemoryError:
        raise
    except BadResultError as error:
        return {"status": "bad_result", "detail": str(error)}
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        return {"status": "error", "detail": f"{type(error).__name__}: {error}"[:LONGEST_TEXT]}


def _serve(requests: BinaryIO, replies: BinaryIO, limits: forks.Limits) -> None:
    # A process that a function forks must not hold the pipe: its end says that this one has died.
    os.register_at_fork(
        after_in_child=functools.partial(os.closerange, replies.fileno(), replies.fileno() + 1)
    )
    os.open(os.devnull, os.O_RDONLY)  # gets descriptor 0, the lowest free one
    os.dup2(2, 1)  # what a function prints goes to the caller's stderr
    forks.limit_process(limits)
    token, _, request = requests.readline().partition(b" ")
    reply = token + OUT_OF_MEMORY
    with suppress(MemoryError):
        reply = token + b" " + json.dumps(_answer(request, limits)).encode() + b"\n"
    with suppress(OSError, ValueError):  # closed by the function
        sys.stdout.flush()
    replies.write(reply)
    replies.flush()


def _kill_orphans() -> None:
    """End what a killed function left running: a program in an endless loop would keep its core."""
    with suppress(ChildProcessError):  # there is none, in most calls
        os.waitpid(-1, os.WNOHANG)
        listed = Path(f"/proc/self/task/{os.getpid()}/children")
        while pids := listed.read_text().split() if listed.exists() else []:
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main() -> None:
    """Serve requests from stdin until it closes; argv: paths cpu_seconds wall_seconds memory."""
    parent, replies = os.getppid(), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a module that prints at import must not write into the replies
    paths, *limits = sys.argv[1:]
    with suppress(OSError, AttributeError):  # orphans of a dead child become our children
        forks.LIBC.prctl(forks.PR_SET_CHILD_SUBREAPER, 1)
    try:
        _functions.update({path: load_function(path) for path in json.loads(paths)})
        ready = "correct"
    except ImportError as error:  # reported to the caller, which raises GraderError
        ready = str(error)
    replies.write(json.dumps({"ready": [ready]}).encode() + b"\n")
    replies.flush()
    bounds = forks.Limits(*map(float, limits))
    forks.answer_requests(parent, replies, bounds, _serve, _kill_orphans, per_child=1)


if __name__ == "__main__":
    main()
