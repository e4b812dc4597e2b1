"""Samples over real HTTP from a scripted server: bodies, retries, refusals, limits, resume."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Reply, ScriptedEndpoint, chat, serving

from eval import EvaluationError
from eval.endpoint import RemoteEngine, connect
from eval.engine import Request, request_seed
from eval.settings import Settings
from eval.sweep import main
from prompt_aug.base.files import read_json, read_lines
from prompt_aug.endpoint import EndpointError
from prompt_aug.endpoint.budget import Budget, Spending
from prompt_aug.questions import make_question, write_parquet

Script = Callable[[int, dict[str, Any]], Reply]
SETTINGS = Settings(temperature=1.0, max_tokens=8, seed=3)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prompt_aug.endpoint.client.FIRST_WAIT", 0.01)


def completion(text: str, finish: str = "stop", usage: bool = True) -> Reply:
    counts = {"usage": {"prompt_tokens": 3, "completion_tokens": 5}} if usage else {}
    return Reply({"choices": [{"text": text, "finish_reason": finish}], **counts})


def echo(number: int, body: dict[str, Any]) -> Reply:
    return completion(f"{body['prompt'][0]}: {body['seed']}")


def server_of(
    script: Script, owner: str = "vllm", **listed: str
) -> AbstractContextManager[ScriptedEndpoint]:
    """A server that lists the model `tiny`; `script` answers its completions, counted from 0."""
    return serving(script, [{"id": "tiny", "owned_by": owner, "max_model_len": 999, **listed}])


def requests(count: int, stop: tuple[str, ...] = ()) -> list[Request]:
    return [
        Request(question=i, key=(f"u{i}", "p", i % 2), prompt_token_ids=(i, 7, 7), stop=stop)
        for i in range(count)
    ]


def engine_at(
    url: str, budget: Budget | None = None, settings: Settings = SETTINGS
) -> RemoteEngine:
    server = connect(url, 4, budget or Budget(), settings)
    checkpoint = server.checkpoint("tiny", "a tokenizer", "completions")
    assert checkpoint.positions == 999
    return server.engine_for(checkpoint, "", 10, [])


def test_half_an_answer_is_requested_again() -> None:
    """Of a server that shuts down; it would be graded as wrong."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        return completion("Let me th", "abort") if number < 2 else echo(number, body)

    with server_of(script) as endpoint:
        found = [response for _, response in engine_at(endpoint.url).stream(requests(3))]
    assert [response["finish_reason"] for response in found] == ["stop"] * 3


def test_a_request_has_all_settings_and_the_seed_of_the_engine() -> None:
    budget = Budget()
    with server_of(echo) as endpoint:
        stream = engine_at(endpoint.url, budget).stream(requests(6, stop=("END",)))
        found = {request.question: response for request, response in stream}
        bodies = {body["prompt"][0]: body for body in endpoint.bodies}
    assert bodies[5] == {
        "model": "tiny", "prompt": [5, 7, 7], "max_tokens": 7, "temperature": 1.0, "top_p": 1.0,
        "seed": request_seed(3, "u5", 1), "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "stop": ["END"], "include_stop_str_in_output": True,
    }  # fmt: skip
    seed = request_seed(3, "u2", 0)
    assert found[2] == {"response": f"2: {seed}", "tokens": 5, "finish_reason": "stop"}
    assert sorted(found) == list(range(6))
    assert budget.spent == Spending(6, 18, 30) and budget.reserved == Spending()


def test_other_servers_get_no_parameter_of_vllm_and_stop_strings_are_applied_here() -> None:
    settings = SETTINGS.replaced(min_p=0.1)
    with server_of(lambda n, b: completion("a END b END", "length"), "me") as endpoint:
        engine = engine_at(endpoint.url, settings=settings)
        ((_, response),) = engine.stream(requests(1, stop=("b", "END")))
        (body,) = endpoint.bodies
    added = {"top_k", "repetition_penalty", "stop", "include_stop_str_in_output"}
    assert not added & set(body) and body["min_p"] == 0.1
    assert (response["response"], response["finish_reason"]) == ("a END", "stop")


