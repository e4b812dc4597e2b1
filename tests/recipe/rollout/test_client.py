"""A group's requests share one place at verl's load balancer, which loses none, and one call."""

import ast
import asyncio
import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, RayTaskError
from verl.workers.rollout import replica
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from recipe.rollout.client import GroupedClient
from recipe.rollout.server import Grouping


class Method:
    """A method of an actor: `.remote` gives what waits for its result."""

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
    """One that takes a group in one call; an exception is what Ray makes of it for a caller."""

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


async def group(client: LLMServerClient, name: str, waits: list[int]) -> list[Any]:
    """The answers to a group of requests, each of which takes its number of milliseconds."""
    asked = [client.generate(name, prompt_ids=[1, w], sampling_params={}) for w in waits]
    return await asyncio.gather(*asked, return_exceptions=True)


def test_a_group_asks_once_and_tells_once(balancer: Balancer) -> None:
    async def run() -> None:
        client = grouped(balancer)
        first, second = await asyncio.gather(
            group(client, "g1", [5, 1, 3]), group(client, "g2", [2, 2])
        )
        assert [len({o.token_ids[0] for o in outputs}) for outputs in (first, second)] == [1, 1]
        assert {o.token_ids[0] for o in first + second} == {1, 2}  # one group on each server
        assert all(o.extra_fields["min_global_steps"] == 1 for o in first + second)

    asyncio.run(run())
    assert balancer.acquire_server.calls == balancer.release_server.calls == 2
    assert balancer.open == {"a": 0, "b": 0}


def test_verl_asks_for_every_request(balancer: Balancer) -> None:
    """What the client saves; where verl asks once itself, `GroupedClient` can go."""
    asyncio.run(group(LLMServerClient(CONFIG, balancer), "g1", [5, 1, 3]))  # type: ignore[arg-type]
    assert balancer.acquire_server.calls == balancer.release_server.calls == 3


def test_the_place_is_held_until_the_last_request_has_ended(balancer: Balancer) -> None:
    async def run() -> None:
        client = grouped(balancer)
        running = asyncio.ensure_future(group(client, "g1", [1, 200]))
        await asyncio.sleep(0.1)
        assert sum(balancer.open.values()) == 1
        await group(client, "g1", [1])  # asked for again meanwhile: the same place
        assert balancer.acquire_server.calls == 1
        await running

    asyncio.run(run())
    assert balancer.open == {"a": 0, "b": 0}


def test_a_group_that_comes_again_asks_again(balancer: Balancer) -> None:
    async def run() -> None:
        client = grouped(balancer)
        await group(client, "g1", [1, 1])
        await group(client, "g1", [1])

    asyncio.run(run())
    assert balancer.acquire_server.calls == balancer.release_server.calls == 2


def test_a_request_that_fails_gives_its_place_back(balancer: Balancer) -> None:
    async def run() -> list[Any]:
        client = grouped(balancer)
        bad = client.generate("g1", prompt_ids=[0, 1], sampling_params={})
        good = client.generate("g1", prompt_ids=[1, 5], sampling_params={})
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = asyncio.run(run())
    assert isinstance(bad, ValueError) and good.token_ids in ([1], [2])
    assert balancer.open == {"a": 0, "b": 0}


def refusing(first: int) -> Callable[..., tuple[str, Any]]:
    """A load balancer that refuses its first calls."""
    left = [first]

    def acquire(request_id: str) -> tuple[str, Any]:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("No available servers in load balancer")
        return "a", Server(1)

    return acquire


def test_without_a_server_all_of_the_group_fail_and_the_next_try_asks_again(
    balancer: Balancer,
) -> None:
    acquire = refusing(1)

    async def call(**kwargs: Any) -> tuple[str, Any]:
        return acquire(**kwargs)

    balancer.acquire_server = Method(call)  # type: ignore[attr-defined]

    async def run() -> tuple[list[Any], list[Any]]:
        client = grouped(balancer)
        return await group(client, "g1", [1, 1]), await group(client, "g1", [1])

    failed, again = asyncio.run(run())
    assert [type(f) for f in failed] == [RuntimeError, RuntimeError]
    assert again[0].token_ids == [1]


def test_a_group_that_is_cancelled_gives_its_place_back(balancer: Balancer) -> None:
    """Also where the load balancer answers after nobody waits any more."""

    async def run() -> None:
        client = grouped(balancer)
        asked = [client.generate("g1", prompt_ids=[1, w], sampling_params={}) for w in (1, 5)]
        waiting = [asyncio.ensure_future(request) for request in asked]
        await asyncio.sleep(0)  # both wait for the load balancer
        for request in waiting:
            request.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert balancer.acquire_server.calls == balancer.release_server.calls == 1
    assert balancer.open == {"a": 0, "b": 0}


def test_a_cancelled_request_leaves_the_server_to_the_others(balancer: Balancer) -> None:
    async def run() -> Any:
        client = grouped(balancer)
        first = asyncio.ensure_future(client.generate("g1", prompt_ids=[1, 1], sampling_params={}))
        second = asyncio.ensure_future(client.generate("g1", prompt_ids=[1, 5], sampling_params={}))
        await asyncio.sleep(0)  # both wait for the load balancer
        first.cancel()
        return await second

    assert asyncio.run(run()).token_ids in ([1], [2])
    assert balancer.open == {"a": 0, "b": 0}


# What goes to the server together.


ASKED = [("g1", [1, 3]), ("g1", [0, 5]), ("g2", [1, 1]), ("g1", [2, 2]), ("g2", [1, 4])]


