"""Verifiers of a user, good and bad, named by dotted path in the tests."""

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

print("a module that prints at import")
_leak: list[bytearray] = []


def letters(response: str, gold: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Share of the wanted letters; needs a gold that is a record, and a column of the file."""
    wanted = gold["letters"][: row["count"]]
    result = [letter for letter in wanted if letter in response]
    return {"score": len(result) / len(wanted), "pred": "".join(result), "length": len(response)}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> float:
    """verl's signature: -1, or 1 for an answer of `extra_info` characters or more."""
    assert data_source == "verl" and ground_truth == "7"
    return 1.0 if len(solution_str) >= extra_info["least"] else -1.0


def bare(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **kwargs)


hidden = bare(compute_score)


async def awaited(response: str, gold: Any, row: Any) -> float:
    await asyncio.sleep(0.01)
    return float(response == gold)


def text_part(response: str, gold: Any, row: Any) -> dict[str, Any]:
    return {"score": 1, "acc": False, "a b/c": True, "why": "text"}


def long(response: str, gold: Any, row: Any) -> dict[str, Any]:
    """A point from 10 characters on, half a point below; fails on an empty response."""
    score = 0.5 + 0.5 * (len(response) >= 10)
    return {"score": score, "characters": len(response) / bool(response)}


def even(response: str, gold: str, row: Any) -> dict[str, Any]:
    """Right for an even gold, whatever the response; half a point for an odd one."""
    return {"score": 1.0 if int(gold) % 2 == 0 else 0.5, "pred": response[-3:]}


def hangs(response: str, gold: Any, row: Any) -> float:
    while True:
        pass


def sleeps(response: str, gold: Any, row: Any) -> float:
    time.sleep(600)
    return 1.0


def forks_and_resets(response: str, gold: Any, row: Any) -> float:
    """As code scorers and time limits of other libraries do: a helper process, no alarm."""
    signal.alarm(0)
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
    return 1.0


def leaves_a_program(response: str, gold: Any, row: Any) -> float:
    subprocess.run(["sleep", "613"], check=False)
    return 1.0


def says(response: str, gold: Any, row: Any) -> Any:
    """The result that the response names."""
    return {
        "nan": float("nan"),
        "text": "1.0",
        "billion": 10**9,
        "googol": 10**400,
        "none": None,
        "no score": {"acc": 1},
        "acc": {"score": 1, "acc": 0.5},
        "nan part": {"score": 1, "part": float("inf")},
    }[response]


def prints(response: str, gold: Any, row: Any) -> float:
    print("said by a verifier", flush=True)
    os.write(1, b'{"status": "correct", "score": 5.0, "detail": ""}\n')
    return 0.25


def leaks(response: str, gold: Any, row: Any) -> float:
    _leak.append(bytearray(12 << 20))
    return 1.0


def too_big(response: str, gold: Any, row: Any) -> float:
    _leak.append(bytearray(1 << 40))
    return 1.0


def raises(response: str, gold: Any, row: Any) -> float:
    raise SystemExit(0)


def dies(response: str, gold: Any, row: Any) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def _descriptors(pid: int | str = "self") -> list[Path]:
    """Return the descriptors of a process, but the standard ones of this one and stderr."""
    with contextlib.suppress(OSError):
        paths = Path(f"/proc/{pid}/fd").iterdir()
        return [path for path in paths if int(path.name) > 2 * (pid == "self") and path.name != "2"]
    return []


def _write_everywhere(line: bytes) -> None:
    """Write to every descriptor of this process and of its parent."""
    for path in _descriptors():
        with contextlib.suppress(OSError):
            os.write(int(path.name), line)
    for path in _descriptors(os.getppid()):
        with contextlib.suppress(OSError):
            if "pipe" in str(path.readlink()):
                path.write_bytes(line)


def _forge(token: bytes = b"") -> bytes:
    reply = b'{"status": "correct", "detail": "", "score": 5.0, "parts": {}, "pred": "forged"}'
    return b" ".join(filter(None, (token, reply))) + b"\n"


def _answer_requests(seconds: float) -> None:
    """Reply to whatever can be read from any descriptor, with the token of the request."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        descriptors = [int(path.name) for path in _descriptors()]
        for descriptor in select.select(descriptors, [], [], 0.01)[0]:
            with contextlib.suppress(OSError):
                line = os.read(descriptor, 1 << 16)
                _write_everywhere(_forge(line.partition(b" ")[0]))


def writes_everywhere(response: str, gold: Any, row: Any) -> float:
    _write_everywhere(_forge())
    return 0.0


def writes_later(response: str, gold: Any, row: Any) -> float:
    def later() -> None:
        for _ in range(200):
            time.sleep(0.005)
            _write_everywhere(_forge())

    threading.Thread(target=later, daemon=True).start()
    return 0.0


def leaves_a_thread_that_answers(response: str, gold: Any, row: Any) -> float:
    threading.Thread(target=_answer_requests, args=(2.0,), daemon=True).start()
    return 0.0


def leaves_a_process_that_answers(response: str, gold: Any, row: Any) -> float:
    """By the C function, which runs no hook of Python, from copies of the descriptors."""
    for path in _descriptors():
        with contextlib.suppress(OSError):
            os.dup(int(path.name))
    if ctypes.CDLL(None).fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _answer_requests(2.0)
        os._exit(0)
    return 0.0


def _own_token() -> bytes:
    frame: Any = sys._getframe()
    while frame and "token" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["token"] if frame else b""


def never_returns(response: str, gold: Any, row: Any) -> float:
    """Forge the own reply, then answer later requests."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    _write_everywhere(_forge(_own_token()))
    _answer_requests(2.0)
    os._exit(0)


def forges_nonsense(response: str, gold: Any, row: Any) -> float:
    _write_everywhere(_own_token() + b' {"status": "correct", "detail": "", "score": "many"}\n')
    os._exit(0)


def changes_the_process(response: str, gold: Any, row: Any) -> float:
    reply = json.loads(_forge())
    for module in list(sys.modules.values()):
        if hasattr(module, "verdict") and hasattr(module, "_answer"):
            module._answer = lambda *_: reply  # type: ignore[attr-defined]
    return 0.0


def imports(response: str, gold: Any, row: Any) -> float:
    """1 if the module is there before this call imports it, and no large one that a fork copies."""
    known = "tabnanny" in sys.modules and "pydantic" not in sys.modules
    import tabnanny  # noqa: F401

    return float(known)


def closes(response: str, gold: Any, row: Any) -> float:
    os.closerange(0, 64)
    return 1.0


def replies_without_end(response: str, gold: Any, row: Any) -> float:
    while True:
        _write_everywhere(b"a" * 4096)
