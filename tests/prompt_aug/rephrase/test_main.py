"""The command from questions to rephrasings, against a scripted endpoint."""

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rephrase_pipeline import GOOD, Pipeline, command, rephrase, write_questions
from scripted_endpoint import Reply, chat, serving

from prompt_aug.base.files import read_json, write_lines
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.questions import read_parquet, write_parquet
from prompt_aug.rephrase import pipeline
from prompt_aug.rephrase.__main__ import main

FIRST = [form.format(name="Ada", a=10, b=30) for form in GOOD]  # good candidates of question 0


def test_from_questions_to_rephrasings(tmp_path: Path) -> None:
    made = Pipeline(tmp_path, 4)
    assert made.run(rephrase, "--n", "2") == 0
    assert made.run(rephrase, "--n", "2") == 0
    assert made.sent == 4, "there are enough"
    before, after = read_parquet(made.questions), made.written()
    assert [(q.uid, q.answers) for q in after] == [(q.uid, q.answers) for q in before]
    assert {len(q.rephrasings) for q in after} == {2}
    assert set(after[0].rephrasings) <= set(FIRST)
    candidates = made.candidates()
    assert len(candidates) == 16
    for candidate in candidates:
        assert {"key", "sample", "model", "prompt"} <= candidate["source"].keys()
        assert (candidate["verdict"] == "accept") == (not candidate["reasons"])
    ranked = sorted((c for c in candidates if c["rank"] is not None), key=lambda c: c["rank"])
    assert tuple(c["text"] for c in ranked if c["uid"] == after[0].uid) == after[0].rephrasings
    manifest = read_json(Path(f"{made.out}.manifest.json"))
    assert manifest["verdicts"]["accept"] + manifest["verdicts"]["reject"] == 16
    assert manifest["filters"]["numbers: reject"] == 4, "the edit"


def test_a_question_in_several_rows_is_asked_once(tmp_path: Path) -> None:
    made = Pipeline(tmp_path, 1)
    write_parquet(read_parquet(made.questions) * 16, made.questions)
    assert made.run(rephrase, "--n", "2") == 0
    assert made.sent == 1 and {len(q.rephrasings) for q in made.written()} == {2}


def test_a_candidate_that_is_a_benchmark_question_is_refused(tmp_path: Path) -> None:
    made = Pipeline(tmp_path, 1)
    write_lines(bench := tmp_path / "bench.jsonl", [{"question": FIRST[0]}])
    assert made.run(rephrase, "--against", f"b={bench}") == 0
    listed = made.candidates()
    assert [c["verdict"] for c in listed][:3] == ["reject", "accept", "accept"]
    assert listed[0]["reasons"][0]["filter"] == "overlap"


def slowly(delay: float) -> Callable[[int, dict[str, Any]], Reply]:
    return lambda number, body: replace(rephrase(number, body), delay=delay)


def start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "prompt_aug.rephrase", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@pytest.mark.config
def test_kills_repeat_nothing_that_was_finished_and_end_in_the_same_file(tmp_path: Path) -> None:
    """Killed twice at random moments after the first request of a run, then run to its end."""
    count, concurrency, kills, rng = 120, 4, 2, random.Random(0)
    questions = write_questions(tmp_path / "q.parquet", count)
    killed, plain = tmp_path / "killed.parquet", tmp_path / "plain.parquet"
    with serving(slowly(0.02)) as endpoint:
        arguments = command(questions, killed, endpoint.url, "--concurrency", str(concurrency))
        for _ in range(kills):
            before, process = len(endpoint.bodies), start(arguments)
            while len(endpoint.bodies) == before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        process = start(arguments)
        process.communicate()
        assert process.returncode == 0
        assert count <= len(endpoint.bodies) <= count + kills * concurrency
        assert main(command(questions, plain, endpoint.url)) == 0
    assert plain.read_bytes() == killed.read_bytes()


