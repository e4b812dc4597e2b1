"""The requests of a group share one slot at verl's load balancer and one call to the server."""

import ast
import asyncio
import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, RayTaskError
from verl.workers.rollout import replica
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from recipe.rollout.agent_loop import cut_versions, rollout_seed, tokens_to_stop
from recipe.rollout.client import GroupedClient, merged
from recipe.rollout.server import Grouping


class Method:
    """A method of an actor: `.remote` returns a future of its result."""

    def __init__(self, call: Any) -> None:
        self.call, self.calls = call, 0

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        args, kwargs = copy.deepcopy((args, kwargs))  # a call of Ray shares nothing with others
        result = self.call(*args, **kwargs)  # at once: an actor keeps the order of a caller's calls
        return asyncio.ensure_future(result if inspect.isawaitable(result) else later(result))


async def later(result: Any) -> Any:
    await asyncio.sleep(0)
    return result


class Balancer:
    """verl's own load balancer, called as an actor."""

    def __init__(self, servers: dict[str, Any]) -> None:
        self.real = GlobalRequestLoadBalancer(servers=servers)
        for name in ("acquire_server", "release_server"):
            setattr(self, name, Method(getattr(self.real, name)))
        self.require_acquire_fields = Method(self.real.require_acquire_fields)
        self.require_release_fields = Method(self.real.require_release_fields)

    @property
    def open(self) -> dict[str, int]:
        return dict(self.real._inflight_requests)


class Server:
    """Answers with its own number; fails for prompts that begin with 0."""

    def __init__(self, number: int) -> None:
        self.number, self.generate = number, Method(self._generate)

    async def _generate(
        self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        seed = sampling_params.pop("seed", None)  # taken out, as verl's takes out max_tokens
        await asyncio.sleep(0.001 * prompt_ids[-1])
        if prompt_ids[0] == 0:
            raise ValueError("the request is refused")
        more = {"global_steps": 1, "asked": (tuple(prompt_ids), seed)}
        return TokenOutput(token_ids=[self.number], extra_fields=more)


class Grouped(Server):
    """A server with `generate_group`; a caller gets exceptions as Ray wraps them."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.groups: list[list[list[int]]] = []
        self.generate_group = Method(self._generate_group)

    async def _generate_group(self, requests: list[dict[str, Any]]) -> Any:
        self.groups.append([request["prompt_ids"] for request in requests])
        real = Grouping()
        real.generate = self._generate
        try:
            return await real.generate_group(requests)
        except ValueError as error:
            raise RayTaskError("generate_group", "", error).as_instanceof_cause() from error


@pytest.fixture(params=[Server, Grouped])
def balancer(request: pytest.FixtureRequest) -> Balancer:
    """Of verl's servers, and of ours."""
    return Balancer({"a": request.param(1), "b": request.param(2)})


CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})


def grouped(balancer: Balancer) -> GroupedClient:
    return GroupedClient(LLMServerClient(CONFIG, balancer))  # type: ignore[arg-type]


def request(client: LLMServerClient, *prompt_ids: int, group: str = "g1") -> Any:
    return client.generate(group, prompt_ids=list(prompt_ids), sampling_params={})


async def answers_of(client: LLMServerClient, name: str, waits: list[int]) -> list[Any]:
    """The answers to requests of one id, each of which takes its number of milliseconds."""
    requests = [request(client, 1, w, group=name) for w in waits]
    return await asyncio.gather(*requests, return_exceptions=True)


async def group(client: GroupedClient, name: str, waits: list[int]) -> list[Any]:
    with client.group(name):
        return await answers_of(client, name, waits)


def calls(balancer: Balancer) -> tuple[int, int]:
    """Calls of acquire and release; no slot is left occupied."""
    assert balancer.open == {"a": 0, "b": 0}
    return balancer.acquire_server.calls, balancer.release_server.calls


