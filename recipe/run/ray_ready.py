"""Wait until all nodes have joined Ray: ``python -m recipe.run.ray_ready NODES SECONDS``.

Polls the cluster of RAY_ADDRESS. After the timeout: exit code 1 and a message with what to check.
"""

import os
import sys
import time


def main(nodes: int, seconds: float) -> int:
    import ray

    address = os.environ["RAY_ADDRESS"]
    end, alive = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
            alive = sum(node["Alive"] for node in ray.nodes())
        except (ConnectionError, RuntimeError):  # the first node is not up yet
            alive = 0
        if alive >= nodes:
            print(f"Ray has {alive} nodes: {ray.cluster_resources()}")
            return 0
        time.sleep(2)
    print(
        f"only {alive} of {nodes} nodes joined Ray at {address} within {seconds:.0f} s: look at "
        "the lines of srun and ray above; do the nodes reach each other on that port "
        "(NETWORK_INTERFACE, RAY_PORT in scripts/cluster.env)? READY_SECONDS waits longer",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