def two_groups(server: Grouped, *, one_dict: bool = False) -> list[Any]:
    """The answers to three requests of one group and two of another; 0 5 is refused.

    The seed of each is its place, or that of all is 0, in one dict that all of them share.
    """
    shared = {"seed": 0}

    async def run() -> list[Any]:
        client = grouped(Balancer({"a": server}))
        calls = [
            client.generate(g, prompt_ids=ids, sampling_params=shared if one_dict else {"seed": i})
            for i, (g, ids) in enumerate(ASKED)
        ]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)

    return asyncio.run(run())


def test_a_group_is_one_call_and_every_request_has_its_own_answer() -> None:
    server = Grouped(7)
    answers = two_groups(server)
    assert server.groups == [[[1, 3], [0, 5], [2, 2]], [[1, 1], [1, 4]]]
    for place in (0, 2, 3, 4):
        assert answers[place].extra_fields["asked"] == (tuple(ASKED[place][1]), place)


def test_requests_that_share_their_parameters_do_not_take_them_from_each_other() -> None:
    answers = two_groups(Grouped(7), one_dict=True)
    assert [answers[i].extra_fields["asked"][1] for i in (0, 2, 3, 4)] == [0] * 4


def test_the_requests_of_a_call_run_at_the_same_time() -> None:
    """The first waits for the second: one after the other they would never end."""

    async def run() -> list[Any]:
        there = asyncio.Event()

        async def generate(first: bool) -> str:
            if not first:
                there.set()
            await there.wait()
            return "first" if first else "second"

        server = Grouping()
        server.generate = generate
        asked = [{"first": True}, {"first": False}]
        return await asyncio.wait_for(server.generate_group(asked), 5)

    assert asyncio.run(run()) == ["first", "second"]


def test_a_call_fails_when_the_last_of_its_requests_has_ended() -> None:
    """One that is left with the engine would run on beside its own repetition."""
    ended: list[str] = []

    async def generate(wait: float) -> None:
        if not wait:
            raise ValueError("at once")
        await asyncio.sleep(wait)
        ended.append("late")

    server = Grouping()
    server.generate = generate
    with pytest.raises(ValueError, match="at once"):
        asyncio.run(server.generate_group([{"wait": 0}, {"wait": 0.05}]))
    assert ended == ["late"]


@pytest.mark.parametrize("answers", [[], [1], [1] * 9])
def test_a_wrong_number_of_answers_is_an_error_of_every_request(answers: list[int]) -> None:
    server = Grouped(7)
    server.generate_group = Method(lambda requests: answers)
    got = two_groups(server)
    assert [type(answer) for answer in got] == [RuntimeError] * 5
    assert f"{len(answers)} answers" in str(got[0])


def test_a_call_that_is_cancelled_is_an_error_of_every_request() -> None:
    async def cancelled(requests: list[dict[str, Any]]) -> Any:
        raise asyncio.CancelledError

    server = Grouped(7)
    server.generate_group = Method(cancelled)
    assert [type(answer) for answer in two_groups(server)] == [RuntimeError] * 5


def test_where_a_request_fails_each_is_made_by_itself_and_has_its_own_result() -> None:
    server = Grouped(7)
    answers = two_groups(server)
    assert isinstance(answers[1], ValueError) and str(answers[1]) == "the request is refused"
    assert server.generate.calls == 3  # of its call; the other group's went well


def test_a_server_that_is_gone_fails_all_requests_of_the_call() -> None:
    server = Grouped(7)

    async def gone(*_: Any, **__: Any) -> Any:
        raise ActorDiedError()

    server.generate_group = server.generate = Method(gone)
    assert [type(answer) for answer in two_groups(server)] == [ActorDiedError] * 5


def test_requests_made_later_go_in_a_call_of_their_own() -> None:
    """A repeated rollout, or the second turn of an agent, must not wait for anybody."""
    server = Grouped(7)

    async def run() -> None:
        client = grouped(Balancer({"a": server}))
        first = asyncio.ensure_future(group(client, "g1", [1, 30]))
        await asyncio.sleep(0.01)
        await group(client, "g1", [2])
        assert not first.done()
        await first

    asyncio.run(run())
    assert server.groups == [[[1, 1], [1, 30]], [[1, 2]]]


def test_a_request_that_is_cancelled_on_its_way_leaves_the_others_their_answers() -> None:
    async def run() -> Any:
        client = grouped(Balancer({"a": Grouped(7)}))
        calls = [client.generate("g1", prompt_ids=[1, w], sampling_params={}) for w in (20, 20)]
        first, second = map(asyncio.ensure_future, calls)
        await asyncio.sleep(0.01)  # both are with the server
        first.cancel()
        return await asyncio.wait_for(second, 5)

    assert asyncio.run(run()).token_ids == [7]


def arguments_of_verls_generate() -> set[str]:
    """From its source: its module imports vLLM."""
    folder = Path(replica.__file__).parent
    text = (folder / "vllm_rollout" / "vllm_async_server.py").read_text(encoding="utf-8")
    classes = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    server = next(n for n in classes if n.name == "vLLMHttpServer")
    functions = [n for n in server.body if isinstance(n, ast.AsyncFunctionDef)]
    return {a.arg for a in next(f for f in functions if f.name == "generate").args.args}


def test_the_names_in_a_request_are_those_of_verls_method() -> None:
    """`generate_group` hands on by name what verl's client gives to its server's `generate`."""
    server = Grouped(7)
    seen: list[dict[str, Any]] = []
    server.generate_group = Method(lambda requests: seen.extend(requests) or [None] * 5)
    two_groups(server)
    assert len(seen) == 5 and {"prompt_ids", "request_id"} <= set(seen[0])
    assert all(set(request) <= arguments_of_verls_generate() for request in seen)
