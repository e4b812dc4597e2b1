"""scripts/bench_sampling.py: what it refuses before it loads a model."""

import sys
from pathlib import Path

import pytest
from load_script import load_script

from recipe.run.folder import RunFolder

MAIN = load_script("bench_sampling").main


@pytest.mark.parametrize(
    ("exported", "asked", "named"),
    [
        ([3], ["--step", "4"], "--step [4]"),
        ([3], ["--step", "3", "4"], "--step [3, 4]"),
        ([0], [], "no_run"),  # the start model alone, of which there is no copy
        ([], [], "no_run"),
    ],
)
def test_what_is_not_exported_is_refused(
    exported: list[int],
    asked: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "no_run"
    for step in exported:
        (RunFolder(run).exports / f"step_{step}").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["bench_sampling.py", str(run), *asked])
    with pytest.raises(SystemExit) as error:
        MAIN()
    assert error.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert named in message
    assert message.endswith(f"are {[s for s in exported if s]}")
