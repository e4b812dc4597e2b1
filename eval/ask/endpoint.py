"""Samples from an OpenAI-compatible endpoint, in place of an engine of this process.

`/v1/completions` receives the token ids of the same prompts, so a greedy response of a vLLM server
equals the engine's. A request is one sample with its own seed. Servers other than vLLM may ignore
the seed.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.ask.checkpoints import Checkpoint, identity_of
from eval.ask.engine import Request, TokenIds, request_seed
from eval.ask.settings import Settings
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import sha256
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.endpoint import Budget, EndpointError, Spending
from prompt_aug.turns import end_of_turn
from recipe.config.evaluation import SAMPLING
from recipe.machine.model_files import TOKENIZER

if TYPE_CHECKING:  # its import takes a second
    from prompt_aug.endpoint.client import Channel, Endpoint

TIMEOUT = 3600.0  # seconds of one request; responses are not streamed
STANDARD = ("temperature", "top_p")  # of OpenAI's parameters; others are extensions
VLLM = "vllm"  # `owned_by` in its list of models
LLAMA = {"repetition_penalty": "repeat_penalty"}
# Servers with defaults of their own, or of the model, which get every parameter, by these names.
NAMES: dict[str, dict[str, str]] = {VLLM: {}, "sglang": {}, "llamacpp": LLAMA}


@dataclass(frozen=True, kw_only=True)
class Server:
    """An endpoint, the budget of this command, and the endpoint's list of models by id."""

    endpoint: "Endpoint"
    budget: Budget
    settings: Settings
    models: dict[str, dict[str, Any]]

    def checkpoint(self, model: str, tokenizer: str | None) -> Checkpoint:
        """Return the model that is served as `model`. Raises UserError if there is none."""
        if model not in self.models:
            raise UserError(
                f"--model {model}: the endpoint does not serve it. Name one of: "
                f"{', '.join(sorted(self.models)) or 'none'}."
            )
        listed, named = self.models[model], {"model": model, "tokenizer": tokenizer or model}
        owner, root, url = (listed.get("owned_by"), listed.get("root"), self.endpoint.base_url)
        if owner not in NAMES:
            beyond = ", ".join(name for name in SAMPLING if name not in STANDARD)
            print(f"note: {url}: {beyond}: where they are not set, the server's own values apply")
        folder = Path(named["tokenizer"])  # whose chat template may change
        files = {n: sha256(folder / n) for n in TOKENIZER if (folder / n).is_file()}
        named |= identity_of(files) if files else {}
        # vLLM states the folder or hub id of its model, which stays when a server moves.
        identity = {"endpoint": root if owner == VLLM and root else url, **named}
        positions = listed.get("max_model_len")
        return Checkpoint(step=None, model=model, identity=identity, positions=positions, root=root)

    def tokenizer(self, checkpoint: Checkpoint) -> Any:
        return load_tokenizer(checkpoint.identity["tokenizer"])

    def engine_for(
        self, checkpoint: Checkpoint, kind: str, context: int, prompts: Sequence[TokenIds]
    ) -> "RemoteEngine":
        return RemoteEngine(self, checkpoint, context)


def connect(url: str, concurrency: int, budget: Budget, settings: Settings) -> Server:
    from prompt_aug.endpoint.client import Channel, Endpoint, Failure  # slow to import

    endpoint = Endpoint(base_url=url.rstrip("/"), concurrency=concurrency, timeout=TIMEOUT)

    async def listed() -> dict[str, dict[str, Any]]:
        async with Channel(endpoint, budget) as channel:
            return await channel.models()

    try:
        models = asyncio.run(listed())
    except Failure as failure:
        raise UserError(
            f"--endpoint {url}: {failure.line}. Check the address and that the server has started."
        ) from failure
    return Server(endpoint=endpoint, budget=budget, settings=settings, models=models)


