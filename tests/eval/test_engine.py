"""Checks before an engine starts, its parameters, and one engine for all checkpoints.

Samples over real HTTP from a scripted server: bodies, retries, refusals, limits, resume.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, reference, session
from made_tokenizers import qwen_base
from scripted_endpoint import Reply, ScriptedEndpoint, chat, serving
from tiny_model import save_tiny
from transformers import AutoTokenizer

from eval.ask.benchmarks import LoadedBenchmark
from eval.ask.checkpoints import Checkpoint, from_model
from eval.ask.endpoint import RemoteEngine, connect
from eval.ask.engine import Engine, Request, precision, request_seed
from eval.ask.questions import Questions, signature
from eval.ask.session import Session, reference_log_probabilities
from eval.ask.settings import Settings
from eval.sweep import main
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import read_json, read_lines, write_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.endpoint import Budget, EndpointError, Spending
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.questions import make_question, write_parquet


@pytest.mark.parametrize(
    ("dtype", "multiplies", "computed"),
    [("auto", True, "bfloat16"), ("auto", False, "float32"), ("bfloat16", False, "bfloat16")],
)
def test_precision_on_a_cpu_is_that_of_the_weights_if_it_multiplies_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: Any, multiplies: bool, computed: str
) -> None:
    monkeypatch.setattr("eval.ask.engine.gpus_here", lambda: 0)
    monkeypatch.setattr("eval.ask.engine.multiplies_bfloat16", lambda: multiplies)
    write_json(tmp_path / "config.json", {"dtype": "bfloat16"})
    assert precision(str(tmp_path), Settings(dtype=dtype)) == computed


def test_a_hub_id_has_the_precision_of_its_weights_and_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("eval.ask.engine.gpus_here", lambda: 0)
    monkeypatch.setattr("prompt_aug.base.tokenizers._is_local", lambda _: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for commit, dtype in (("a" * 40, "float32"), ("b" * 40, "bfloat16")):  # the second is pushed
        (tmp_path / "models--me--model" / "refs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "models--me--model" / "refs" / "main").write_text(commit)
        files = tmp_path / "models--me--model" / "snapshots" / commit
        write_json(files / "config.json", {"torch_dtype": dtype})
        assert from_model("me/model").identity == {"model": "me/model", "commit": commit}
        monkeypatch.setattr("eval.ask.engine.multiplies_bfloat16", lambda: True)
        assert precision("me/model", Settings()) == dtype


def test_yarn_multiplies_the_context(tmp_path: Path) -> None:
    start, own = Path("examples/toy/start"), {"files": "x"}
    model = str(shutil.copytree(start, tmp_path / "model"))
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = read_json(start / "config.json") | {"max_position_embeddings": 1024}
    questions = [make_question(text="1 + 1?", answers=["2"], source="s")]
    given = {"size": 1, "samples": 1, "sha256": "0"}
    benchmark = LoadedBenchmark(name="one", path="p", questions=tuple(questions), **given)
    for scaling, context in (({}, 1024), ({"rope_scaling": rope}, 4096)):
        write_json(tmp_path / "model" / "config.json", config | scaling)
        asked = Questions(Settings(max_tokens=5000), [benchmark])
        asked.fit(Checkpoint(step=None, model=model, identity=own), load_tokenizer(model))
        assert asked.context == context


@pytest.mark.config  # imports vllm
def test_a_response_ends_as_in_training_and_a_stop_string_may_be_a_special_token(
    tmp_path: Path,
) -> None:
    pytest.importorskip("vllm")
    tokenizer = qwen_base(tags=True)
    tokenizer.save_pretrained(tmp_path)
    engine, sampling = Engine(str(tmp_path), Settings(), 64), list[Any]()
    texts = ["<think>1</think>2<|im_end|>\n<|im_start|>user\n3", "<answer>2</answer>. So"]
    done = [
        SimpleNamespace(
            request_id=str(number),
            finished=True,
            outputs=[SimpleNamespace(token_ids=tokenizer.encode(text), finish_reason="stop")],
        )
        for number, text in enumerate(texts, start=1)
    ]
    add = lambda name, prompt, parameters: sampling.append(parameters)  # noqa: E731
    engine._llm = SimpleNamespace(llm_engine=SimpleNamespace(add_request=add, step=lambda: done))
    requests = [
        Request(question=0, key=("u", "p", i), prompt_token_ids=(1,), stop=stop)
        for i, stop in enumerate([(), ("</answer>",)])
    ]
    result = [response["response"] for _, response in engine.stream(requests)]
    assert result == ["<think>1</think>2", "<answer>2</answer>"]
    assert [p.detokenize for p in sampling] == [False, True]
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
    assert all({*ends} <= {*p.stop_token_ids} and not p.skip_special_tokens for p in sampling)


# ------------------------------------------------------------------------- one engine for all

SETTINGS = Settings(max_tokens=8, dtype="float32")
PROMPTS = [(1, 2, 3), (4, 5, 6, 7)]


def serve(held: Session, name: str, kind: str = "k", context: int = 64) -> None:
    checkpoint = Checkpoint(step=None, model=name, identity={"files": name})
    held.engine_for(checkpoint, kind, context, PROMPTS)


def test_one_start_for_all_checkpoints() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        for name in ("a", "b", "b", "c"):
            serve(held, name)
            assert engine.served == name
        assert (held.starts, held.swaps) == (1, 2)
    assert engine.stops == 1


def test_weights_that_are_exported_anew_to_the_same_place_restart_the_engine() -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS) as held:
        for files in ("a", "a", "b"):
            checkpoint = Checkpoint(step=None, model="m", identity={"files": files})
            held.engine_for(checkpoint, "k", 64, PROMPTS)
        assert (held.starts, held.swaps, engine.stops) == (2, 0, 1)


@pytest.mark.parametrize(
    ("kind", "context", "reload"), [("another", 64, True), ("k", 65, True), ("k", 64, False)]
)
def test_another_architecture_a_longer_context_or_no_reload_restarts(
    kind: str, context: int, reload: bool
) -> None:
    engine = FakeEngine(lambda _: "")
    with session(engine, SETTINGS.replaced(reload=reload)) as held:
        serve(held, "a")
        serve(held, "b", kind, context)
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
        assert engine.stops == 1  # the first engine is shut down before the second starts


def cannot_reload(model: str) -> None:
    raise NotImplementedError("reload_weights")


def no_numbers(prompts: list[tuple[int, ...]]) -> list[list[float]]:
    return [[float("nan")] * (len(ids) - 1) for ids in prompts]


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("load", lambda model: None),  # without an error, and changes nothing
        ("load", cannot_reload),
        ("log_probabilities", no_numbers),
    ],
)
def test_a_reload_that_is_not_verified_restarts_the_engine(
    method: str, broken: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine(lambda _: "")
    setattr(engine, method, broken)
    with session(engine, SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert (held.starts, held.swaps, engine.served) == (2, 0, "b")
    assert "restarted" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "swaps"), [(1.5e-4, 1), (1e-3, 0)])
def test_the_limit_is_relative_to_the_distance_at_the_start(error: float, swaps: int) -> None:
    """At the start 1e-4 nats from transformers: 3 x 1e-4 + 1e-5 are allowed after a reload."""

    class Rounding(FakeEngine):
        def log_probabilities(self, prompts):  # type: ignore[no-untyped-def]
            away = 1e-4 if self.served == "a" else error
            return [[x + away for x in row] for row in reference(self.served, prompts, "float32")]

    with session(Rounding(lambda _: ""), SETTINGS) as held:
        serve(held, "a")
        serve(held, "b")
        assert held.swaps == swaps


def test_a_reload_is_verified_in_float32_if_the_processor_has_no_bfloat16_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def computed(dtype: str, multiplies: bool) -> list[list[float]]:
        monkeypatch.setattr("eval.ask.session.multiplies_bfloat16", lambda: multiplies)
        return reference_log_probabilities(str(tmp_path), PROMPTS, dtype)

    save_tiny(tmp_path, 3)
    exact = computed("float32", True)
    assert computed("bfloat16", False) == exact != computed("bfloat16", True)


def test_a_signature_covers_what_an_engine_reads(model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    generation = {"eos_token_id": 1}

    def of(**changes: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return signature(str(tmp_path), tokenizer)

    first = of()
    assert of(transformers_version="9", _name_or_path="x", dtype="bfloat16") == first
    assert of(max_position_embeddings=2048) != first
    generation["eos_token_id"] = 2
    assert (second := of()) != first
    tokenizer.chat_template = "another prompt"
    assert of() != second
    assert signature("some/hub-id", tokenizer) == "some/hub-id"


# ------------------------------------------------------------------------- endpoint

Script = Callable[[int, dict[str, Any]], Reply]
AT_SERVER = Settings(temperature=1.0, max_tokens=8, seed=3)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("eval.ask.endpoint.load_tokenizer", lambda _: qwen_base())


def completion(text: str, finish: str = "stop") -> Reply:
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    return Reply({"choices": [{"text": text, "finish_reason": finish}], "usage": usage})


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
    url: str, budget: Budget | None = None, settings: Settings = AT_SERVER
) -> RemoteEngine:
    server = connect(url, 4, budget or Budget(), settings)
    checkpoint = server.checkpoint("tiny", "a tokenizer")
    assert checkpoint.positions == 999
    return server.engine_for(checkpoint, "", 10, [])


def test_another_chat_template_of_the_tokenizer_is_another_model(tmp_path: Path) -> None:
    qwen_base().save_pretrained(tmp_path)
    with server_of(echo) as endpoint:
        server, seen = connect(endpoint.url, 4, Budget(), AT_SERVER), []
        for template in ("{{ messages }}", "{{ messages }}", "{{ messages[0] }}"):
            (tmp_path / "chat_template.jinja").write_text(template)
            seen.append(server.checkpoint("tiny", str(tmp_path)).identity)
    assert seen[0] == seen[1] != seen[2]


def test_a_request_has_all_settings_and_the_seed_of_the_engine() -> None:
    budget = Budget()
    with server_of(echo) as endpoint:
        stream = engine_at(endpoint.url, budget).stream(requests(6, stop=("END",)))
        result = {request.question: response for request, response in stream}
        bodies = {body["prompt"][0]: body for body in endpoint.bodies}
    assert bodies[5] == {
        "model": "tiny", "prompt": [5, 7, 7], "max_tokens": 7, "temperature": 1.0, "top_p": 1.0,
        "seed": request_seed(3, "u5", 1), "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
        "stop": ["END"], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "stop_token_ids": [0, 1, 2, 3],
    }  # fmt: skip
    seed = request_seed(3, "u2", 0)
    assert result[2] == {"response": f"2: {seed}", "tokens": 5, "finish_reason": "stop"}
    assert sorted(result) == list(range(6))
    assert budget.spent == Spending(6, 18, 30) and budget.reserved == Spending()


@pytest.mark.parametrize("text", ["a END b END", "a END"])  # the second: on its last token
def test_other_servers_get_no_parameter_of_vllm_and_stop_strings_are_applied_here(
    text: str,
) -> None:
    settings = AT_SERVER.replaced(min_p=0.1)
    with server_of(lambda n, b: completion(text, "length"), "me") as endpoint:
        engine = engine_at(endpoint.url, settings=settings)
        ((_, response),) = engine.stream(requests(1, stop=("b", "END")))
        (body,) = endpoint.bodies
    added = {"top_k", "repetition_penalty", "stop", "stop_token_ids", "skip_special_tokens"}
    assert not added & set(body) and body["min_p"] == 0.1
    assert (response["response"], response["finish_reason"]) == ("a END", "stop")


def test_llama_cpp_gets_every_parameter_by_its_name() -> None:
    """Its own values are top_k=40 and min_p=0.05."""
    with server_of(echo, "llamacpp") as endpoint:
        list(engine_at(endpoint.url).stream(requests(1)))
        (body,) = endpoint.bodies
    assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (-1, 0.0, 1.0)


def test_a_response_ends_at_the_end_of_its_turn() -> None:
    text = "<think>1</think> 2"
    reply = completion(f"{text}<|im_end|>\n<|im_start|>user\n3", "length")
    with server_of(lambda n, b: reply) as endpoint:
        ((_, response),) = engine_at(endpoint.url).stream(requests(1))
    assert (response["response"], response["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize(("named", "kept"), [("MAX_TOKENS", "length"), ("end_turn", "stop")])
def test_finish_reasons_have_one_name(named: str, kept: str) -> None:
    with server_of(lambda n, b: completion("2", named)) as endpoint:
        ((_, response),) = engine_at(endpoint.url).stream(requests(1))
    assert response["finish_reason"] == kept


def test_what_passes_is_retried_and_what_stays_is_named_after_the_others() -> None:
    """Half an answer, of a server that shuts down, would be graded as wrong."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        if body["prompt"][0] == 3:
            return Reply({"error": {"message": "out of memory"}}, 500)
        if number < 6:
            return completion("Let me th", "abort") if number < 3 else Reply({}, 429)
        return echo(number, body)

    result = []
    with server_of(script) as endpoint:
        stream = engine_at(endpoint.url).stream(requests(5))
        with pytest.raises(UserError, match=r"1 requests failed.*out of memory"):
            result.extend(stream)
    assert sorted(request.question for request, _ in result) == [0, 1, 2, 4]
    assert {response["finish_reason"] for _, response in result} == {"stop"}


