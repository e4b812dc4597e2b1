"""Benchmarks, one subcommand each: `python scripts/bench.py NAME --help`."""

import functools
import inspect
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run_command
from prompt_aug.base.files import iter_lines, read_json
from prompt_aug.base.progress import track
from prompt_aug.extraction import EXTRACTIONS, extraction
from recipe.machine.environment import ENGINE_THREADS
from recipe.machine.host import ROOT
from recipe.run.folder import read_config, read_metrics

# ------------------------------------------------------------------------- step

PARTS = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
WORKER = [
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "actor_rollout_ref.model.external_lib=[recipe.patches.cpu.engines,recipe.rollout.agent_loop]",
]
POLL = ["recipe.rollout.poll_seconds=2.0"]
EXECUTOR = ["actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"]
ACTOR = ["actor_rollout_ref.model.external_lib=recipe.patches.cpu.engines"]
BLOCKS = ["actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=128"]
ENGINE = [f"{ENGINE_THREADS}={len(os.sched_getaffinity(0))}", *BLOCKS]
DEFAULT = "+ small blocks of the prompt cache"
DIFFERENCE = "training/rollout_probs_diff_max"  # verl's: largest over the tokens of a step
# Variant -> overrides that restore verl's default, and NAME=value for the environment.
VARIANTS = {
    "verl's defaults": WORKER + POLL + EXECUTOR + ENGINE,
    "+ short poll": WORKER + EXECUTOR + ENGINE,
    "+ engine in its core process": WORKER + ENGINE,
    "+ questions, not rollouts": ACTOR + ENGINE,
    "+ prefix trees in the actor": ENGINE,
    "+ half of the threads for the engine": BLOCKS,
    DEFAULT: [],
    "+ bypass mode": ["algorithm.rollout_correction.bypass_mode=true"],
}


