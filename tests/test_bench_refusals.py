"""scripts/bench_refusals.py: what its own rows expect is what the commands do."""

import importlib.util
from pathlib import Path

import pytest
from load_script import load_script

OTHERS = load_script("bench_refusals").OTHERS


@pytest.mark.parametrize(("module", "arguments", "code", "words"), OTHERS, ids=str)
def test_the_other_commands_refuse_as_their_row_says(
    module: str,
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.find_spec(module)
    package = spec is not None and spec.submodule_search_locations is not None
    command = importlib.import_module(f"{module}.__main__" if package else module)
    try:
        assert command.main(arguments) == code
    except SystemExit as error:  # argparse
        assert error.code == code
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