def test_what_passes_is_retried_and_what_stays_is_named_after_the_others() -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        if body["prompt"][0] == 3:
            return Reply({"error": {"message": "out of memory"}}, 500)
        return Reply({}, 429) if number < 3 else echo(number, body)

    found = []
    with server_of(script) as endpoint:
        stream = engine_at(endpoint.url).stream(requests(5))
        with pytest.raises(EvaluationError, match=r"1 requests failed.*out of memory"):
            found.extend(stream)
    assert sorted(request.question for request, _ in found) == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (Reply({"error": {"message": "no token ids"}}, 400), EndpointError, "no token ids"),
        (Reply({}, 401), EndpointError, "refuses the key"),
    ],
)
def test_a_refusal_ends_it_at_once(reply: Reply, error: type, message: str) -> None:
    with server_of(lambda n, b: reply) as endpoint:
        with pytest.raises(error, match=message):
            list(engine_at(endpoint.url).stream(requests(50)))
        assert len(endpoint.bodies) < 10


def test_a_response_without_a_text_is_a_failure_not_an_empty_answer() -> None:
    script = server_of(lambda n, b: Reply({"choices": []}))
    with script as endpoint, pytest.raises(EvaluationError, match="not a completion"):
        list(engine_at(endpoint.url).stream(requests(1)))


def chat_command(url: str, folder: Path) -> list[str]:
    """Evaluate 20 questions, whose answer is 3, at a chat endpoint."""
    path = folder / "q.parquet"
    write_parquet(
        [make_question(text=f"{i}?", answers=("3",), source="t") for i in range(20)], path
    )
    command = ["--endpoint", url, "--api=chat", "--model=tiny", "--max-tokens=9"]
    return [*command, "--out", str(folder / "o"), f"--benchmark=q={path}"]


@pytest.mark.parametrize(
    ("text", "finish", "warned"),
    [
        ("", "stop", "20 of 20"),
        (None, "stop", "20 of 20"),
        ("I cannot", "content_filter", "20 of 20"),
        ("3", "stop", ""),
    ],
)
def test_responses_without_a_text_or_filtered_are_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, finish: str, warned: str
) -> None:
    with server_of(lambda n, b: Reply(chat([text], finish=finish))) as endpoint:
        for _ in range(2):  # the second sends nothing
            assert main(chat_command(endpoint.url, tmp_path)) == 0
            lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning")]
            assert len(lines) == bool(warned) and warned in "".join(lines)


@pytest.mark.parametrize(
    ("usage", "tokens", "spent"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5}, 5, (3, 5)),
        ({"prompt_tokens": 0, "completion_tokens": 5}, 5, (3, 8)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None, (3, 8)),
        ({"prompt_tokens": 3, "completion_tokens": -7}, None, (3, 8)),
        ({"prompt_tokens": "five", "completion_tokens": "x"}, None, (3, 8)),
        ({"prompt_tokens": 3, "completion_tokens": math.nan}, None, (3, 8)),
        (None, None, (3, 8)),
    ],
)
def test_tokens_that_a_server_does_not_report_are_unknown(
    usage: dict[str, Any] | None, tokens: int | None, spent: tuple[int, int]
) -> None:
    """The budget books the reservation for them: 3 read and 8 written."""
    budget = Budget()
    reply = Reply({"choices": [{"text": "x", "finish_reason": "stop"}], "usage": usage})
    with server_of(lambda n, b: reply) as endpoint:
        ((_, response),) = engine_at(endpoint.url, budget).stream(requests(1))
    assert response["tokens"] == tokens and budget.spent == Spending(1, *spent)