def test_a_group_holds_one_slot_until_its_end(balancer: Balancer) -> None:
    async def run() -> None:
        client = grouped(balancer)
        both = asyncio.gather(group(client, "g1", [5, 1, 3]), group(client, "g2", [2, 2]))
        first, second = await both
        assert [len({o.token_ids[0] for o in outputs}) for outputs in (first, second)] == [1, 1]
        assert {o.token_ids[0] for o in first + second} == {1, 2}  # one group on each server
        assert all(o.extra_fields["min_global_steps"] == 1 for o in first + second)
        with client.group("g1"):  # a group that comes again acquires again
            await answers_of(client, "g1", [1])
            assert sum(balancer.open.values()) == 1
            await answers_of(client, "g1", [1])  # a later request has the same slot
            assert balancer.acquire_server.calls == 3
            await answers_of(client, "other", [1, 1])  # not of a group: as in verl
            with pytest.raises(ValueError, match="refused"):
                await request(client, 0, 1)

    asyncio.run(run())
    assert calls(balancer) == (5, 5)


def test_verl_acquires_for_every_request(balancer: Balancer) -> None:
    """The gap: fails when verl acquires once per group. Then delete `GroupedClient`."""
    asyncio.run(answers_of(LLMServerClient(CONFIG, balancer), "g1", [5, 1, 3]))  # type: ignore[arg-type]
    assert calls(balancer) == (3, 3)


def test_without_a_server_the_requests_fail_and_a_retry_acquires_again(balancer: Balancer) -> None:
    answers = [RuntimeError("No available servers in load balancer"), ("a", Server(1))]

    async def acquire(request_id: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    balancer.acquire_server = Method(acquire)  # type: ignore[attr-defined]

    async def run() -> tuple[list[Any], list[Any]]:
        client = grouped(balancer)
        with client.group("g1"):
            return await answers_of(client, "g1", [1, 1]), await answers_of(client, "g1", [1])

    failed, again = asyncio.run(run())
    assert [type(f) for f in failed] == [RuntimeError, RuntimeError]
    assert again[0].token_ids == [1]


@pytest.mark.parametrize("cancelled", [1, 2])
def test_cancelled_requests_leave_the_server_to_the_others(
    balancer: Balancer, cancelled: int
) -> None:
    """If all are cancelled, the slot is released when the load balancer answers."""

    async def run() -> list[Any]:
        client = grouped(balancer)
        with client.group("g1"):
            waiting = [asyncio.ensure_future(request(client, 1, w)) for w in (1, 5)]
            while not balancer.acquire_server.calls:  # then both wait for the load balancer
                await asyncio.sleep(0)
            for task in waiting[:cancelled]:
                task.cancel()
            results = await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.05)
        return results

    _, second = asyncio.run(run())
    assert isinstance(second, asyncio.CancelledError) or second.token_ids in ([1], [2])
    assert calls(balancer) == (1, 1)


# The call to the server.


ASKED = [("g1", [1, 3]), ("g1", [0, 5]), ("g2", [1, 1]), ("g1", [2, 2]), ("g2", [1, 4])]


def two_groups(server: Grouped, *, one_dict: bool = False) -> list[Any]:
    """The answers to three requests of one group and two of another; 0 5 fails.

    The seed of each is its index, or that of all is 0, in one dict that all of them share.
    """
    shared = {"seed": 0}

    async def run() -> list[Any]:
        client = grouped(Balancer({"a": server}))
        made = [
            client.generate(g, prompt_ids=ids, sampling_params=shared if one_dict else {"seed": i})
            for i, (g, ids) in enumerate(ASKED)
        ]
        with client.group("g1"), client.group("g2"):
            return await asyncio.wait_for(asyncio.gather(*made, return_exceptions=True), 5)

    return asyncio.run(run())


