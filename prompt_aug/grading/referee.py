"""The part of a grade that needs algebra: pairs of formulas, asked of workers and remembered."""

import re
import threading
import time
from collections import OrderedDict
from typing import Literal

from prompt_aug.grading.arithmetic import TooBig
from prompt_aug.grading.equality import compare
from prompt_aug.grading.pool import Verdict, WorkerPool, default_pool
from prompt_aug.grading.structure import Node

Status = Literal["correct", "wrong", "no_answer", "unparsable", "timeout", "too_long", "error"]
MAX_WORKER_CALLS = 12  # a list of n formulas can need n * n of them
_CACHED = 1 << 14


class _Stop(Exception):  # noqa: N818  carries a verdict out of a comparison
    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(status)
        self.status, self.detail = status, detail


_TOWER = re.compile(
    r"\d\s*\}?\s*\^\s*[{(]*\s*-?\d+\s*\^\s*[{(]*\s*\d|\^\s*[{(]*\s*-?\d{5,}|\d{4,}\s*\)?\s*!|!\s*\)?\s*!"
)
_cache: "OrderedDict[tuple[str, ...], Verdict]" = OrderedDict()
_cache_lock = threading.Lock()


class _Referee:
    """Asks workers about one prediction; remembers what they said and how long the queue was."""

    def __init__(self, pool: WorkerPool, raw: tuple[str, str], whole: tuple[str, str]) -> None:
        self._pool, self._raw, self._whole = pool, raw, whole
        self._calls = 0
        self.waited = 0.0
        self.unreadable = ""

    def __call__(self, gold: str, pred: str) -> bool:
        if _TOWER.search(pred) and not _TOWER.search(gold):
            raise TooBig("a tower of powers or factorials")
        readings = [[_latex(gold)], [_latex(pred)]]
        if (gold, pred) == self._whole:
            readings = [
                list(dict.fromkeys([ours, raw]))
                for (ours,), raw in zip(readings, self._raw, strict=True)
            ]
        verdict = self._verdict(readings[0], readings[1])
        if verdict.status in ("timeout", "error"):
            status: Status = "timeout" if verdict.status == "timeout" else "error"
            raise _Stop(status, verdict.detail)
        if verdict.status == "unparsable":
            self.unreadable = verdict.detail
        return verdict.status == "correct"

    def _verdict(self, golds: list[str], preds: list[str]) -> Verdict:
        key = (*golds, "\0", *preds)
        with _cache_lock:
            if (known := _cache.get(key)) is not None:
                _cache.move_to_end(key)
                return known
        self._calls += 1
        if self._calls > MAX_WORKER_CALLS:
            raise _Stop("timeout", "too many formulas to compare")
        start = time.perf_counter()
        verdict = self._pool.verify([golds], preds)
        self.waited += time.perf_counter() - start - verdict.seconds
        if verdict.final:
            with _cache_lock:
                _cache[key] = verdict
                while len(_cache) > _CACHED:
                    _cache.popitem(last=False)
        return verdict


def _latex(text: str) -> str:
    return text.replace("\\degree", "^{\\circ}").strip()


def judge_with_workers(
    answer: str, pred: Node, undecided: list[tuple[Node, str]]
) -> tuple[Status, str, float]:
    """(status, detail, seconds spent waiting for a worker) of what the exact path left open."""
    failed: tuple[Status, str] = ("wrong", "")
    waited = 0.0
    for gold, raw in undecided:
        referee = _Referee(default_pool(), (raw.strip(), answer), (gold.text, pred.text))
        try:
            if compare(gold, pred, referee):
                return "correct", "", waited + referee.waited
            if referee.unreadable and failed[0] == "wrong":
                failed = ("unparsable", referee.unreadable)
        except _Stop as stop:
            failed = (stop.status, stop.detail)
        except TooBig as error:
            failed = ("too_long", f"a number too large to write down ({error})")
        waited += referee.waited
    return *failed, waited
