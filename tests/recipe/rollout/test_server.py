"""The HTTP server of verl's engine is closed to other users: vLLM's routes, without a model."""

import json
from typing import Any

import pytest
from fresh_process import look

pytestmark = pytest.mark.config
ELSEWHERE = "127.0.0.2"  # stands for the node's address
CASES = {  # (closed, prometheus) -> the address that the server listens on
    "closed": (True, False, "127.0.0.1"),
    "closed, with prometheus": (True, True, ELSEWHERE),
    "verl's own": (False, False, ELSEWHERE),
}
# In a process of its own: vLLM's import replaces distutils, which other tests have loaded.
PROGRAM = """
import asyncio, json, sys, urllib.error, urllib.request
from types import SimpleNamespace
import recipe.plugin
from verl.workers.rollout.vllm_rollout import vllm_async_server as verls
from vllm.entrypoints.openai.cli_args import make_arg_parser
from recipe.rollout.server import Closed

ELSEWHERE = sys.argv[1]

class Engine:  # vLLM's, as far as the start of its server calls it
    model_config = None
    async def get_supported_tasks(self): return ("generate",)
    async def reset_mm_cache(self): ...
    async def collective_rpc(self, **_): ...

async def no_state(_, state, args):
    state.log_stats = False

def status_of(url, data):
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

vllm_config = SimpleNamespace(parallel_config=SimpleNamespace())
made = SimpleNamespace(create_engine_config=lambda **_: vllm_config)
made.enable_log_requests = made.disable_log_stats = False
verls.AsyncEngineArgs.from_cli_args = staticmethod(lambda args: made)
verls.AsyncLLM.from_vllm_config = staticmethod(lambda **_: Engine())
verls.init_app_state = no_state

async def statuses(closed, prometheus, listens):
    bases = (Closed, verls.vLLMHttpServer) if closed else (verls.vLLMHttpServer,)
    server = object.__new__(type("Server", bases, {}))
    server.config = SimpleNamespace(prometheus=SimpleNamespace(enable=prometheus))
    server.model_config = SimpleNamespace(tokenizer=[], processor=None)
    server._server_address, server._dp_master_port, server.replica_rank = ELSEWHERE, 0, 1
    args = make_arg_parser(verls.FlexibleArgumentParser()).parse_args([])
    await server.run_server(args)
    assert server._server_address == ELSEWHERE
    at, body = f"http://{listens}:{server._server_port}", b'{"prompt": 1, "tokens": [1]}'
    posted = ("v1/completions", "v1/load_lora_adapter", "tokenize", "invocations")
    asked = dict.fromkeys(("docs", "version", "metrics")) | dict.fromkeys(posted, body)
    calls = (asyncio.to_thread(status_of, f"{at}/{x}", data) for x, data in asked.items())
    found = dict(zip(asked, await asyncio.gather(*calls)))
    server._server_task.cancel()
    return found

cases = json.loads(sys.argv[2])
print(json.dumps({name: asyncio.run(statuses(*case)) for name, case in cases.items()}))
"""


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return look(PROGRAM, ELSEWHERE, json.dumps(CASES))


@pytest.mark.parametrize("case", CASES)
def test_only_metrics_are_served(result: dict[str, Any], case: str) -> None:
    statuses, (closed, *_) = dict(result[case]), CASES[case]
    assert statuses.pop("metrics") == 200
    assert (set(statuses.values()) == {403}) is closed
    assert closed or statuses["docs"] == 200
