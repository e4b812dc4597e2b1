"""Requests by the `openai` client, which retries; `Channel.send` has the limits of an attempt."""

import asyncio
import json
import os
import re
import urllib.parse
import urllib.request
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from prompt_aug.base.commands import check_one_url
from prompt_aug.base.errors import UserError, kind_of
from prompt_aug.endpoint import Budget, EndpointError, Spending

KEY_VARIABLE, HOSTED = "OPENAI_API_KEY", "https://api.openai.com/v1"
SECRET = 8  # characters; shorter keys are placeholders, such as EMPTY
LIST_SECONDS, LIST_BYTES = 30.0, 2**22  # of a list of models
REPLY_BYTES, TOKEN_BYTES = 2**16, 2**9  # of a completion: in all, and for each requested token
KEPT = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")  # headers
LOCAL = re.compile(r"(.+\.)?localhost|127\.[\d.]+|0\.0\.0\.0|::1?")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EQUAL_FAILURES = 8  # in a row end the run
FINAL = (400, 413, 422)  # the same request gets the same answer
REFUSED = (401, 402, 403, 404)  # no other request succeeds, as with a used-up QUOTA
QUOTA = re.compile(r"insufficient_quota|^429 .*(?:per[ _-]?day|daily)", re.IGNORECASE | re.DOTALL)
DELAY = re.compile(
    r"(?:again|retry) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s(?:ec\w*)?)\b", re.IGNORECASE
)
REFUSALS = {  # of one prompt, by code or message
    "content_filter": r"content.?(filter|policy|management|exists risk)|moderation|flagged",
    "prompt_too_long": r"status 413|context.(length|size|window)|longer than|too long|`inputs`",
}
HALF = ("abort", "error")  # finish reasons of a server that shuts down
ENDS = dict.fromkeys("eos_token stop_sequence eos end end_turn complete completed".split(), "stop")
ENDS |= {"max_tokens": "length", "model_length": "length"}
SHORT = 60.0  # seconds
NOTHING = Spending()
WANTED: ContextVar[Spending] = ContextVar("reserved for each attempt")


@dataclass(eq=False, slots=True)
class Failure(Exception):  # noqa: N818 - an outcome, caught by the callers of `Channel.ask`
    """A request that failed after all retries."""

    line: str
    status: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where and how requests are sent; `timeout` is the deadline of one attempt in seconds."""

    base_url: str | None = None  # None: OpenAI's
    concurrency: int = 16
    retries: int = 6
    timeout: float = 300.0
    per_request: int = 8  # responses requested at once, as `n`

    def __post_init__(self) -> None:
        check_one_url("OPENAI_BASE_URL", self.base_url)


def choices_of(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (text, finish reason, what is missing or "") of each choice, at least one.

    Raises Failure for an object that is no completion.
    """
    listed = answer.get("choices")
    if not isinstance(listed, list) or not all(isinstance(choice, dict) for choice in listed):
        raise Failure(f"not a completion: {json.dumps(answer)[:160]}")
    refusal = next((name for name in REFUSALS if name == answer.get("refusal")), "no_choices")
    return [_choice(choice) for choice in listed] or [("", refusal, refusal)]


def _choice(choice: dict[str, Any]) -> tuple[str, str, str]:
    message, finish = choice.get("message"), choice.get("finish_reason")
    message = message if isinstance(message, dict) else choice
    text = message.get("content", message.get("text"))
    if isinstance(text, list):  # parts, as Mistral's: thoughts and text
        parts = (part for part in text if isinstance(part, dict) and part.get("type") == "text")
        text = "".join(str(part.get("text", "")) for part in parts)
    text, finish = (value if isinstance(value, str) else "" for value in (text, finish))
    finish = printable(finish).lower()[:40]
    finish = ENDS.get(finish, finish)
    if text.strip():  # some servers name no reason
        return text, finish or "stop", ""
    missing = finish if finish == "content_filter" else "no_content"
    if finish == "stop" and (message.get("reasoning_content") or message.get("reasoning")):
        missing = "only_reasoning"
    return text, finish or "no_finish_reason", missing if finish else "no_finish_reason"


def reported_tokens(answer: dict[str, Any], name: str) -> int | None:
    """Return a count of the answer's `usage`; None unless it is a number of tokens."""
    usage = answer.get("usage")
    return _tokens(usage.get(name)) if isinstance(usage, dict) else None