@pytest.mark.parametrize(
    ("refusal", "message"), [("no token ids", "no token ids"), ("context length", "8 equal fail")]
)
def test_a_refusal_ends_it_at_once(refusal: str, message: str) -> None:
    reply = Reply({"error": {"message": refusal}}, 400)
    with server_of(lambda n, b: reply) as endpoint:
        with pytest.raises(EndpointError, match=message):
            list(engine_at(endpoint.url).stream(requests(50)))
        assert len(endpoint.bodies) < 8 + 4


def command_of(url: str, folder: Path, count: int = 20) -> list[str]:
    """Evaluate questions, whose answer is 3, at an endpoint."""
    made = [make_question(text=f"{i}?", answers=("3",), source="t") for i in range(count)]
    write_parquet(made, folder / "q.parquet")
    command = ["--endpoint", url, "--model=tiny", "--tokenizer=any", "--max-tokens=9"]
    return [*command, "--out", str(folder / "o"), f"--benchmark=q={folder}/q.parquet"]


def scores_in(folder: Path) -> dict[str, Any]:
    (scores,) = folder.glob("o/*/tiny/scores.json")
    return read_json(scores)["benchmarks"]["q"]


@pytest.mark.parametrize(
    ("reply", "status", "accuracy"),
    [
        (Reply({"choices": []}), "no_choices", 0.75),
        (Reply(chat([""], finish="content_filter")), "content_filter", 0.75),
        (Reply({"error": {"message": "prompt is too long"}}, 400), "prompt_too_long", 0.75),
        (Reply(chat(["3"], finish="eos_token")), "", 1.0),
    ],
)
def test_a_question_without_a_whole_answer_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: Reply, status: str, accuracy: float
) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        return reply if "1?" in qwen_base().decode(body["prompt"]) else Reply(chat(["3"]))

    with server_of(script) as endpoint:
        for _ in range(2):  # the second sends nothing
            assert main(command_of(endpoint.url, tmp_path, 4)) == 0
            uid = make_question(text="1?", answers=("3",), source="t").uid
            named = f"1 responses: {status} (questions {uid})"
            assert (named in capsys.readouterr().err) == bool(status)
        assert len(endpoint.bodies) == 4
    entry = scores_in(tmp_path)
    assert entry["accuracy"] == accuracy
    assert entry["status_rates"].get(status, 0) == 1 - accuracy


