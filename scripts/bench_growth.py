"""What of a step does not get faster with more nodes: what breaks first on the way to 100.

    OMP_NUM_THREADS=2 python scripts/bench_growth.py [--responses 16384] [--tokens 8192]

More GPUs share rollouts, log-probabilities and the update. What is measured here happens in one
process, or once for every rank, whatever the number of nodes is: the driver's advantages and their
memory, the bytes that go through TransferQueue and the rate at which a process packs them, the
Python of a rollout worker, the grading of a response, and the look at a checkpoint of many ranks.
Each is measured at sizes that a laptop holds, and scaled linearly to `--responses` of `--tokens`;
the driver at two sizes, so that the reader sees whether that holds. Seconds are CPU seconds of the
process, which other load does not change. No GPU, no Ray, no network.
The lengths of the responses are all `--tokens`, the worst case.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from prompt_aug.commands import make_parser

PROMPT = 512
RANKS = 800  # 100 nodes of 8 GPUs
SHARDS = ("model", "optim", "extra_state")
# Per token, float32: what the trainer and the actor add to a row after its rollout.
ADDED = ("old_log_probs", "entropy", "rm_scores", "advantages", "returns")
HERE = Path(__file__).resolve()


def seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the fastest of some calls, after one unmeasured; all threads together."""
    function()
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        taken.append(time.process_time() - began)
    return min(taken)


def driver(rows: int, tokens: int) -> dict[str, float]:
    """Seconds and peak bytes of a CW-GRPO step on the driver; in a process of its own."""
    import bench_driver as bench

    made = bench.made_up(rows, tokens, 0)
    functions = bench.lines(made)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = sum(seconds(functions[name], 1) for name in bench.CW_GRPO)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "tokens": float(sum(made.lengths)),
        "seconds": taken,
        "bytes": 1024.0 * (after - before),
        "resident": 1024.0 * after,
    }


def in_a_process(rows: int, tokens: int) -> dict[str, float]:
    line = [sys.executable, str(HERE), "--driver", str(rows), "--tokens", str(tokens)]
    return dict(json.loads(subprocess.check_output(line, text=True)))


def row(tokens: int) -> tuple[dict[str, Any], float]:
    """(what is stored of one response, seconds of a rollout worker's Python for it)."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    from recipe.rollout.workers import to_rows

    text = "so that x = 17 and " * (tokens // 5)
    fields: list[dict[str, Any]] = []

    def make() -> None:
        output = AgentLoopOutput(
            prompt_ids=[1] * PROMPT,
            response_ids=list(range(tokens)),
            response_mask=[1] * tokens,
            response_logprobs=[-0.25] * tokens,
            reward_score=1.0,
            metrics={"generate_sequences": 0.5},
            extra_fields={"reward_extra_info": {"acc": 1.0, "response": text}},
        )
        known = {"uid": "u", "global_steps": 1, "extra_info": {"uid": "u", "answers": ["17"]}}
        fields[:] = to_rows({0: output}, known)[1]

    taken = seconds(make)
    return fields[0] | {name: torch.zeros(tokens) for name in ADDED}, taken


def volume(fields: dict[str, Any]) -> int:
    """Bytes of a stored row."""
    tensors = [value for value in fields.values() if isinstance(value, torch.Tensor)]
    others = {k: v for k, v in fields.items() if not isinstance(v, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in tensors) + len(repr(others))


def packing(fields: dict[str, Any]) -> float:
    """Seconds in which a process packs a row for TransferQueue's sockets, and unpacks it."""
    from transfer_queue.utils.serial_utils import decode, encode

    rows = [{k: v for k, v in fields.items() if isinstance(v, torch.Tensor)} for _ in range(32)]
    return seconds(lambda: decode([bytes(part) for part in encode(rows)])) / len(rows)


def grading(tokens: int) -> float:
    """Seconds of a reward worker for a response of so many tokens."""
    from prompt_aug.grading import grade

    words = "Let us look at the next case, where x + 3 = 20 and so on. "
    text = words * (tokens // 16) + "The answer is \\boxed{\\frac{34}{2}}."
    return seconds(lambda: grade(text, "17"), 5)


def checkpoint(folder: Path, ranks: int) -> float:
    """Seconds of the look at a checkpoint before it is believed; its files are here, not remote."""
    from recipe.run import checkpoints

    made = checkpoints.step_folder(folder, 1)
    (made / "actor").mkdir(parents=True)
    for rank in range(ranks):
        for kind in SHARDS:
            torch.save({}, made / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    (made / "actor" / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
    torch.save({}, made / "data.pt")
    (made / "recipe_state.json").write_text("{}")
    assert checkpoints.damage(made) is None
    return seconds(lambda: (checkpoints.damage(made), checkpoints.size(made)))


def lines(responses: int, tokens: int) -> list[str]:
    """The table, in Markdown."""
    small, large = in_a_process(128, tokens), in_a_process(512, tokens)
    whole = responses * tokens
    scale = whole / large["tokens"]
    fields, worker = row(tokens)
    size, pack, graded = volume(fields), packing(fields), grading(tokens)
    with tempfile.TemporaryDirectory() as folder:
        looked = checkpoint(Path(folder), RANKS)
    rate = {name: 1e9 * taken["seconds"] / taken["tokens"] for name, taken in
            (("small", small), ("large", large))}  # fmt: skip
    return [
        f"| where | measured | for {responses:,} responses of {tokens:,} tokens |",
        "|---|---|---|",
        f"| driver: advantages, weights, statistics of a CW-GRPO step | {rate['small']:.0f} and "
        f"{rate['large']:.0f} ns a token at {small['tokens']:,.0f} and {large['tokens']:,.0f} "
        f"tokens | {large['seconds'] * scale:.0f} s |",
        f"| driver: memory for it | {large['bytes'] / large['tokens']:.0f} bytes a token | "
        f"{large['bytes'] * scale / 2**30:.0f} GiB |",
        f"| TransferQueue: all columns of a response | {size / 1e3:.0f} kB | "
        f"{size * responses / 1e9:.1f} GB a step, written once and read at least once |",
        f"| one process packs and unpacks them | {size / pack / 1e9:.2f} GB/s | "
        f"{pack * responses:.0f} s, divided by the storage units |",
        f"| rollout workers: Python of a response | {1e3 * worker:.1f} ms | "
        f"{worker * responses:.0f} s, divided by the workers, while the engines generate |",
        f"| reward workers: grading of a response | {1e3 * graded:.1f} ms | "
        f"{graded * responses:.0f} s, divided by the workers, while the engines generate |",
        f"| checkpoint of {RANKS} ranks: {len(SHARDS) * RANKS + 3:,} files, looked at before a "
        f"start | {1e3 * looked:.0f} ms on a local disk | 1 ms more a file on a file system of "
        f"the network: {len(SHARDS) * RANKS * 2 / 1000:.0f} s |",
    ]


def main() -> None:
    parser = make_parser(
        "python scripts/bench_growth.py", __doc__, example="python scripts/bench_growth.py"
    )
    parser.add_argument("--responses", type=int, default=16384, help="of a step")
    parser.add_argument("--tokens", type=int, default=8192, help="of the longest response")
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        print(json.dumps(driver(given.driver, given.tokens)))
    else:
        print("\n".join(lines(given.responses, given.tokens)))


if __name__ == "__main__":
    main()