def train(example: str, run_dir: Path, steps: int, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Train `steps` steps without validation and checkpoints; return the metrics of each.

    A setting of `ENGINE_THREADS` is a variable of the environment, the others are overrides.
    """
    overrides = [s for s in settings if not s.startswith(ENGINE_THREADS)]
    variables = dict(s.split("=") for s in settings if s.startswith(ENGINE_THREADS))
    command = [sys.executable, "-m", "recipe.train", example, f"recipe.run_dir={run_dir}"]
    command += [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    command += ["trainer.test_freq=-1", "trainer.val_before_train=false", *overrides]
    if len(read_metrics(run_dir)) < steps:
        done = subprocess.run(command, env={**os.environ, **variables})
        if done.returncode:
            sys.exit(done.returncode)  # the training has said why
    return read_metrics(run_dir)


def step(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Seconds of a CPU step: verl's defaults, then this project's changes added one by one.

    Each variant is a real run of examples/toy from the same start model. The table holds the median
    seconds of the steps after the first, and the ratio to the project's default. The last variant
    uses the engine's log-probabilities as the old ones (verl's bypass mode). The line below the
    table is the largest difference between engine and actor. Finished variants are not run again.
    """
    parser.add_argument("--steps", type=int, default=6, help="of each variant")
    parser.add_argument("--only", nargs="+", default=[""], help="variants with one of these words")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_step"), help="for the runs")
    given = parser.parse_args(arguments)
    runs = {
        name: train("toy", given.out / re.sub(r"\W+", "_", name).strip("_"), given.steps, settings)
        for name, settings in VARIANTS.items()
        if name == DEFAULT or any(word in name for word in given.only)
    }
    rows = {
        name: {p: statistics.median(m[f"timing_s/{p}"] for m in lines[1:]) for p in PARTS}
        for name, lines in runs.items()
    }
    print(f"| median seconds | {' | '.join(PARTS)} | step / default |")
    print("|---" * (len(PARTS) + 2) + "|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[p]:.2f}" for p in PARTS)
        print(f"| {name} | {cells} | {row['step'] / rows[DEFAULT]['step']:.2f} |")
    largest = max(m[DIFFERENCE] for m in runs[DEFAULT])
    print(f"largest difference of a token's probability, engine and actor: {largest:.1e}")


# ------------------------------------------------------------------------- model


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call, including the work that it starts on the device."""
    import torch

    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], calls: int = 3) -> float:
    """Return the median seconds of `calls` calls after one, which may compile."""
    return statistics.median([seconds(work) for _ in range(1 + calls)][1:])


def product_rate(shape: Any, dtype: Any, rows: int, rounds: int) -> float:
    """Return the operations per second of the products of one layer with `rows` tokens."""
    import torch

    sizes = [(shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden)]
    sizes += [(shape.hidden, shape.heads * shape.head_dim)] * 2
    pairs = [(torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)) for k, n in sizes]

    def products() -> None:
        for left, right in pairs:
            torch.nn.functional.linear(left, right)

    done = sum(2 * rows * right.numel() for _, right in pairs)
    rates = [done / seconds(products) for _ in range(rounds)]
    return statistics.median(rates[rounds // 10 :])


def model(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Shares of the processor's matrix products that a CPU step of a real model reaches.

    Trains some steps of `--example` with `--model` on `--data`, then measures products of the
    model's own shapes. With P parameters, a pass over T tokens costs 2 P T operations and an update
    6 P T; T counts each prompt once and every response. Groups without signal have no backward
    pass, so the update's figure assumes (2 + 4 s) P T for the share s of groups with one. The rate
    is that of the step's precision, the median of `--rounds`. Beside other work all figures are
    lower.
    """
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--data", required=True, help="a .parquet of questions")
    parser.add_argument("--example", default="smollm2", help="whose settings are used")
    parser.add_argument("--steps", type=int, default=3, help="the first is not counted")
    parser.add_argument("--rounds", type=int, default=100, help="of the products")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_model"), help="the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the training")
    given = parser.parse_intermixed_args(arguments)
    import torch

    from recipe.machine.shapes import shape_of

    settings = [f"data.{key}=[{given.data}]" for key in ("train_files", "val_files")]
    settings += [f"recipe.model_path={given.model}", *given.overrides]
    lines = train(given.example, given.out, given.steps, settings)[1:]
    config, shape = read_config(given.out), shape_of(given.model)
    rollout, questions = config["actor_rollout_ref"]["rollout"], config["data"]["train_batch_size"]
    dtype, responses = getattr(torch, rollout["dtype"]), rollout["n"]
    sizes = {"gen": questions * responses, "old_log_prob": 1024, "update_actor": 1024}
    best = {part: product_rate(shape, dtype, size, given.rounds) for part, size in sizes.items()}
    print(f"{dtype} products\n| part | rows | GFLOP/s | seconds | GFLOP/s | share |")
    print("|---|---|---|---|---|---|")
    for part, size in sizes.items():
        done = 0.0
        for line in lines:
            lengths = line["prompt_length/mean"] + responses * line["response_length/mean"]
            signal = 1 - line["train/no_signal_groups"]
            passes = 2 + 4 * signal if part == "update_actor" else 2
            done += passes * shape.parameters * questions * lengths
        taken = [line[f"timing_s/{part}"] for line in lines]
        reached = done / sum(taken)
        rates = f"{best[part] / 1e9:.0f} | {statistics.mean(taken):.1f} | {reached / 1e9:.0f}"
        print(f"| {part} | {size} | {rates} | {reached / best[part]:.0%} |")


def peer(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """GRPO steps on a CPU here and with TRL, and the gradient of one update in both.

    TRL runs in an environment of its own, beside --out, on the same questions. TRL has no vLLM on a
    CPU. Prints both configurations. See bench_peer.py.
    """
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--data", required=True, help="a .parquet of questions")
    parser.add_argument("--steps", type=int, default=5, help="of each; the median counts")
    parser.add_argument("--batch", type=int, default=32, help="responses of TRL's micro-batch")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_peer"), help="a new folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the training")
    given = parser.parse_intermixed_args(arguments)
    import bench_peer

    if given.out.exists():
        parser.error(f"--out {given.out}: exists. Name a new folder.")
    given.out.mkdir(parents=True)
    settings = [f"data.{key}=[{given.data}]" for key in ("train_files", "val_files")]
    settings += ["method=grpo", f"recipe.model_path={given.model}", *given.overrides]
    with bench_peer.peak_memory() as peaks:
        train("smollm2", given.out / "ours", given.steps, settings)
    bench_peer.compare(given.model, given.out, given.batch, peaks)


# ------------------------------------------------------------------------- attention

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 1000}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def packed(tokens: int, device: str) -> dict[str, Any]:
    """Return one row of `tokens` tokens; each sequence has positions from 0."""
    import torch

    draw = torch.Generator().manual_seed(tokens)
    cuts = torch.randint(300, 1501, (tokens // 300 + 1,), generator=draw).cumsum(0)
    ends = [0, *(int(cut) for cut in cuts if cut < tokens), tokens]
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(ends)])
    ids = torch.randint(0, 1000, (1, tokens), generator=draw)
    return {"input_ids": ids.to(device), "position_ids": positions[None].to(device)}


def attention(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Update of the actor on one GPU, by attention and tokens of a micro-batch.

    A bfloat16 model of random weights, with the shape of Qwen2.5-Math-1.5B, computes
    log-probabilities (forward) and an update (forward and backward, gradient checkpointing) of
    packed sequences of 300 to 1,500 tokens (the last is cut). MFU is 8 operations per parameter and
    token, as a share of --peak. Sharding, optimizer and verl's own work are not included. A CPU
    runs a tiny model.
    """
    parser.add_argument("--attention", nargs="+", default=["sdpa"], help="implementations")
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 1024], help="micro-batches")
    parser.add_argument("--repeats", type=int, default=3, help="calls; the median counts")
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s in bfloat16")
    given = parser.parse_args(arguments)
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    import recipe.actor.varlen  # noqa: F401  (registers torch_varlen)
    from recipe.patches.logprobs import logprobs

    cuda, shapes = torch.cuda.is_available(), read_json(ROOT / "recipe/machine/shapes.json")
    device, fields = ("cuda", shapes["Qwen/Qwen2.5-Math-1.5B"]) if cuda else ("cpu", TINY)

    def forward(actor: Any, batch: dict[str, Any]) -> torch.Tensor:
        logits = actor(**batch, use_cache=False).logits[0, :-1]
        return logprobs(logits, batch["input_ids"][0, 1:])

    def update(actor: Any, batch: dict[str, Any]) -> None:
        forward(actor, batch).mean().backward()

    print("| attention | tokens | update, us a token | log-probs | MFU | peak GB |")
    print("|---|---|---|---|---|---|")
    for name in given.attention:
        with torch.device(device):
            config = Qwen2Config(**fields, attn_implementation=name)
            actor = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        actor.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for tokens in given.tokens:
            batch = packed(tokens, device)
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            times = [median_seconds(functools.partial(update, actor, batch), given.repeats)]
            peak = torch.cuda.max_memory_allocated() / 1e9 if cuda else float("nan")
            with torch.no_grad():
                call = functools.partial(forward, actor, batch)
                times.append(median_seconds(call, given.repeats))
            actor.zero_grad(set_to_none=True)
            share = 8 * actor.num_parameters() * tokens / times[0] / given.peak
            cells = " | ".join(f"{1e6 * t / tokens:.1f}" for t in times)
            print(f"| {name} | {tokens:,} | {cells} | {share:.3f} | {peak:.1f} |", flush=True)


# ------------------------------------------------------------------------- grading

NAMES = {  # of columns; the first that exists is used
    "response": ("response", "completion", "generation", "output", "solution"),
    "gold": ("gold", "gt", "ground_truth", "ground_truth_answer", "answer"),
    "verdict": ("is_correct", "correct", "verdict", "score"),
}
HOSTILE = (
    "9^{9^{9^9}}",
    "(10^9)!",
    "((9!)!)!",
    "1" * 10**6,
    "{" * 2000 + "1" + "}" * 2000,
    r"\sqrt{" * 300 + "2" + "}" * 300,
    r"\sum_{k=1}^{10^9} \frac{1}{k}",
    r"(x+1)^{100000} - x^{9^{9^9}}",
    r"\sum_{k=1}^{98765} \frac{1}{k!}",
)


def workload(ordinary: int, hostile: int, seed: int) -> list[tuple[str, ...]]:
    """Return shuffled (kind, response, gold); kind is right, wrong or hostile."""
    rng = random.Random(seed)
    golds = [rf"\frac{{{n}}}{{{n + 1}}}" for n in range(1, 400)]
    golds += [str(n) for n in range(400)] + [rf"{n}\sqrt{{3}}" for n in range(2, 90)]
    text = "We compute step by step: " + "then $a+b=c$ and so on. " * 40
    rows: list[tuple[str, ...]] = []
    for index in range(ordinary):
        gold = rng.choice(golds)
        kind = "wrong" if index % 4 == 3 else "right"
        respelled = gold.replace(r"\frac", r"\dfrac") + " "
        answer = (gold, respelled, gold, gold + " + 1")[index % 4]
        rows.append((kind, rf"{text}Thus $\boxed{{{answer}}}$.", gold))
    for index in range(hostile):
        rows.append(("hostile", rf"\boxed{{{HOSTILE[index % len(HOSTILE)]}}}", rng.choice(golds)))
    rng.shuffle(rows)
    return rows


def stored(node: Any, question: str = "", gold: Any = None) -> Iterator[tuple[str, ...]]:
    """Yield (verdict, response, gold, question) of a line; the verdict is "right" or "wrong"."""
    if not isinstance(node, Mapping):
        return
    found = {
        kind: next((node[name] for name in names if name in node), None)
        for kind, names in NAMES.items()
    }
    question = node.get("question") or node.get("problem") or question
    gold = found["gold"] if found["gold"] is not None else gold
    responses, verdicts = found["response"], found["verdict"]
    if gold is not None and responses is not None and verdicts is not None:
        pairs = (responses, verdicts) if isinstance(responses, list) else ([responses], [verdicts])
        answer = re.split(r"####|\n?A:", str(gold))[-1].strip()
        for response, verdict in zip(*pairs, strict=True):
            yield "right" if float(verdict) == 1.0 else "wrong", response, answer, question
    for inner in node.values():
        yield from stored(inner, question, gold)


def score_all(
    name: str, score: Callable[[str, str], bool], rows: Sequence[tuple[str, ...]]
) -> dict[str, object]:
    """Score all rows from 64 threads and count the verdicts by kind, the first entry of a row."""
    start = time.perf_counter()
    with ThreadPoolExecutor(64) as threads:
        scored = threads.map(lambda row: score(row[1], row[2]), rows)
        verdicts = [next(scored) for _ in track(rows, name, "completions")]
    counts = Counter(
        f"{kind} scored {'right' if right else 'wrong'}"
        for (kind, *_), right in zip(rows, verdicts, strict=True)
    )
    return {"grader": name, "seconds": round(time.perf_counter() - start, 2), **counts}


def grading(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Ordinary and hostile completions graded by this grader and by verl's, side by side.

    Three in four of the ordinary ones are right (as written or respelled). 64 threads send the same
    pairs to each grader, like an asynchronous reward loop. verl's function is
    `reward_score.math_verify.compute_score`. Its limit of 30 s starts at submission, so right
    answers behind hostile ones can time out. Prints JSON.

    ``--corpus FOLDER`` grades real completions with stored verdicts: every .jsonl file below the
    folder, with a response, a gold and a verdict under one of the names of `NAMES`, also nested or
    as lists of equal length. If a gold is a worked solution, its end after "####" or "A:" is used.
    Also prints up to 20 completions on which this grader and the verdict differ.
    """
    parser.add_argument("--ordinary", type=int, default=1024, help="ordinary completions")
    parser.add_argument("--hostile", type=int, default=32, help="hostile ones, slow to evaluate")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and the order")
    parser.add_argument("--skip-verl", action="store_true", help="ours only")
    parser.add_argument("--corpus", type=Path, help="folder of real completions with verdicts")
    parser.add_argument("--extraction", choices=EXTRACTIONS, default="default", help="of a corpus")
    given = parser.parse_args(arguments)
    from prompt_aug.grading import grade

    rows = workload(given.ordinary, given.hostile, given.seed)
    if given.corpus:
        files = sorted(given.corpus.rglob("*.jsonl"))
        rows = [row for file in files for line in iter_lines(file) for row in stored(line)]
    questions = {(row[1], row[2]): row[3] for row in rows if len(row) > 3}
    reading, grades = extraction(given.extraction), dict[tuple[str, str], Any]()

    def ours(response: str, gold: str) -> bool:
        key = response, gold
        grades[key] = grade(*key, question=questions.get(key, ""), extraction=reading)
        return grades[key].correct

    report = score_all("prompt_aug.grading", ours, rows)
    differ = [row for row in rows if grades[row[1], row[2]].correct != (row[0] == "right")]
    for verdict, response, gold, *_ in differ[:20] if given.corpus else ():
        graded = grades[response, gold]
        grade_line = f"{verdict!r} stored, {graded.status}: {graded.extracted!r} for {gold!r}"
        print(f"{grade_line}; ends {response[-60:]!r}")
    statuses = Counter(grades[r, g].status for kind, r, g, *_ in rows if kind == "hostile")
    print(json.dumps({**report, "statuses of the hostile": statuses}))
    if not given.skip_verl:
        from verl.utils.reward_score.math_verify import compute_score

        theirs = score_all("verl math_verify", lambda r, g: compute_score(r, g) == 1.0, rows)
        print(json.dumps(theirs))


# ------------------------------------------------------------------------- trainer


def random_rows(config: Any, responses: int) -> Iterator[dict[str, Any]]:
    """Yield responses of 1 to `max_response_length` tokens, a third of them right."""
    import torch

    torch.manual_seed(0)
    longest, size = int(config.data.max_response_length), int(config.actor_rollout_ref.rollout.n)
    versions = 1 + int(config.recipe.rephrasings.count)
    for i in range(responses):
        tokens, right = int(torch.randint(1, longest + 1, ())), float(torch.rand(()) < 1 / 3)
        graded = {"acc": right, "format": 1.0, "response": "r", "pred": "7", "status": "correct"}
        extra = {
            "template": "ta-grpo",
            "rephrasing": i % size * versions // size,
            "generated_under": torch.ones(300, dtype=torch.int64),
            "truncated": tokens == longest,
            "reward_extra_info": graded | {"source": "math", "parts": {}},
        }
        names = ("old_log_probs", "rollout_log_probs", "ref_log_prob", "entropy")
        yield {
            "extra_info": {"uid": f"q{i // size}", "answers": ["1"]},
            "extra_fields": extra,
            "prompts": torch.ones(300, dtype=torch.int64),
            "responses": torch.ones(tokens, dtype=torch.int64),
            **{n: torch.ones(tokens, dtype=torch.int64) for n in ("response_mask", "loss_mask")},
            "rm_scores": torch.tensor([0.0] * (tokens - 1) + [right]),
            **{name: torch.rand(tokens).log() for name in names},
        }


def trainer_seconds(batch: Any, config: Any) -> list[float]:
    """Return the seconds of read, signal and write in one step."""
    from recipe.trainer import batch as batches
    from recipe.trainer.question_stats import QuestionStats
    from recipe.trainer.training_signal import signal_of

    times = [time.perf_counter()]
    fetched = batches.fetch(batch, batches.fields_of(config))
    times.append(time.perf_counter())
    settings: dict[str, Any] = {"step": 1, "filled_groups": (), "kl_controller": None}
    settings |= {"stats": QuestionStats(config.recipe), "weight_logprobs": None, "metrics": {}}
    *_, columns = signal_of(fetched, config, **settings)
    times.append(time.perf_counter())
    batches.write(fetched, columns)
    times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def trainer(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    """Seconds of the trainer process between log-probabilities and update; the GPUs are idle then.

    A random batch of --example goes through a real TransferQueue, with --threads of torch (Ray
    starts verl's trainer with one). read: the columns become a batch; signal: advantages and
    metrics; write: the columns for the actor. Median of --steps. Memory is the peak of the process
    above its start. ta_grpo trains 8,192 responses of 3,072 tokens at most in a step (10 GB).
    """
    parser.add_argument("--responses", type=int, default=1024, help="of a step")
    parser.add_argument("--example", default="ta_grpo", help="whose settings are used")
    parser.add_argument("--steps", type=int, default=3, help="the median counts")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    given = parser.parse_args(arguments)
    import resource

    import ray
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from recipe.config.compose import compose_config

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    torch.set_num_threads(given.threads)
    config = compose_config(given.example, ["machine=cpu"])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init(config.transfer_queue)
    made = list(random_rows(config, given.responses))
    size = int(config.actor_rollout_ref.rollout.n)
    keys = [f"{i // size:09d}-q{i // size}_{i % size}_0" for i in range(given.responses)]
    batch = tq.kv_batch_put(keys, "train", list_of_dict_to_tensordict(made), [{}] * len(keys))
    tokens = sum(len(row["responses"]) for row in made)
    del made
    before = peak()
    steps = [trainer_seconds(batch, config) for _ in range(given.steps)]
    print("| responses | tokens | read, s | signal | write | all | memory, GiB |")
    print("|---|---|---|---|---|---|---|")
    medians = [statistics.median(column) for column in zip(*steps, strict=True)]
    cells = " | ".join(f"{value:.2f}" for value in (*medians, sum(medians)))
    print(f"| {given.responses:,} | {tokens:,} | {cells} | {peak() - before:.1f} |")


# ------------------------------------------------------------------------- commands

BENCHMARKS: dict[str, tuple[Callable[[ArgumentParser, Sequence[str]], None], str]] = {
    "step": (step, "--steps 6"),
    "model": (model, "--model models/smollm2-warm --data data/smollm2/train.parquet"),
    "attention": (attention, "--attention sdpa torch_varlen --tokens 4096 8192 16384"),
    "peer": (peer, "--model models/smollm2-warm --data data/smollm2/train.parquet"),
    "trainer": (trainer, "--responses 2048 --steps 3"),
    "grading": (grading, "--corpus completions --extraction last_number"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in BENCHMARKS:
        lines = [f"{n:<12}{inspect.getdoc(f)}".splitlines()[0] for n, (f, _) in BENCHMARKS.items()]
        example, about = "python scripts/bench.py step --steps 6", "\n".join([str(__doc__), *lines])
        parser = make_parser("python scripts/bench.py", about, example=example)
        parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help="of a benchmark")
        parser.parse_args(given)  # prints the help or the error, and exits
    name, *rest = given
    benchmark, example = BENCHMARKS[name]
    called = f"python scripts/bench.py {name}"
    parser = make_parser(called, inspect.getdoc(benchmark), example=f"{called} {example}")
    return run_command(
        f"bench {name}", lambda: benchmark(parser, rest), interrupted="nothing is kept"
    )


if __name__ == "__main__":
    sys.exit(main())