def arithmetic(number: int, body: dict[str, Any]) -> Reply:
    """Rephrase and solve: the answer is the sum of the numbers."""
    prompt = body["messages"][0]["content"]
    if "boxed" in prompt:
        total = sum(int(word) for word in re.findall(r"\d+", prompt))
        return Reply(chat([f"{way}: \\boxed{{{total}}}" for way in "abcd"[: body["n"]]]))
    return rephrase(number, body)


def test_a_solver_finds_what_the_filters_missed_and_a_stop_loses_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the filters blind, the edited candidate (sample 3) is left to the solver."""
    made = Pipeline(tmp_path, 3)
    for name in ("compare_numbers", "compare_formulas", "compare_words"):
        monkeypatch.setattr(f"prompt_aug.rephrase.checks.{name}", lambda *_: iter(()))
    assert made.run(arithmetic, "--solve", "m", "--n", "3") == 0
    listed = made.candidates()
    edited = [c for c in listed if c["source"]["sample"] == 3]
    assert [c["verdict"] for c in edited] == ["doubtful"] * 3
    assert {r["filter"] for c in edited for r in c["reasons"]} == {"solver"}
    good = [c for c in listed if c["source"]["sample"] < 3]
    assert {c["verdict"] for c in good} == {"accept"}
    assert good[0]["source"]["solver"]["right"] == 4
    # The budget ends while further candidates are requested: what was paid for counts.
    more = ["--n", "5", "--most", "10", "--max-requests", "1"]
    assert made.run(arithmetic, "--solve", "m", *more) == 3
    edited = [c for c in made.candidates() if c["source"]["sample"] == 3]
    assert [c["verdict"] for c in edited] == ["doubtful"] * 3
    assert {len(q.rephrasings) for q in made.written()} == {3}


def test_candidates_are_requested_until_there_are_enough(tmp_path: Path) -> None:
    """The model's first candidates of question 0 are all faulty, those of the others are good."""
    made, sent = Pipeline(tmp_path, 3), list[dict[str, Any]]()

    def script(number: int, body: dict[str, Any]) -> Reply:
        sent.append(body)
        reply = rephrase(number, body | {"n": 5})
        texts = [choice["message"]["content"] for choice in reply.body["choices"]]
        first = "Ada has 10 apples" in body["messages"][0]["content"].rpartition("Question: ")[2]
        faulty = first and sum(b["messages"] == body["messages"] for b in sent) < 2
        return Reply(chat([texts[3] if faulty else texts[i % 3] for i in range(body["n"])]))

    arguments = ["--most", "12"]
    assert made.run(script, *arguments) == 0
    wanted = sorted(body["n"] for body in sent)
    assert wanted[:3] == [6, 6, 6], "three for each, at an acceptance of one half"
    assert len(wanted) == 4, "one question needs more"
    assert made.run(script, *arguments) == 0
    assert made.run(script, *arguments, "--limit", "1") == 0
    assert made.sent == 4
    assert {len(q.rephrasings) for q in made.written()} == {3}


def test_a_failure_of_any_round_or_stage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Question 0 fails in the first round, the others need a second one."""
    made, calls = Pipeline(tmp_path, 3), iter(range(100))

    def script(_: int, body: dict[str, Any]) -> Reply:
        number, prompt = next(calls), body["messages"][0]["content"]
        if "boxed" in prompt or "Ada has 10" in prompt.rpartition("Question: ")[2]:
            return Reply({"error": {"message": f"request {number}"}}, status=500)
        texts = [c["message"]["content"] for c in rephrase(0, body | {"n": 5}).body["choices"]]
        return Reply(chat([texts[3] if number < 4 else texts[0]] * body["n"]))

    monkeypatch.setattr(pipeline, "Endpoint", partial(Endpoint, per_request=2, retries=0))
    more = "--n 1 --most 6 --concurrency 1".split()
    assert made.run(script, *more) == 4
    assert "2 responses failed: 2 times status 500: request 1" in capsys.readouterr().err
    assert made.run(script, *more, "--solve", "s") == 4
    assert "times status 500" in capsys.readouterr().err
    assert len(made.written()[1].rephrasings) == 1
    assert made.run(rephrase, *more) == 0, "run again"
