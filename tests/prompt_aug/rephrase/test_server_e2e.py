"""The pipeline against a real vLLM server whose model has random weights: nothing is taken."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from rephrase_pipeline import command, lines, write_questions
from tiny_model import save_tiny
from vllm_server import serving_model

from prompt_aug.base.files import read_json
from prompt_aug.questions import make_question, read_parquet, write_parquet
from prompt_aug.rephrase import diagnose
from prompt_aug.rephrase.__main__ import main
from prompt_aug.rephrase.generate.store import Store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
]
QUESTIONS, CANDIDATES = 6, 3
N, G = 2, 2


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path | str]]:
    """Both commands run to their ends; then the server is gone."""
    base = tmp_path_factory.mktemp("served")
    save_tiny(base / "model", seed=3, positions=8192)
    questions, out = write_questions(base / "q.parquet", QUESTIONS), base / "out.parquet"
    asked = [
        make_question(
            text=f"What is {i} + 5?",
            answers=[str(i + 5)],
            source="own",
            rephrasings=(f"Add {i} and 5.", f"Find the sum of {i} and 5."),
        )
        for i in range(3)
    ]
    write_parquet(asked, base / "asked.parquet")
    with serving_model(base / "model", "tiny", base / "server.log", length=8192) as url:
        tokens = [
            "--answer-tokens",
            "48",
            "--solve",
            "tiny",
            "--answers",
            "2",
            "--agree",
            "2",
            "--solve-tokens",
            "16",
        ]
        options = command(questions, out, url, "--most", str(CANDIDATES), *tokens)
        options[options.index("scripted")] = "tiny"
        assert main(options) == 0
        diagnosis = [str(base / "asked.parquet"), str(base / "diagnosis"), "--model", "tiny"]
        diagnosis += ["--base-url", url, "--n", str(N), "--g", str(G), "--answer-tokens", "16"]
        assert diagnose.main(diagnosis) == 0
    return {"base": base, "out": out, "options": options, "diagnosis": diagnosis}


def test_everything_is_rejected_with_reasons(served: dict) -> None:
    candidates = lines(served["out"].with_name("out.parquet.candidates.jsonl"))
    assert len(candidates) == QUESTIONS * CANDIDATES
    assert {c["verdict"] for c in candidates} == {"reject"}
    assert all(c["reasons"] and c["source"]["model"] == "tiny" for c in candidates)
    assert {len(q.rephrasings) for q in read_parquet(served["out"])} == {0}
    assert (
        "Of 18 candidates: 18 reject"
        in served["out"].with_name("out.parquet.README.md").read_text()
    )


def test_a_model_that_is_never_right_gives_no_signal(served: dict) -> None:
    """G responses to the question, N x G to its rephrasings, N x G more to the question itself."""
    report = read_json(served["base"] / "diagnosis" / "diagnosis.json")
    assert report["questions"] == 3
    for name in ("original", "rephrasings", "control"):
        assert report["all_equal"][name] == [1.0, 1.0, 1.0]
    store = Store(served["base"] / "diagnosis")
    assert store.spent.requests == 3 * (1 + N + N)  # each for G responses at once
    answers = lines(served["base"] / "diagnosis" / "answers.jsonl")
    assert sum(a["status"] == "answer" for a in answers) == 3 * (N + 1) * G + 3 * N * G
    assert (served["base"] / "diagnosis" / "diagnosis.png").stat().st_size > 5_000


def test_without_the_server_the_same_commands_ask_for_nothing(
    served: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    before = served["out"].read_bytes()
    assert main(served["options"]) == 0
    assert served["out"].read_bytes() == before
    assert diagnose.main(served["diagnosis"]) == 0
    assert "questions have fewer than" in capsys.readouterr().out