@pytest.mark.parametrize("url", ["http://me:secret@localhost/v1", "http://localhost/v1?a=secret"])
def test_an_address_with_a_secret_is_rejected(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command_of(url, tmp_path)) == 2
    error = capsys.readouterr().err
    assert "--endpoint: has a user name" in error and "secret" not in error
    with pytest.raises(UsageError, match="OPENAI_BASE_URL"):
        Endpoint(base_url=url)


COUNTS = [0, 10**400, 2**53 + 1, -1, 5.0, True, "5", [5], None]


@pytest.mark.parametrize(
    "usage", [*({"prompt_tokens": n, "completion_tokens": n} for n in COUNTS), [3, 5], None]
)
def test_tokens_that_a_server_does_not_report_are_unknown(usage: dict[str, Any] | None) -> None:
    """The budget books the reservation for them: 3 read and 8 written."""
    budget = Budget()
    reply = Reply({"choices": [{"text": "x", "finish_reason": "stop"}], "usage": usage})
    with server_of(lambda n, b: reply) as endpoint:
        ((_, response),) = engine_at(endpoint.url, budget).stream(requests(1))
    assert response["tokens"] is None and budget.spent == Spending(1, 3, 8)


def test_a_list_of_models_has_known_types_and_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"id": "a", "max_model_len": 10**400, "root": ["x"], "owned_by": {}},
        {"id": "b", "max_model_len": "999", "root": "/w", "more": [1]},
        {"id": "adapter", "parent": "base"},
        {"id": "base", "max_model_len": 7},
        *({"id": i} for i in ("\x1b[31mred", "a\nb", 3, None)),
    ]
    with serving(echo, rows) as endpoint:
        server = connect(endpoint.url, 4, Budget(), AT_SERVER)
    assert server.models == {
        "a": {"id": "a", "max_model_len": None},
        "b": {"id": "b", "root": "/w", "max_model_len": None},
        "adapter": {"id": "adapter", "parent": "base", "max_model_len": 7},
        "base": {"id": "base", "max_model_len": 7},
    }
    monkeypatch.setattr("prompt_aug.endpoint.client.LIST_SECONDS", 0.2)
    with serving(echo, Reply({}, delay=20)) as endpoint, pytest.raises(UserError, match=r"0\.2 s"):
        connect(endpoint.url, 4, Budget(), AT_SERVER)


