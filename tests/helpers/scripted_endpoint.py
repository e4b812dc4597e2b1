"""A chat endpoint on raw sockets that answers, delays, breaks off or dies as a script says."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """One answer: a status and a body, sent after `delay` seconds, cut after `cut` bytes.

    With `pause` the body is sent byte by byte, with so many seconds before each; with `endless` in
    chunks, again and again.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    pause: float = 0.0
    endless: bool = False
    cut: int | None = None
    hang_up: bool = False  # close the connection without any answer


def chat(texts: list[str], model: str = "scripted", finish: str | None = "stop") -> dict[str, Any]:
    """The body of a chat completion with these choices."""
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": i, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
            for i, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


class ScriptedEndpoint:
    """Serves `script(number of the request, its body)` in a thread; keeps all requests.

    GET returns the list of `models`, which may be a whole `Reply`, and is not kept.
    """

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply], models: Any) -> None:
        self.models = models
        self.script, self.bodies, self.headers = script, [], []  # type: ignore[var-annotated]
        self.in_flight = self.most_in_flight = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = [line.lower() for line in head.split("\r\n")[1:] if ": " in line]
        headers = dict(field.split(": ", 1) for field in fields)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw else {}
        if head.startswith("GET"):
            models = self.models
            listed = models if isinstance(models, Reply) else Reply({"data": list(models)})
            await asyncio.sleep(listed.delay)
            return await self._send(listed, writer)
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(headers)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        reply = self.script(number, body)
        await asyncio.sleep(reply.delay)
        self.in_flight -= 1
        return not reply.hang_up and await self._send(reply, writer)

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        lines = {"content-type": "application/json", "content-length": str(len(content))}
        if reply.endless:
            lines = {"content-type": "application/json", "transfer-encoding": "chunked"}
        lines |= reply.headers
        top = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        writer.write(top.encode() + b"\r\n")
        while reply.endless:
            writer.write(b"%x\r\n%s\r\n" % (len(content), content))
            await writer.drain()
        step = 1 if reply.pause else len(content) + 1
        for start in range(0, len(content[: reply.cut]), step):
            await asyncio.sleep(reply.pause)
            writer.write(content[: reply.cut][start : start + step])
            await writer.drain()
        return reply.cut is None

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


@contextlib.contextmanager
def serving(
    script: Callable[[int, dict[str, Any]], Reply], models: Any = ()
) -> Iterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script, models)
    try:
        yield endpoint
    finally:
        endpoint.close()