@pytest.mark.parametrize("one_dict", [False, True])
def test_a_group_is_one_call_and_every_request_has_its_own_answer(one_dict: bool) -> None:
    """Also if requests share the dict of their parameters, of which verl pops entries.

    The failed request makes each of its call repeat by itself; the other group's call succeeds.
    """
    server = Grouped(7)
    answers = two_groups(server, one_dict=one_dict)
    assert server.groups == [[[1, 3], [0, 5], [2, 2]], [[1, 1], [1, 4]]]
    for place in (0, 2, 3, 4):
        wanted = (tuple(ASKED[place][1]), 0 if one_dict else place)
        assert answers[place].extra_fields["asked"] == wanted
    assert isinstance(answers[1], ValueError) and str(answers[1]) == "the request is refused"
    assert server.generate.calls == 3


def test_requests_of_a_call_run_at_the_same_time_and_all_end_before_it_does() -> None:
    """The first waits for the second, the third fails at once, the fourth ends last."""
    ended: list[str] = []

    async def run() -> None:
        there = asyncio.Event()

        async def generate(name: str) -> None:
            if name == "second":
                there.set()
            await there.wait()
            if name == "third":
                raise ValueError("at once")
            await asyncio.sleep(0.05 if name == "fourth" else 0)
            ended.append(name)

        server = Grouping()
        server.generate = generate
        requests = [{"name": name} for name in ("first", "second", "third", "fourth")]
        await asyncio.wait_for(server.generate_group(requests), 5)

    with pytest.raises(ValueError, match="at once"):
        asyncio.run(run())
    assert sorted(ended) == ["first", "fourth", "second"]


async def cancelled_call(requests: list[dict[str, Any]]) -> Any:
    raise asyncio.CancelledError


async def dead_server(*_: Any, **__: Any) -> Any:
    raise ActorDiedError()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *((lambda requests, n=n: [1] * n, RuntimeError) for n in (0, 1, 9)),  # wrong numbers
        (cancelled_call, RuntimeError),
        (dead_server, ActorDiedError),
    ],
)
def test_a_failed_call_fails_every_request(call: Any, error: type[Exception]) -> None:
    server = Grouped(7)
    server.generate_group = Method(call)
    if call is dead_server:
        server.generate = server.generate_group
    assert [type(answer) for answer in two_groups(server)] == [error] * 5


def test_later_requests_are_a_call_of_their_own_and_a_cancelled_one_harms_no_other() -> None:
    """A retried rollout, or the second turn of an agent, must not wait for others."""
    server = Grouped(7)

    async def run() -> Any:
        client = grouped(Balancer({"a": server}))
        with client.group("g1"):
            first, second = (asyncio.ensure_future(request(client, 1, w)) for w in (30, 31))
            await asyncio.sleep(0.01)  # both are at the server
            await answers_of(client, "g1", [2])
            assert not first.done()
            first.cancel()
            return await asyncio.wait_for(second, 5)

    assert asyncio.run(run()).token_ids == [7]
    assert server.groups == [[[1, 30], [1, 31]], [[1, 2]]]


def test_a_request_has_only_arguments_of_verls_generate() -> None:
    """`generate_group` passes by name what verl's client gives to its server's `generate`."""
    folder = Path(replica.__file__).parent  # read as text: the module imports vLLM
    text = (folder / "vllm_rollout" / "vllm_async_server.py").read_text(encoding="utf-8")
    classes = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
    functions = [n for n in classes["vLLMHttpServer"].body if isinstance(n, ast.AsyncFunctionDef)]
    parameters = {a.arg for f in functions if f.name == "generate" for a in f.args.args}
    server = Grouped(7)
    seen: list[dict[str, Any]] = []
    server.generate_group = Method(lambda requests: seen.extend(requests) or [None] * 5)
    two_groups(server)
    assert len(seen) == 5 and {"prompt_ids", "request_id"} <= set(seen[0])
    assert all(set(call) <= parameters for call in seen)


# Requests that are aborted.


