"""The engine's HTTP server, as verl starts it: closed to other users of the machine."""

import asyncio
import importlib
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from verl.workers.rollout.utils import run_uvicorn

from recipe.rollout.server import Closed

ELSEWHERE = "127.0.0.2"  # stands for the node's address


class Vllm:
    """verl's `run_server` with an application as vLLM builds it."""

    def __init__(self, prometheus: bool) -> None:
        self.config = SimpleNamespace(prometheus=SimpleNamespace(enable=prometheus))
        self._server_address = ELSEWHERE

    async def run_server(self, args: Any) -> None:
        app = FastAPI()
        for path in ("/v1/load_lora_adapter", "/invocations", "/metrics"):
            app.add_api_route(path, lambda: "served")
        for name in args.middleware:
            module, _, member = name.rpartition(".")
            app.add_middleware(getattr(importlib.import_module(module), member))
        self.listens = self._server_address
        self.port, self.task = await run_uvicorn(app, args, self._server_address)


class Server(Closed, Vllm):
    pass


@pytest.mark.parametrize(
    ("kind", "prometheus", "listens", "status"),
    [
        (Server, False, "127.0.0.1", 403),
        (Server, True, ELSEWHERE, 403),
        (Vllm, False, ELSEWHERE, 200),  # verl's own
    ],
)
def test_only_metrics_are_served(
    kind: type[Vllm], prometheus: bool, listens: str, status: int
) -> None:
    def get(address: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    async def run() -> None:
        server = kind(prometheus)
        await server.run_server(SimpleNamespace(middleware=[]))
        assert (server.listens, server._server_address) == (listens, ELSEWHERE)
        for path in ("v1/load_lora_adapter", "invocations", "docs", "metrics"):
            found = await asyncio.to_thread(get, f"{listens}:{server.port}/{path}")
            assert found == (200 if path == "metrics" else status), path
        server.task.cancel()

    asyncio.run(run())