def _tokens(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count <= 2**53 else None


def _is_final(status: int, text: str) -> bool:
    """Return True for a quota that is used up; a limit of a day with a short delay is not."""
    delay = DELAY.search(text)
    short = delay and (delay[2].lower() == "ms" or float(delay[1]) <= SHORT)
    found = QUOTA.search(f"{status} {text}")
    return bool(found and (found[0] == "insufficient_quota" or not short))


def printable(text: str) -> str:
    """Return a text without line ends, escape sequences and other control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def _proxies(url: str) -> list[str]:
    """Return the names of the variables whose proxies may serve `url`; none for this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if LOCAL.fullmatch(host) or urllib.request.proxy_bypass(host):
        return []
    return [name for name in os.environ if name.lower() in PROXIES and os.environ[name]]


class Channel(openai.DefaultAsyncHttpxClient):
    """Requests to one endpoint until a stop; the HTTP client of `openai`."""

    def __init__(self, endpoint: Endpoint, budget: Budget) -> None:
        self.endpoint, self.budget, self.url = endpoint, budget, endpoint.base_url or HOSTED
        self.key, self.proxies = os.environ.get(KEY_VARIABLE, ""), _proxies(self.url)
        if not self.key and endpoint.base_url is None:
            raise EndpointError(f"{KEY_VARIABLE} is not set. Set it, or --base-url.")
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", self.key):
            raise EndpointError(f"{KEY_VARIABLE}: has a character that no key has. Set it again.")
        direct = httpx2.AsyncHTTPTransport(limits=openai.DEFAULT_CONNECTION_LIMITS)
        try:
            super().__init__(
                timeout=None,
                follow_redirects=False,
                headers={"accept-encoding": "identity"},
                transport=None if self.proxies else direct,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            line = f"{', '.join(self.proxies)}: no usable proxy: {error} Correct or unset it."
            raise EndpointError(line) from error
        self.stopped: UserError | None = None
        self._equal, self._last = 0, ""
        how: Any = {"max_retries": endpoint.retries, "timeout": None, "http_client": self}
        self._openai = openai.AsyncOpenAI(base_url=self.url, api_key=self.key or "none", **how)

    def hide(self, text: str) -> str:
        """Return a text of the server, or of an error, without the key that it may repeat."""
        return text.replace(self.key, f"[{KEY_VARIABLE}]") if len(self.key) >= SECRET else text

    def stop(self, cause: UserError) -> None:
        """Start no further attempt."""
        self.stopped = self.stopped or cause

    def count(self, reason: str, line: str = "") -> None:
        """Count reasons of one kind in a row, "" for an answer; stop at EQUAL_FAILURES."""
        kind = kind_of(reason)
        self._equal = self._equal + 1 if kind == self._last else 1
        self._last = kind
        if reason and self._equal >= EQUAL_FAILURES:
            line = (line or reason)[:400]
            self.stop(EndpointError(f"{self._equal} equal failures in a row: {line}"))

    async def ask(self, path: str, body: object = None, wanted: Spending = NOTHING) -> Any:
        """Return the JSON object that answers a POST, or a GET without a body, after retries.

        `wanted` is reserved for each attempt. Raises Failure, or EndpointError to end the run.
        """
        WANTED.set(wanted)
        how: Any = {"cast_to": httpx2.Response}
        try:
            if body is None:
                response = await self._openai.get(path, options={"max_retries": 0}, **how)
            else:
                response = await self._openai.post(path, body=body, **how)
            return response.extensions["answer"]
        except openai.APIStatusError as error:
            return self._refused(error)
        except openai.APIConnectionError as error:
            cause = error.__cause__
            proxy = f" (through the proxy of {', '.join(self.proxies)})" if self.proxies else ""
            line = self.hide(f"{type(cause).__name__}: {cause}")
            raise Failure(printable(line)[:300] + proxy) from error

    async def models(self) -> dict[str, dict[str, Any]]:
        """Return id, owned_by, root and max_model_len of each model, as far as listed, by id.

        Raises Failure or EndpointError.
        """
        listed = (await self.ask("models")).get("data")
        models: dict[str, dict[str, Any]] = {}
        for row in listed if isinstance(listed, list) else []:
            if isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"].isprintable():
                names = ("id", "owned_by", "root", "parent")
                model = {name: row[name] for name in names if isinstance(row.get(name), str)}
                models[row["id"]] = model | {"max_model_len": _tokens(row.get("max_model_len"))}
        for model in models.values():  # vLLM states the context of an adapter at its base alone
            if model["max_model_len"] is None and model.get("parent") in models:
                model["max_model_len"] = models[model["parent"]]["max_model_len"]
        return models

    def _refused(self, error: openai.APIStatusError) -> dict[str, Any]:
        """Return a completion without choices if the prompt is refused, else raise as `ask`."""
        status, body = error.status_code, error.body if isinstance(error.body, dict) else {}
        line = printable(f"status {status}: {body.get('message') or error.message}"[:300])
        description = f"{error.code} {error.type} {line}"
        for name, words in REFUSALS.items():
            if status in (*FINAL, 403) and re.search(words, description, re.IGNORECASE):
                return {"choices": [], "refusal": name, "error": line}
        if status in REFUSED or _is_final(status, error.response.text):
            how = f"Check {KEY_VARIABLE}, quota, model and path."
            raise EndpointError(f"{self.url}: {line}. {how}") from error
        raise Failure(line, status) from error

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Send one attempt for `openai`, within the budget, a deadline and a size of its reply.

        An attempt without a reply keeps its reservation: the server may have charged for it.
        """
        wanted, used, seconds = WANTED.get(), NOTHING, self.endpoint.timeout
        if not wanted.requests:
            seconds = min(seconds, LIST_SECONDS)
        await self.budget.reserve(wanted)
        try:
            if self.stopped:
                raise EndpointError(str(self.stopped))
            used = wanted
            async with asyncio.timeout(seconds):
                response = await self._received(request, wanted)
            used = self._used(response, wanted)
            return response
        except TimeoutError as error:
            raise httpx2.ReadTimeout(f"no response in {seconds:g} s", request=request) from error
        except httpx2.ConnectError:
            used = NOTHING
            raise
        finally:
            self.budget.settle(wanted, used if wanted.requests else NOTHING)

    async def _received(self, request: httpx2.Request, wanted: Spending) -> httpx2.Response:
        """Return the reply with its text alone, which has a limit and not the key."""
        limit = REPLY_BYTES + TOKEN_BYTES * wanted.tokens_out if wanted.requests else LIST_BYTES
        response, content = await super().send(request, stream=True), b""
        try:
            encoding = response.headers.get("content-encoding", "identity").lower()
            if encoding != "identity":
                content = b"compressed, against the request, by " + encoding.encode()
            else:
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > limit:
                        break
        finally:
            await response.aclose()
        if len(content) > limit and response.is_success:
            raise Failure(f"a reply of over {limit} bytes, more than its tokens can have")
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):  # without the escapes that a key may have
            text = json.dumps(json.loads(content), ensure_ascii=False)
        headers = {name: response.headers[name] for name in KEPT if name in response.headers}
        content = self.hide(text).encode(errors="replace")  # half a character becomes "?"
        return httpx2.Response(
            response.status_code, headers=headers, content=content, request=request
        )

    def _used(self, response: httpx2.Response, wanted: Spending) -> Spending:
        """Parse a reply and return what it used, by its `usage` or the reservation."""
        if not response.is_success:
            delay = DELAY.search(response.text)
            if _is_final(response.status_code, response.text):
                response.headers["x-should-retry"] = "false"  # read by `openai`
            elif delay:
                seconds = float(delay[1]) / (1000 if delay[2].lower() == "ms" else 1)
                response.headers.setdefault("retry-after", f"{seconds:g}")
            return NOTHING if response.status_code == 429 else Spending(1)
        answer = None
        with suppress(ValueError, RecursionError):
            answer = json.loads(response.content)
        if not isinstance(answer, dict):
            raise Failure(f"not a JSON object: {printable(response.text[:160])}")
        if wanted.requests and any(finish in HALF for _, finish, _ in choices_of(answer)):
            raise httpx2.RemoteProtocolError("half an answer, by its finish_reason")
        response.extensions["answer"] = answer
        names = ("prompt", "completion", "total")
        read, written, total = (reported_tokens(answer, f"{of}_tokens") for of in names)
        if not read or written is None:  # every prompt has a token
            return wanted
        return Spending(1, read, max(written, (total or 0) - read))  # xAI's lack the thoughts