class Aborting(Grouped):
    """Aborts each request of version 1 after as many tokens as its prompt says; limit 4."""

    def __init__(self) -> None:
        super().__init__(7)
        self.seeds: list[tuple[int, ...]] = []

    async def _generate(
        self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        aborted, done = prompt_ids[0], len(prompt_ids) - 1
        version = 1 if sampling_params["seed"] < 10 else 2
        count = aborted if version == 1 else 4 - done
        self.seeds.append((aborted, done, sampling_params["seed"]))
        return TokenOutput(
            token_ids=[version] * count,
            log_probs=[-0.5 * version] * count,
            stop_reason="aborted" if version == 1 else "completed",
            extra_fields={"global_steps": version},
        )


def generated(client_cls: type[LLMServerClient]) -> tuple[list[TokenOutput], Aborting, Balancer]:
    """The responses to three requests of a group, aborted after 1, 2 and 3 tokens."""
    server = Aborting()
    balancer = Balancer({"a": server})
    config = OmegaConf.merge(CONFIG, {"actor_rollout_ref": {"rollout": {"response_length": 4}}})
    client = GroupedClient(client_cls(config, balancer))

    async def run() -> list[TokenOutput]:
        with client.group("g1"):
            made = (
                client.generate("g1", prompt_ids=[n], sampling_params={"seed": n})
                for n in (1, 2, 3)
            )
            return await asyncio.wait_for(asyncio.gather(*made), 20)

    return asyncio.run(run()), server, balancer


def test_an_aborted_request_is_continued_with_the_versions_of_its_tokens() -> None:
    outputs, server, balancer = generated(FullyAsyncLLMServerClient)
    assert [o.token_ids for o in outputs] == [[1, 2, 2, 2], [1, 1, 2, 2], [1, 1, 1, 2]]
    assert [o.log_probs[0] + o.log_probs[3] for o in outputs] == [-1.5] * 3
    assert [o.extra_fields["versions"] for o in outputs] == [
        [(1, n), (2, 4 - n)] for n in (1, 2, 3)
    ]
    assert {(o.extra_fields["min_global_steps"], o.stop_reason) for o in outputs} == {(1, "length")}
    acquired, released = balancer.acquire_server.calls, balancer.release_server.calls
    assert (acquired, released, balancer.open) == (1, 1, {"a": 0})  # the group keeps its server
    # Not the numbers of the first part again, and the same in every run.
    again = [(n, n, rollout_seed(n, "continued", n)) for n in (1, 2, 3)]
    assert sorted(server.seeds) == sorted([(n, 0, n) for n in (1, 2, 3)] + again)


def test_verls_synchronous_client_returns_an_aborted_request_as_it_is() -> None:
    """The negative control; the agent loop raises for it (test_agent_loop.py)."""
    outputs, _, _ = generated(LLMServerClient)
    assert [(o.token_ids, o.stop_reason) for o in outputs] == [
        ([1] * n, "aborted") for n in (1, 2, 3)
    ]


def test_parts_by_hand() -> None:
    """A part that was aborted before its first token is none; neighbors of one version are one."""
    assert merged([(3, 0), (4, 2), (4, 1), (5, 0), (6, 1)]) == [(4, 3), (6, 1)]
    assert cut_versions([[4, 3], [6, 2], [7, 1]], 4) == [[4, 3], [6, 1]]
    assert cut_versions([[4, 3]], 9) == [[4, 3]]


def test_a_stop_string_over_the_border_of_two_parts_ends_the_response() -> None:
    """The engine looks for stop strings only in the text of its own part."""

    class Letters:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "".join(map(chr, ids))

    ids = list(map(ord, "one</ans>two"))
    assert tokens_to_stop(Letters(), ids, ["</ans>", "xx"]) == len("one</ans>")
    assert tokens_to_stop(Letters(), ids, ["</end>"]) == len(ids)
    assert tokens_to_stop(Letters(), [], ["</end>"]) == 0