def test_a_caller_that_stops_cancels_what_is_open() -> None:
    def slow(number: int, body: dict[str, Any]) -> Reply:
        return completion("x") if number == 0 else Reply({}, delay=30)

    with server_of(slow) as endpoint:
        stream = engine_at(endpoint.url).stream(requests(9))
        next(stream)
        stream.close()
        assert len(endpoint.bodies) <= 6


def test_the_command_stops_at_its_limit_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_of(lambda n, b: completion(rf"\boxed{{{n}}}")) as endpoint:
        command = command_of(endpoint.url, tmp_path, 6)
        assert main([*command, "--max-requests=4", "--concurrency=2"]) == 1
        assert "--max-requests 4 is reached" in capsys.readouterr().err
        for _ in range(2):
            assert main(command) == 0 and len(endpoint.bodies) == 6
        assert main([*command, "--model=other"]) == 1
        assert "Name one of: tiny" in capsys.readouterr().err
    entry = scores_in(tmp_path)
    assert entry["accuracy"] == pytest.approx(1 / 6) and entry["model"]["endpoint"] == endpoint.url
    (head, *_), *_ = [read_lines(path) for path in tmp_path.glob("o/*/tiny/q/samples-*")]
    assert head["engine"]["owned_by"] == "vllm"


def test_other_weights_under_the_same_name_need_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `vllm serve CHECKPOINT --served-model-name policy`, restarted for each checkpoint."""
    with server_of(lambda n, b: Reply(chat(["3"])), root="/ckpt/a") as endpoint:
        command = command_of(endpoint.url, tmp_path, 1)
        assert main(command) == 0
        endpoint.models[0]["root"] = "/ckpt/b"
        assert main(command) == 1
        assert "root: '/ckpt/a' -> '/ckpt/b'" in capsys.readouterr().err
        assert main([*command, "--samples=2", "--temperature=1"]) == 0, "another folder"
    assert len(endpoint.bodies) == 3


def test_a_server_that_moved_is_not_asked_again(tmp_path: Path) -> None:
    """As of a job that another node takes up; vLLM states the folder of its model."""
    asked = []
    for _ in range(2):
        with server_of(lambda n, b: Reply(chat(["3"])), root="/ckpt/a") as endpoint:
            assert main(command_of(endpoint.url, tmp_path, 2)) == 0
            asked.append(len(endpoint.bodies))
    assert asked == [2, 0]
