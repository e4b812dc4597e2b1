"""Separate weight sockets for two runs on one machine.

After every step verl 0.9.1 sends the actor's weights to the engine through a socket in /tmp named
after the Ray job. Every run with its own Ray, as `recipe.train` starts it, is job 01000000, so two
runs on one machine use one socket. If both send at the same time, an engine gets the other run's
weights, or both wait forever (observed). verl's pull request 6246 separates jobs only by that
id. Here the run's id, new for every launch, is part of the socket's name on both sides.
"""

import os
from types import ModuleType
from typing import Any

import wrapt

from recipe.run.environment import RUN_ID

MODULE = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
NAME = "/rl-colocate-zmq-"


def of_this_run(address: str) -> str:
    """verl's socket address with the run's id in its name; unchanged outside a run."""
    run = os.environ.get(RUN_ID)
    return address.replace(NAME, f"{NAME}{run}-", 1) if run else address


@wrapt.when_imported(MODULE)
def adapt(module: ModuleType) -> None:
    """Give sender and receiver of weights the address of this run."""

    def initialize(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        instance.zmq_handle = of_this_run(instance.zmq_handle)

    for name in ("BucketedWeightSender", "BucketedWeightReceiver"):
        wrapt.wrap_function_wrapper(module, f"{name}.__init__", initialize)
