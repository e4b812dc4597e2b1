"""The actor's rows as prefix trees and each by itself, in turns on a run's own responses.

    OMP_NUM_THREADS=1 python scripts/bench_prefix_tree.py RUN [--step 1] [--rows 64]

RUN is a run folder in a toy world with rollouts/, as examples/toy leaves them; its start model
computes the log-probabilities of the responses of a step, `--rows` at once, and their gradient.
Seconds are CPU seconds of the process, medians; places are those of the model's input. Last, how
far the two are apart: a log-probability at most, the gradient relative to its norm.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from prompt_aug.commands import make_parser
from prompt_aug.files import read_lines
from recipe.actor.prefix_tree import CAPACITY, plant
from recipe.patches.logprobs import logprobs
from recipe.run.folder import RunFolder

Rows = list[torch.Tensor]
Way = Callable[[Any, Rows], tuple[torch.Tensor, int]]


def by_itself(model: Any, rows: Rows) -> tuple[torch.Tensor, int]:
    """(log-probabilities of all tokens but the first of each row, places): padded, as in verl."""
    ids = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return logprobs(logits[:, :-1], ids[:, 1:])[mask[:, 1:] == 1], ids.numel()


def as_trees(capacity: int) -> Way:
    """The same from a forest with rows of `capacity` places."""

    def way(model: Any, rows: Rows) -> tuple[torch.Tensor, int]:
        forest = plant([row.tolist() for row in rows], capacity)
        out = model(
            input_ids=forest.ids_FL,
            attention_mask=forest.sees_F1LL,
            position_ids=forest.depth_FL,
            use_cache=False,
        )
        nodes = torch.cat([n[:-1] for n in forest.node_N.split([len(row) for row in rows])])
        labels = torch.cat([row[1:] for row in rows])
        return logprobs(out.logits.flatten(0, 1)[nodes], labels), forest.ids_FL.numel()

    return way


def responses(run: Path, step: int, tokenizer: Any) -> Rows:
    """Prompt, response and end of every rollout of a step, as token ids."""
    found = []
    for line in read_lines(RunFolder(run).rollouts(step)):
        text = line["prompt"] + line["response"]
        ids = tokenizer.encode(text, add_special_tokens=False)
        found.append(torch.tensor([*ids, tokenizer.eos_token_id]))
    return found


def measured(way: Way, model: Any, batches: list[Rows], gradient: bool) -> dict[str, Any]:
    """CPU seconds over all batches, the values, the gradient of their sum, and the places."""
    model.zero_grad()
    values, places, began = [], 0, time.process_time()
    with torch.set_grad_enabled(gradient):
        for rows in batches:
            found, size = way(model, rows)
            places += size
            values.append(found.detach())
            if gradient:
                found.sum().backward()
    spent = time.process_time() - began
    grads = [p.grad.flatten().clone() for p in model.parameters() if p.grad is not None]
    return {"spent": spent, "values": values, "grads": grads, "places": places}


def compare(model: Any, batches: list[Rows], capacity: int, repeats: int) -> Iterator[str]:
    """Lines of the report: without and with the gradient."""
    ways = {"by itself": by_itself, "as trees": as_trees(capacity)}
    for gradient in (False, True):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for _ in range(repeats + 1):  # the first one of each is not counted
            for name, way in ways.items():
                runs[name].append(measured(way, model, batches, gradient))
        one, other = (statistics.median(r["spent"] for r in runs[n][1:]) for n in ways)
        yield (
            f"{'forward and backward' if gradient else 'forward'}: by itself {one:.2f} s, as trees "
            f"{other:.2f} s, ratio {other / one:.2f}"
        )
    one_run, other_run = (runs[name][0] for name in ways)
    values = [torch.cat(r["values"]) for r in (one_run, other_run)]
    grads = [torch.cat(r["grads"]) for r in (one_run, other_run)]
    far = float((grads[0] - grads[1]).norm() / grads[0].norm())
    yield f"places: by itself {one_run['places']}, as trees {other_run['places']}"
    yield f"apart: log p {(values[0] - values[1]).abs().max():.1e}, gradient {far:.1e}"


def main() -> int:
    parser = make_parser(
        "python scripts/bench_prefix_tree.py",
        __doc__,
        example="python scripts/bench_prefix_tree.py runs/demo --step 12",
    )
    parser.add_argument("run", type=Path, help="a run folder with rollouts/")
    parser.add_argument("--step", type=int, default=1, help="of the run")
    parser.add_argument("--rows", type=int, default=64, help="of a micro-batch")
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="places of a row of trees")
    parser.add_argument("--repeats", type=int, default=3, help="of both, in turns")
    given = parser.parse_args()
    if not RunFolder(given.run).rollouts(given.step).is_file():
        parser.error(f"{given.run} has no rollouts of step {given.step}")
    config: Any = OmegaConf.load(RunFolder(given.run).config)
    model = AutoModelForCausalLM.from_pretrained(config.recipe.model_path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(config.recipe.model_path)
    rows = responses(given.run, given.step, tokenizer)
    batches = [rows[i : i + given.rows] for i in range(0, len(rows), given.rows)]
    tokens = sum(map(len, rows))
    print(f"step {given.step}: {len(rows)} responses, {tokens} tokens, {given.rows} rows at once")
    for line in compare(model, batches, given.capacity, given.repeats):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
