"""Requests to an endpoint: real HTTP, with what goes wrong on it."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.base.files import FileError, write_lines
from prompt_aug.endpoint import Budget, BudgetError, EndpointError, Spending
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.rephrase.stage import Request, Sampling, Stage, Store

PROMPT = "Rephrase: {question}"
SAMPLING = Sampling(model="scripted", max_tokens=50)
Script = Callable[[int, dict[str, Any]], Reply]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backoff starts at half a second; a Retry-After of the server stays."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.02)
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")


def requests(count: int, samples: int = 1) -> list[Request]:
    stage = Stage("test", Path("unused"), Endpoint(), PROMPT, SAMPLING)
    return [stage.request(f"u{i}", f"question {i}", samples=samples) for i in range(count)]


def ask(
    folder: Path, url: str, wanted: list[Request], budget: Budget | None = None, **settings: Any
) -> Store:
    settings = {"concurrency": 4, "retries": 2, "timeout": 5.0} | settings
    stage = Stage("test", folder, Endpoint(base_url=url, **settings), PROMPT, SAMPLING)
    stage.send(wanted, budget or Budget())
    return stage.store


def answer(number: int, body: dict[str, Any]) -> Reply:
    prompt = body["messages"][0]["content"]
    return Reply(chat([f"{prompt} / {number}.{i}" for i in range(body.get("n") or 1)]))


def always(reply: Reply) -> Script:
    return lambda number, body: reply


def test_responses_are_kept_with_their_source_and_requested_once(tmp_path: Path) -> None:
    with serving(answer) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(5, samples=3))
        assert [body["n"] for body in endpoint.bodies] == [3] * 5
        assert endpoint.headers[0]["authorization"] == "bearer a-secret-key"
        again = ask(tmp_path, endpoint.url, requests(5, samples=3)[::-1])
        assert len(endpoint.bodies) == 5, "a second run requests nothing, in any order"
        more = ask(tmp_path, endpoint.url, requests(6, samples=5))
        assert sorted(body["n"] for body in endpoint.bodies[5:]) == [2, 2, 2, 2, 2, 5]
    assert len(store.answers) == len(again.answers) == 15
    assert len(more.answers) == 30
    record = next(iter(store.answers.values()))
    assert record["text"].startswith("Rephrase: question")
    assert {"model", "temperature", "max_tokens", "prompt", "uid", "key"} <= record.keys()
    assert sum(r.get("used", [0, 0, 0])[1] for r in store.answers.values()) == 500
    assert "a-secret-key" not in (tmp_path / "answers.jsonl").read_text()


def test_half_a_character_becomes_a_question_mark(tmp_path: Path) -> None:
    with serving(always(Reply(chat(["half: \ud83d"])))) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(1))
    assert [record["text"] for record in store.answers.values()] == ["half: ?"]


@pytest.mark.parametrize("change", [{"sample": "0"}, {"text": None}, {"used": 1}, {"key": []}])
def test_a_stored_record_of_another_kind_is_named_with_its_line(
    change: dict[str, Any], tmp_path: Path
) -> None:
    good = {"key": "k", "sample": 0, "text": "x"}
    write_lines(tmp_path / "answers.jsonl", [good, good | change])
    with pytest.raises(FileError, match=r"answers\.jsonl, line 2"):
        Store(tmp_path)


def test_responses_of_other_weights_under_the_same_name_are_not_mixed(tmp_path: Path) -> None:
    """A server may move; vLLM reports the folder of its weights as `root`."""

    def served(root: str, samples: int) -> int:
        with serving(answer, [{"id": "scripted", "root": root}]) as endpoint:
            return len(ask(tmp_path, endpoint.url, requests(2, samples)).answers)

    assert served("/ckpt/a", 1) == 2
    assert served("/ckpt/a", 2) == 4, "at another port"
    with pytest.raises(EndpointError, match=r"has responses of /ckpt/a.*serves /ckpt/b"):
        served("/ckpt/b", 3)
    with serving(answer) as endpoint:
        assert len(ask(tmp_path, endpoint.url, requests(2, 3)).answers) == 6, "without a list"
        assert endpoint.headers[0]["accept-encoding"] == "identity"


def test_at_most_the_allowed_number_is_in_flight(tmp_path: Path) -> None:
    with serving(always(Reply(chat(["x"]), delay=0.02))) as endpoint:
        ask(tmp_path, endpoint.url, requests(12), concurrency=3)
        assert endpoint.most_in_flight == 3


def test_trouble_that_passes_is_retried_and_booked_as_what_it_cost(tmp_path: Path) -> None:
    """429 with and without Retry-After, then 500 and 503."""
    trouble = [Reply({}, 429, {"retry-after": "0.03"}), *(Reply({}, s) for s in (429, 500, 503))]
    budget = Budget()
    with serving(lambda n, b: trouble[n] if n < 4 else answer(n, b)) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(1), budget, retries=4, concurrency=1)
        assert len(endpoint.bodies) == 5
    assert len(store.answers) == 1
    assert budget.spent == Spending(3, 100, 20), "a 429 is no request, a refused one no tokens"
    assert budget.reserved == Spending()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply({}, status=500), "status 500"),
        (Reply(hang_up=True), "ProtocolError"),
        (Reply(chat(["x" * 500]), cut=100), "ProtocolError"),
        (Reply(chat(["x"]), delay=2.0), "no response in 0.6 s"),
        (Reply(b"{broken"), "{broken"),
        (Reply({"choices": None}), 'not a completion: {"choices": null}'),
        (Reply([1]), "[1]"),
        (Reply(chat(["half an"], finish="abort")), "half an answer"),
        (Reply(chat(["x"]), pause=0.1), "no response in 0.6 s"),
        (Reply({}, 307, {"location": "http://127.0.0.1:1/v1"}), "status 307"),
        (Reply(chat(["x" * 200_000])), "over 91136 bytes"),  # 65,536 and 512 for each of 50 tokens
        (Reply(b" " * 1000, endless=True), "over 91136 bytes"),
        (Reply(b" " * 1000, status=503, endless=True), "status 503"),
        (Reply(gzip.compress(b"0" * 10**7), headers={"content-encoding": "gzip"}), "gzip"),
    ],
)
def test_a_failure_is_recorded_and_retried_by_the_next_run(
    reply: Reply, error: str, tmp_path: Path
) -> None:
    with serving(always(reply)) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(2), timeout=0.6, retries=1)
    assert not store.answers
    assert len(store.failures) == 2
    assert all(error in record["error"] for record in store.failures.values())
    assert all("text" not in record for record in store.failures.values())
    with serving(answer) as endpoint:
        assert len(ask(tmp_path, endpoint.url, requests(2)).answers) == 2


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply({"choices": [], "prompt_feedback": {"block_reason": "SAFETY"}}), "no_choices"),
        (Reply({"choices": [{"message": None, "finish_reason": "stop"}]}), "no_content"),
        (Reply(chat([""], finish="content_filter")), "content_filter"),
        (Reply(chat([""], finish=None)), "no_finish_reason"),
        (Reply({"error": {"message": "maximum context length"}}, 400), "prompt_too_long"),
        (Reply({}, 413), "prompt_too_long"),
        (Reply({"error": {"message": "flagged by moderation"}}, 403), "content_filter"),
    ],
)
def test_a_question_without_an_answer_is_named_and_not_requested_again(
    reply: Reply, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = requests(3, samples=2)

    def script(number: int, body: dict[str, Any]) -> Reply:
        return reply if "question 1" in str(body) else answer(number, body)

    with serving(script) as endpoint:
        ask(tmp_path, endpoint.url, wanted)
        sent = len(endpoint.bodies)
        store = ask(tmp_path, endpoint.url, wanted)
        assert len(endpoint.bodies) == sent <= 4
    assert f"2 responses: {status} (questions u1)" in capsys.readouterr().err
    assert [store.answered(r)[0]["text"] != "" for r in wanted] == [True, False, True]
    assert not store.failed(wanted)


def test_texts_that_are_cut_off_among_whole_ones_end_nothing(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        whole = "question 0" in str(body)
        return Reply(chat(["x"] if whole else ["<think>"], finish="stop" if whole else "length"))

    with serving(script) as endpoint:
        assert len(ask(tmp_path, endpoint.url, requests(12), concurrency=1).answers) == 12


def test_a_model_with_another_name_of_the_limit_gets_it_by_that_name(tmp_path: Path) -> None:
    """As OpenAI's reasoning models. Together's end of an answer is "eos"."""
    why = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."

    def script(number: int, body: dict[str, Any]) -> Reply:
        if "max_tokens" in body:
            return Reply({"error": {"message": why}}, status=400)
        if "temperature" in body and "top_p" in body:  # as Claude
            return Reply({"error": {"message": "`temperature` and `top_p` cannot both be"}}, 400)
        assert body["max_completion_tokens"] == SAMPLING.max_tokens and "temperature" in body
        return Reply(chat(["x"] * body["n"], finish="eos"))

    with serving(script) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(3, samples=2), concurrency=1)
        assert [body["n"] for body in endpoint.bodies] == [2] * 5
    assert [record["finish"] for record in store.answers.values()] == ["stop"] * 6


def test_a_refused_request_and_an_empty_text_are_final(tmp_path: Path) -> None:
    """An empty text is no candidate, but a (wrong) response to a question.

    A refused request is final for this run: the next one may find a server that takes it.
    """

    def script(number: int, body: dict[str, Any]) -> Reply:
        if "question 0" in str(body):
            return Reply({"error": {"message": "no tools"}}, status=400)
        return Reply(chat(["x", "", "y"]))

    wanted = requests(3, samples=3)
    with serving(script) as endpoint:
        ask(tmp_path, endpoint.url, wanted[1:], concurrency=1)
        assert [body["n"] for body in endpoint.bodies] == [3] * 2
        store = ask(tmp_path, endpoint.url, wanted, concurrency=1)
        assert [body["n"] for body in endpoint.bodies] == [3, 3, 3, 1, 2, 1, 1]
        sent = len(endpoint.bodies)
        again = ask(tmp_path, endpoint.url, wanted[1:])
        assert len(endpoint.bodies) == sent, "an empty text is not requested again"
        assert [again.lost(request) for request in wanted] == [[0, 1, 2], [], []]
    with serving(answer) as endpoint:
        assert len(ask(tmp_path, endpoint.url, wanted).answered(wanted[0])) == 3
    texts = [[answer["text"] for answer in store.answered(request)] for request in wanted]
    assert texts == [[], ["x", "", "y"], ["x", "", "y"]]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({}, status=401), "OPENAI_API_KEY"),
        (Reply({"error": {"code": "insufficient_quota"}}, status=429), "quota"),
        (Reply({"error": {"message": "Limit: 50 requests per day"}}, status=429), "per day"),
        (Reply({"error": {"message": "no model scripted"}}, status=404), "no model scripted"),
    ],
)
def test_what_no_retry_mends_ends_the_run_at_once(
    reply: Reply, message: str, tmp_path: Path
) -> None:
    with serving(lambda n, b: reply if n >= 3 else answer(n, b)) as endpoint:
        with pytest.raises(EndpointError, match=message) as caught:
            ask(tmp_path, endpoint.url, requests(50), concurrency=2)
        assert len(endpoint.bodies) <= 3 + 2, "at most what was in flight"
    assert "secret" not in str(caught.value)
    assert len(Store(tmp_path).answers) == 3, "completed requests are kept"


KEY = "sk-A/b+c=d.e_f~1234"


def _escaped(text: str) -> bytes:
    return "".join(f"\\u{ord(character):04x}" for character in text).encode()


@pytest.mark.parametrize(
    "reply",
    [
        *(Reply({"error": {"message": f"Bearer {KEY}"}}, status) for status in (400, 401, 500)),
        *(Reply(f"<p>{'x' * 140}{KEY}".encode(), status) for status in (200, 404, 502)),
        Reply(b'{"error": {"message": "%s"}}' % _escaped(KEY), 403),
        Reply(chat([f"the key is {KEY}"], model=KEY, finish=KEY)),
        Reply({"choices": KEY}),
        Reply({}, headers={f"x {KEY}": "y"}),  # no header
        Reply({}, 301, {"location": f"http://127.0.0.1:1/{KEY}"}),
        Reply({}, headers={"content-encoding": KEY}),
    ],
)
def test_the_key_is_neither_printed_nor_stored(
    reply: Reply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    message = ""
    with serving(always(reply)) as endpoint:
        try:
            ask(tmp_path, endpoint.url, requests(1), retries=0)
        except EndpointError as error:
            message = str(error)
        assert KEY.lower() in endpoint.headers[0]["authorization"]
    path = tmp_path / "answers.jsonl"
    texts = [message, *capfd.readouterr(), path.read_text() if path.exists() else ""]
    assert any(texts) and KEY[:12] not in json.dumps(texts)


@pytest.mark.parametrize(
    "key", ["sk-1234567\n", "sk-12345\r\nx: y", "sk 1234567", "clé-1234567", "a'b"]
)
def test_a_key_that_is_none_is_refused_by_its_variable(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    refused = pytest.raises(EndpointError, match="OPENAI_API_KEY: ")
    with serving(answer) as endpoint, refused as caught:
        ask(tmp_path, endpoint.url, requests(1))
    assert key.strip() not in str(caught.value) and not endpoint.bodies


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:1", "ftp://x", "a:b:c"]
)
def test_this_machine_needs_no_proxy_and_an_unusable_one_is_named(
    proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    with serving(answer) as endpoint:
        for host in ("127.0.0.1", "localhost"):
            url = endpoint.url.replace("127.0.0.1", host)
            assert len(ask(tmp_path / host, url, requests(1)).answers) == 1
    try:
        store = ask(tmp_path, "http://192.0.2.1/v1", requests(1), retries=0)
        (line,) = [record["error"] for record in store.failures.values()]
    except EndpointError as error:
        line = str(error)
    assert "http_proxy, all_proxy" in line and "\n" not in line


@pytest.mark.parametrize(("limits", "allowed"), [((7, None), 7), ((None, 400), 3)])
@pytest.mark.parametrize("concurrency", [1, 5])
def test_a_budget_holds(limits: Any, allowed: int, concurrency: int, tmp_path: Path) -> None:
    """120 tokens an answer: of 400 tokens 3 are sure, as the 4th might need 56 + 20."""
    with serving(always(Reply(chat(["x"])))) as endpoint:
        for _ in range(2):
            store = Store(tmp_path)
            budget = Budget(*limits, spent=store.spent)
            with pytest.raises(BudgetError, match="max-"):
                ask(tmp_path, endpoint.url, requests(20), budget, concurrency=concurrency)
            sent = len(endpoint.bodies)
    store = Store(tmp_path)
    assert allowed - 1 <= sent <= allowed + concurrency - 1
    assert len(store.answers) == sent
    assert store.spent == Spending(sent, 100 * sent, 20 * sent)


@pytest.mark.parametrize(
    ("reply", "spent"),
    [(Reply(hang_up=True), (3, 3 * 50)), (Reply({}, status=500), (3, 0)), (None, (0, 0))],
)
def test_a_failure_is_booked_as_what_it_may_have_cost(
    reply: Reply | None, spent: tuple[int, int], tmp_path: Path
) -> None:
    """A server that hangs up may have charged for it; a closed port did not."""
    budget = Budget(max_requests=3)
    with serving(always(reply or Reply())) as endpoint:
        url = endpoint.url if reply else "http://127.0.0.1:1/v1"
        store = ask(tmp_path, url, requests(1), budget, retries=2)
    assert (budget.spent.requests, budget.spent.tokens_out) == spent
    assert budget.reserved == Spending()
    assert Store(tmp_path).spent == budget.spent, "the next run counts it"
    assert len(store.failures) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        *((Reply({"error": {"message": "out of memory"}}, n), "out of memory") for n in (400, 500)),
        (Reply(chat([""])), "an empty text.*reasoning_content"),
        (Reply(chat([""], finish="length")), "an empty text.*--answer-tokens"),  # all reasoning
        (Reply({"error": {"message": "context length is 9"}}, 400), "context length is 9"),
        (Reply(chat(["<think> Okay"], finish="length")), "cut off.*--answer-tokens"),
    ],
)
def test_equal_failures_in_a_row_end_the_run(reply: Reply, message: str, tmp_path: Path) -> None:
    with serving(always(reply)) as endpoint:
        with pytest.raises(EndpointError, match=rf"8 equal failures.*{message}"):
            ask(tmp_path, endpoint.url, requests(50), retries=0, concurrency=2)
        assert len(endpoint.bodies) <= 8 + 2


def test_failures_that_differ_in_ids_counts_and_delays_are_equal(tmp_path: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        line = f"Used {number}, try again in {number}ms (request req_{number:08x})"
        return Reply({"error": {"message": line}}, status=429)

    with serving(script) as endpoint, pytest.raises(EndpointError, match="8 equal failures"):
        ask(tmp_path, endpoint.url, requests(50), retries=0, concurrency=1)
    assert len(endpoint.bodies) == 8


@pytest.mark.parametrize("delay", ["Please try again in 250ms.", "Please retry in 0.25s."])
def test_a_delay_in_the_message_is_waited_for(delay: str, tmp_path: Path) -> None:
    times: list[float] = []

    def script(number: int, body: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        return answer(number, body) if number else Reply({"error": {"message": delay}}, 429)

    with serving(script) as endpoint:
        assert len(ask(tmp_path, endpoint.url, requests(1)).answers) == 1
    assert times[1] - times[0] >= 0.25


@pytest.mark.parametrize(
    ("finish", "kept"),
    [
        *((name, "stop") for name in ("STOP", "end", "end_turn", "eos", "stop_sequence", None)),
        *((name, "length") for name in ("max_tokens", "MAX_TOKENS", "Length")),
    ],
)
def test_finish_reasons_of_all_servers_have_one_name(
    finish: str | None, kept: str, tmp_path: Path
) -> None:
    with serving(always(Reply(chat(["x"], finish=finish)))) as endpoint:
        store = ask(tmp_path, endpoint.url, requests(1))
    assert [record["finish"] for record in store.answers.values()] == [kept]


def test_an_unknown_finish_reason_ends_the_run_and_keeps_no_text(tmp_path: Path) -> None:
    """Such a text may be cut off; among others whose ends are known it is kept, and rejected."""
    with serving(always(Reply(chat(["x"], finish="Done")))) as endpoint:
        with pytest.raises(EndpointError, match="finish_reason=done"):
            ask(tmp_path, endpoint.url, requests(50), concurrency=1)
        assert len(endpoint.bodies) == 1
    with serving(lambda n, b: Reply(chat(["x"], finish="done" if n else "stop"))) as endpoint:
        assert len(ask(tmp_path, endpoint.url, requests(5), concurrency=1).answers) == 5


def test_a_text_in_parts_is_joined_and_one_in_the_reasoning_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """Mistral's parts; and a server whose parser takes the whole text for reasoning."""
    parts = [{"type": "thinking", "thinking": []}, *({"type": "text", "text": t} for t in "ab")]
    for content, texts in (("", []), (None, []), (parts, ["ab"])):
        reply = chat([""])
        reply["choices"][0]["message"] |= {"content": content, "reasoning_content": "A question?"}
        with serving(always(Reply(reply))) as endpoint:
            store = ask(tmp_path, endpoint.url, requests(1))
            assert len(endpoint.bodies) == 1
        assert [record["text"] for record in store.answers.values()] == texts


