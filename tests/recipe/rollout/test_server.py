"""The HTTP server of verl's engine is closed to other users: vLLM's routes, without a model."""

import asyncio
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.rollout.server import Closed

pytestmark = pytest.mark.config  # imports vLLM
ELSEWHERE = "127.0.0.2"  # stands for the node's address


class Engine:
    """vLLM's engine, as far as the start of its server calls it."""

    model_config = None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache(self) -> None: ...

    async def collective_rpc(self, **_: Any) -> None: ...


def status_of(url: str, data: bytes | None) -> int:
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("closed", "prometheus", "listens"),
    [(True, False, "127.0.0.1"), (True, True, ELSEWHERE), (False, False, ELSEWHERE)],
)
def test_only_metrics_are_served(
    monkeypatch: pytest.MonkeyPatch, closed: bool, prometheus: bool, listens: str
) -> None:
    from recipe.patches.cpu.adapters import adapt_vllm_version

    adapt_vllm_version()  # first: verl looks for the distribution "vllm" when it is imported
    from verl.workers.rollout.vllm_rollout import vllm_async_server as verls
    from vllm.entrypoints.openai.cli_args import make_arg_parser

    async def no_state(_: Any, state: Any, args: Any) -> None:
        state.log_stats = False

    bases = (Closed, verls.vLLMHttpServer) if closed else (verls.vLLMHttpServer,)
    server: Any = object.__new__(type("Server", bases, {}))
    server.config = SimpleNamespace(prometheus=SimpleNamespace(enable=prometheus))
    server.model_config = SimpleNamespace(tokenizer=[], processor=None)
    server._server_address, server._dp_master_port, server.replica_rank = ELSEWHERE, 0, 1
    vllm_config = SimpleNamespace(parallel_config=SimpleNamespace())
    made = SimpleNamespace(create_engine_config=lambda **_: vllm_config)
    made.enable_log_requests = made.disable_log_stats = False
    monkeypatch.setattr(verls.AsyncEngineArgs, "from_cli_args", lambda args: made)
    monkeypatch.setattr(verls.AsyncLLM, "from_vllm_config", lambda **_: Engine())
    monkeypatch.setattr(verls, "init_app_state", no_state)
    args = make_arg_parser(verls.FlexibleArgumentParser()).parse_args([])

    async def run() -> dict[str, int]:
        await server.run_server(args)
        assert server._server_address == ELSEWHERE
        at, body = f"http://{listens}:{server._server_port}", b'{"prompt": 1, "tokens": [1]}'
        posted = ("v1/completions", "v1/load_lora_adapter", "tokenize", "invocations")
        asked = dict.fromkeys(("docs", "version", "metrics")) | dict.fromkeys(posted, body)
        calls = (asyncio.to_thread(status_of, f"{at}/{x}", data) for x, data in asked.items())
        found = dict(zip(asked, await asyncio.gather(*calls), strict=True))
        server._server_task.cancel()
        return found

    found = asyncio.run(run())
    assert found.pop("metrics") == 200
    assert (set(found.values()) == {403}) is closed
    assert closed or found["docs"] == 200
