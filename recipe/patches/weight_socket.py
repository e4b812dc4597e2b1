"""Two runs on one machine keep their weights apart.

After every step verl 0.9.1 hands the actor's weights to the engine through a socket in /tmp named
after the Ray job. A run that starts a Ray of its own, as `recipe.train` does, is job 01000000
there, and so is every other: two runs on one machine use one socket. When both hand over at the
same moment an engine gets the other run's weights, or both wait forever (seen). verl's pull
request 6246 meant to tell jobs apart by that id. Here the id of the run, a new one for every
launch, goes into the socket's name on both sides.

`recipe.plugin` loads this in every process; verl's module is changed when it is first imported.
tests/recipe/patches/test_weight_socket.py has a test that fails when verl closes the gap.
"""

import os
from types import ModuleType
from typing import Any

import wrapt

from recipe.run.environment import RUN_ID

MODULE = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
NAME = "/rl-colocate-zmq-"


def of_this_run(address: str) -> str:
    """verl's socket address with the run's id in its name; outside a run as it is."""
    run = os.environ.get(RUN_ID)
    return address.replace(NAME, f"{NAME}{run}-", 1) if run else address


@wrapt.when_imported(MODULE)
def adapt(module: ModuleType) -> None:
    """Give sender and receiver of weights the address of this run."""

    def initialise(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        instance.zmq_handle = of_this_run(instance.zmq_handle)

    for name in ("BucketedWeightSender", "BucketedWeightReceiver"):
        wrapt.wrap_function_wrapper(module, f"{name}.__init__", initialise)