class RemoteEngine:
    """Sampler that requests every response from a server; `context` limits prompt and response."""

    def __init__(self, server: Server, checkpoint: Checkpoint, context: int) -> None:
        self._server, self._settings, self._context = server, server.settings, context
        self._listed = server.models[checkpoint.model]
        owner = self._listed.get("owned_by")
        self._vllm, self._names = owner == VLLM, NAMES.get(owner or "")
        self._end = end_of_turn(server.tokenizer(checkpoint))

    def facts(self) -> dict[str, Any]:
        """Return what a response may depend on, apart from the settings."""
        keys = ("owned_by", "root", "max_model_len")
        reported = {key: self._listed[key] for key in keys if self._listed.get(key) is not None}
        return {"endpoint": self._server.endpoint.base_url, **reported}

    def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON of a request; servers that are not in `NAMES` get fewer parameters.

        vLLM and SGLang take missing ones from the model's generation_config.json, llama.cpp has
        top_k=40.
        """
        settings, ids = self._settings, request.prompt_token_ids
        body: dict[str, Any] = {
            "model": self._listed["id"],
            "prompt": list(ids),
            "max_tokens": min(settings.max_tokens, self._context - len(ids)),
            "seed": request_seed(settings.seed, request.key[0], request.key[2]),
        }
        for name in SAMPLING:
            value = getattr(settings, name)
            unset = value == Settings.model_fields[name].default
            if self._names is not None or name in STANDARD or not unset:
                value = -1 if name == "top_k" and not value else value  # SGLang refuses 0
                body[(self._names or {}).get(name, name)] = value
        if self._vllm:  # it would drop tags that are special tokens, and the ends of a turn
            body |= {"skip_special_tokens": False, "stop_token_ids": sorted(self._end.ids)}
        if self._vllm and request.stop:
            body |= {"stop": list(request.stop), "include_stop_str_in_output": True}
        return body

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
        """Yield each request with its response, tokens and finish_reason, as they arrive.

        A request that fails after all retries raises when the others are done. If the caller stops
        early, the open requests are canceled.
        """
        with asyncio.Runner() as runner:
            arrived: asyncio.Queue[tuple[Request, dict[str, Any]] | Exception | None]
            arrived = asyncio.Queue()
            work = runner.get_loop().create_task(self._work(requests, arrived))
            while isinstance(item := runner.run(arrived.get()), tuple):
                yield item
            runner.run(asyncio.wait([work]))
            if item is not None:
                raise item

    async def _work(self, requests: Sequence[Request], arrived: asyncio.Queue[Any]) -> None:
        """Put each request with its response into the queue, and last the error or None."""
        from prompt_aug.endpoint.client import Channel

        endpoint, failed, queue = self._server.endpoint, list[str](), iter(requests)
        try:
            async with (
                Channel(endpoint, self._server.budget) as channel,
                asyncio.TaskGroup() as group,
            ):

                async def worker() -> None:
                    while not channel.stopped and (request := next(queue, None)):
                        if response := await self._response(channel, request, failed):
                            arrived.put_nowait((request, response))

                for _ in range(min(endpoint.concurrency, len(requests))):
                    group.create_task(worker())
        except Exception as error:  # a defect: without an entry `stream` would wait forever
            arrived.put_nowait(error)
            return
        if failed and not channel.stopped:
            message = f"{len(failed)} requests failed, the last of {failed[-1]}"
            channel.stop(UserError(f"{endpoint.base_url}: {message}. Run the command again."))
        arrived.put_nowait(channel.stopped)

    async def _response(
        self, channel: "Channel", request: Request, failed: list[str]
    ) -> dict[str, Any] | None:
        """Return what is stored of a request, None if it failed or the channel is stopped."""
        from prompt_aug.endpoint.client import FINAL, Failure, choices_of, reported_tokens

        wanted = Spending(1, len(request.prompt_token_ids), self._settings.max_tokens)
        try:
            answer = await channel.ask("completions", self.body(request), wanted)
        except EndpointError as error:
            channel.stop(error)
            return None
        except Failure as failure:
            line = f"question {request.key[0]}: {failure.line}"
            channel.count(failure.line, line)
            if failure.status in FINAL:
                channel.stop(EndpointError(f"{channel.url}: {line}"))
            failed.append(line)
            return None
        text, finish, missing = choices_of(answer)[0]
        # Several too long prompts in a row are more likely a wrong --max-tokens.
        channel.count(missing if missing == "prompt_too_long" else "", str(answer.get("error")))
        received, text = text, self._end.cut(text, request.stop)
        if text != received or any(string in text for string in request.stop):
            finish = "stop"
        tokens = reported_tokens(answer, "completion_tokens")
        tokens = None if text and tokens == 0 else tokens  # a server that does not count
        response = {"response": text, "tokens": tokens, "finish_reason": finish}
        return response | ({"endpoint_status": missing} if missing else {})