def test_a_server_that_takes_one_sample_and_no_seed(tmp_path: Path) -> None:
    """As llama.cpp, with status 500; a sample of its own has its own seed where it may."""

    def one(number: int, body: dict[str, Any]) -> Reply:
        if body["n"] > 1:
            return Reply({"error": {"message": "Only one completion choice is allowed"}}, 500)
        if "seed" in body and "question 0" in str(body):
            return Reply({"error": {"message": "Extra inputs: seed"}}, 422)
        return answer(number, body)

    with serving(one) as endpoint:
        store = ask(tmp_path / "a", endpoint.url, requests(2, 3), retries=0, concurrency=1)
        assert [body["n"] for body in endpoint.bodies] == [3] + [1] * 7
    assert len(store.answers) == 6 and not store.failures
    with serving(one) as endpoint:
        ask(tmp_path / "b", endpoint.url, requests(2, 3)[1:], retries=0)
        assert [body.get("seed") for body in endpoint.bodies] == [None, 0, 1, 2]


def test_tokens_of_reasoning_are_in_the_total(tmp_path: Path) -> None:
    """As xAI's, whose completion tokens lack them."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 329}
    budget = Budget()
    with serving(always(Reply(chat(["x"]) | {"usage": usage}))) as endpoint:
        ask(tmp_path, endpoint.url, requests(1), budget)
    assert budget.spent == Spending(1, 10, 319)
