"""Verifiers of a user, good and bad, named by dotted path in the tests."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping
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
