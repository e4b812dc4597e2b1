"""Forked children that answer requests under limits, so that killing one costs milliseconds.

    caller --JSON line--> parent (imports what is needed, never parses a request)
                             `--fork--> child (answers, may be killed at any time)

The kernel ends a child that runs too long, even inside one big C call: SIGPROF after
`cpu_seconds` of its own CPU time (so a busy machine changes no reply), SIGALRM after
`wall_seconds`. RLIMIT_AS bounds its memory.

A request and its reply begin with a random token, so that only a reader of a request can reply to
it. Any other byte from a child ends it; the reply is then `FOREIGN`. This module imports little:
the time of a fork grows with its process, from 0.7 ms at 10 MB to 3 ms at 100 MB.
"""

import ctypes
import functools
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

REQUESTS_PER_CHILD = 2000  # caches of libraries grow
REPLY_BYTES = 2**24  # no reply is longer
FOREIGN = {"status": "error", "detail": "bytes that are no reply on the channel of replies"}
LONG = 1e6  # seconds; the kernel ends a child earlier
ORPHAN_CHECK_SECONDS = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)


class Limits(NamedTuple):
    """Limits of one request; `memory_bytes` on top of what the warmed process has."""

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: float


@functools.cache  # in the parent: a child would copy a hundred pages for it
def _used() -> int:
    """Return the size of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_process(limits: Limits) -> None:
    """Bound the memory of this process and tie its life to its parent's."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    ceiling = _used() + int(limits.memory_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for expired in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(expired, signal.SIG_DFL)


@contextmanager
def deadline(limits: Limits) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


Serve = Callable[[BinaryIO, BinaryIO, Limits], None]  # answers requests until they end
Died = Callable[[], object]  # called after the death of a child; int does nothing


class Child(NamedTuple):
    pid: int
    requests: BinaryIO
    replies: int


def _fork(limits: Limits, serve: Serve, parents: int) -> Child:
    """Fork a child without the parent's descriptors: 0, 1, and `parents` for its replies."""
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    with os.fdopen(request_read, "rb") as requests, os.fdopen(reply_write, "wb") as replies:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for descriptor in {request_write, reply_read, 0, 1, parents}:
                    os.close(descriptor)
                serve(requests, replies, limits)
                status = 0
            finally:
                os._exit(status)  # the pipes end now, and not before
    return Child(pid, os.fdopen(request_write, "wb"), reply_read)


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    """Return True if bytes, or the end of their writer, can be read within `seconds`."""
    poll = select.poll()  # select() fails on descriptors of 1024 and more
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def read_reply(descriptor: int, token: bytes, seconds: float = LONG) -> bytes:
    """Return a line, or what cannot become one that begins with `token`.

    Less if the writer ends or the time is over.
    """
    end, reply = time.monotonic() + seconds, b""
    while reply[: len(token)] == token[: len(reply)] and len(reply) < REPLY_BYTES:
        if b"\n" in reply or not is_readable(descriptor, end - time.monotonic()):
            break
        if not (more := os.read(descriptor, 2**16)):
            break
        reply += more
    return reply


def _end(child: Child, died: Died) -> tuple[dict[str, str], bool]:
    """Kill a child; return its cause of death, and whether it wrote more than what was read."""
    with suppress(BrokenPipeError):
        child.requests.close()
    os.kill(child.pid, signal.SIGKILL)  # without effect on a child that has died
    _, status = os.waitpid(child.pid, 0)
    died()
    more = is_readable(child.replies) and os.read(child.replies, 1) != b""
    os.close(child.replies)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        if limit := {"SIGPROF": "cpu", "SIGALRM": "wall"}.get(name):
            return {"status": "timeout", "detail": limit}, more
        return {"status": "error", "detail": f"killed by {name}"}, more
    return {"status": "error", "detail": f"exit code {os.WEXITSTATUS(status)}"}, more


def answer_requests(
    parent: int,
    replies: BinaryIO,
    limits: Limits,
    serve: Serve,
    died: Died = int,
    per_child: int = REQUESTS_PER_CHILD,
) -> None:
    """Pass the requests of stdin to children, `per_child` to each, and their replies to `replies`.

    Ends with stdin or with the caller, since another process may hold the pipe.
    """
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == parent or os._exit(1))
    signal.setitimer(signal.ITIMER_REAL, ORPHAN_CHECK_SECONDS, ORPHAN_CHECK_SECONDS)
    _used()
    gc.collect()
    gc.freeze()  # keeps the heap out of the forks' garbage collection, so pages stay shared
    child: Child | None = None
    served = 0
    for line in sys.stdin.buffer:
        if child and is_readable(child.replies):  # it died, or has more to say
            _end(child, died)
            child = None
        if child is None:
            child, served = _fork(limits, serve, replies.fileno()), 0
        token, served = line.partition(b" ")[0] + b" ", served + 1
        with suppress(BrokenPipeError):
            child.requests.write(line)
            child.requests.flush()
        reply = read_reply(child.replies, token)
        whole = reply.startswith(token) and reply.find(b"\n") == len(reply) - 1
        if not whole or served == per_child:
            cause, more = _end(child, died)
            child = None
            if more or not whole:
                reply = token + json.dumps(FOREIGN if reply else cause).encode() + b"\n"
        replies.write(reply)
        replies.flush()
