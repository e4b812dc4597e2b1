"""Progress without a terminal: lines in time, estimates by hand, nested stages."""

import io
import time

from prompt_aug.base.progress import Progress


def test_the_estimate_by_hand() -> None:
    now = [100.0]
    bar = Progress("teach", 40, "updates", out=io.StringIO(), clock=lambda: now[0])
    assert bar.line() == "teach: 0/40 updates, 0 s so far"
    now[0] = 110.0
    bar.update()
    bar.update(3)
    assert bar.line() == "teach: 4/40 updates, 10 s so far, 1 min 30 s left"  # 36 of 2.5 s


def test_a_stage_that_counts_nothing_says_that_it_lives_and_an_inner_one_speaks_alone() -> None:
    out = io.StringIO()
    with Progress("start the engine", out=out, every=0.02):
        _wait_for(out, "start the engine: ")
        with Progress("grade", 3, "samples", out=out, every=0.02) as inner:
            inner.update()
            _wait_for(out, "grade: 1/3 samples")
            before = out.getvalue()
            _wait_for(out, "grade: 1/3 samples", len(before) + 1)
            assert "engine" not in out.getvalue()[len(before) :]


def _wait_for(out: io.StringIO, text: str, start: int = 0) -> None:
    end = time.monotonic() + 20
    while text not in out.getvalue()[start:]:
        assert time.monotonic() < end, out.getvalue()
        time.sleep(0.005)