def test_the_mean_of_tokens_is_over_the_reported_counts(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return Reply(chat(["3"], usage=(1, 7)) | ({"usage": None} if number < unknown else {}))

    for unknown, mean in ((12, 7.0), (20, None)):
        folder = tmp_path / str(unknown)
        folder.mkdir()
        with server_of(script) as endpoint:
            assert main(chat_command(endpoint.url, folder)) == 0
        (scores,) = folder.glob("o/*/tiny/scores.json")
        assert read_json(scores)["benchmarks"]["q"]["mean_tokens"] == mean


def test_a_caller_that_stops_cancels_what_is_open() -> None:
    def slow(number: int, body: dict[str, Any]) -> Reply:
        return completion("x") if number == 0 else Reply({}, delay=30)

    with server_of(slow) as endpoint:
        stream = engine_at(endpoint.url).stream(requests(9))
        next(stream)
        stream.close()
        assert len(endpoint.bodies) <= 6


def test_the_command_stops_at_its_limit_and_resumes(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [make_question(text=f"{i} + 1?", answers=(str(i + 1),), source="t") for i in range(6)]
    write_parquet(made, tmp_path / "q.parquet")
    with server_of(lambda n, b: completion(r"\boxed{3}")) as endpoint:
        command = ["--endpoint", endpoint.url, "--model", "tiny", "--tokenizer", str(model)]
        command += ["--out", str(tmp_path / "o"), f"--benchmark=q={tmp_path / 'q.parquet'}"]
        command += ["--max-tokens=4", "--concurrency=2"]
        assert main([*command, "--max-requests=4"]) == 1
        assert "--max-requests 4 is reached" in capsys.readouterr().err
        assert main(command) == 0
        assert len(endpoint.bodies) == 6
        assert main(command) == 0, "all is done"
        assert len(endpoint.bodies) == 6
        assert main([*command[:3], "other", *command[4:]]) == 1
        assert "Name one of: tiny" in capsys.readouterr().err
    (scores,) = (tmp_path / "o").glob("*/tiny/scores.json")
    entry = read_json(scores)["benchmarks"]["q"]
    assert entry["accuracy"] == pytest.approx(1 / 6) and entry["model"]["endpoint"] == endpoint.url
    (head, *_), *_ = [read_lines(path) for path in scores.parent.glob("q/samples-*")]
    assert head["engine"]["owned_by"] == "vllm"


def test_other_weights_under_the_same_name_need_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `vllm serve CHECKPOINT --served-model-name policy`, restarted for each checkpoint."""
    path = tmp_path / "q.parquet"
    write_parquet([make_question(text="2 + 1?", answers=("3",), source="t")], path)
    with server_of(lambda n, b: Reply(chat([r"\boxed{3}"])), root="/ckpt/a") as endpoint:
        command = ["--endpoint", endpoint.url, "--api=chat", "--model=tiny", "--max-tokens=9"]
        command += ["--out", str(tmp_path / "o"), f"--benchmark=q={path}"]
        assert main(command) == 0
        endpoint.models[0]["root"] = "/ckpt/b"
        assert main(command) == 1
        assert "root: '/ckpt/a' -> '/ckpt/b'" in capsys.readouterr().err
        assert main([*command, "--samples=2", "--temperature=1"]) == 0, "another folder"
        del endpoint.models[0]["root"]  # a server that does not report it
        assert main(command) == 0
    assert len(endpoint.bodies) == 3


def test_a_chat_endpoint_gets_messages_and_needs_no_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [make_question(text="2 + 1?", answers=("3",), source="t", system="Be kind.")]
    write_parquet(made, tmp_path / "q.parquet")
    script = server_of(lambda n, b: Reply(chat([r"\boxed{3}"])), "me")
    with script as endpoint:
        command = ["--endpoint", endpoint.url, "--api=chat", "--model", "tiny", "--max-tokens=9"]
        command += ["--out", str(tmp_path / "o"), f"--benchmark=q={tmp_path / 'q.parquet'}"]
        assert main([*command, "--template=deepseek-r1-teacher"]) == 1
        assert "prefill" in capsys.readouterr().err
        assert main(command) == 0
        (body,) = endpoint.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "2 + 1?"},
    ]  # fmt: skip
    assert "prompt" not in body and body["max_tokens"] == 9
    (scores,) = (tmp_path / "o").glob("*/tiny/scores.json")
    assert read_json(scores)["benchmarks"]["q"]["accuracy"] == 1.0
