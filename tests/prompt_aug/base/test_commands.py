"""The parts that all commands share: exit codes, one line on stderr, a complete help."""

import argparse

import pytest

from prompt_aug.base.commands import add_steps, make_parser, run
from prompt_aug.base.errors import UsageError, UserError


def fail(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no such key"), 1, "x.y: no such key\n"),
        (UsageError("--out is missing"), 2, "x.y: --out is missing\n"),
        (OSError("disk full"), 1, "x.y: disk full\n"),
        (KeyboardInterrupt(), 130, "x.y: interrupted; nothing is lost\n"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("x.y", lambda: fail(error), interrupted="nothing is lost") == code
    assert capsys.readouterr().err == line


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m x", "What ``it`` does.\n\n  kept as written", example="x")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    add_steps(parser)
    return parser


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--seed=x", "argument --seed"),
        ("--see=3", "unrecognized arguments: --see"),
        *((f"--steps={t}", f"--steps {t}: neither") for t in "all,2 -1 two 2, 1.5 ٣".split()),
    ],
)
def test_wrong_usage_is_told_like_other_errors(
    given: str, message: str, parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        parser.parse_args([given])
    assert error.value.code == 2
    assert capsys.readouterr().err.startswith(f"x: {message}")


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ([], None),
        (["--steps", "all"], None),
        (["--steps", "10", "20"], [10, 20]),
        (["--steps", "10,20", "0"], [10, 20, 0]),
    ],
)
def test_steps_are_written_in_one_way(
    given: list[str], steps: list[int] | None, parser: argparse.ArgumentParser
) -> None:
    assert parser.parse_args(given).steps == steps
