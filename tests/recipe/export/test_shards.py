"""Shards: on another number of ranks training continues; a wrong merge or file is refused."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from saved_checkpoint import write_shards
from torch.distributed.tensor import Shard

from recipe.errors import ConfigError
from recipe.export import shards
from recipe.export.verify import MismatchError, compare, load_shards
from recipe.run.checkpoints import saved_ranks

pytestmark = pytest.mark.config

# For each line of its input: trains from the shards in a folder, if there are any, and saves them
# as verl's FSDP engine does.
TRAIN = """
import json, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank = int(sys.argv[1])


def train(source, target, ranks, steps, fresh):
    source, target = Path(source), Path(target)
    store = target.with_suffix(".store")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(7)
    # 5 rows over two ranks are pieces of 3 and 2; of 1 row the second rank has none.
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    name = f"world_size_{ranks}_rank_{rank}.pt"
    done = 0
    if source.is_dir():
        read = lambda kind: torch.load(source / f"{kind}_{name}", weights_only=False)
        model.load_state_dict(read("model"))
        if not fresh:
            optimizer.load_state_dict(read("optim"))
            schedule.load_state_dict(read("extra_state")["lr_scheduler"])
        done = read("extra_state")["lr_scheduler"]["last_epoch"]
    for step in range(done, done + steps):
        rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank]
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step(), schedule.step(), optimizer.zero_grad()
    target.mkdir(exist_ok=True)
    torch.save(model.state_dict(), target / f"model_{name}")
    torch.save(optimizer.state_dict(), target / f"optim_{name}")
    random = {"cpu": torch.get_rng_state()}
    extra = {"lr_scheduler": schedule.state_dict(), "rng": random}
    torch.save(extra, target / f"extra_state_{name}")
    (target / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    whole = {key: value.full_tensor() for key, value in model.state_dict().items()}
    if rank == 0:
        torch.save(whole, target / "whole.pt")
    dist.barrier()
    dist.destroy_process_group()


for line in sys.stdin:
    train(**json.loads(line))
    print("done", flush=True)
"""


Train = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture
def train() -> Iterator[Train]:
    """Return a function that trains on `ranks` processes of two; it returns the whole weights."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(rank)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip

    def trained(
        source: Path, target: Path, ranks: int, fresh: bool = False
    ) -> dict[str, torch.Tensor]:
        job = {"source": str(source), "target": str(target), "ranks": ranks, "steps": 2}
        for process in started[:ranks]:
            print(json.dumps({**job, "fresh": fresh}), file=process.stdin, flush=True)
        for process in started[:ranks]:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
        weights: dict[str, torch.Tensor] = torch.load(target / "whole.pt", weights_only=True)
        return weights

    yield trained
    for process in started:
        process.kill()
        process.wait()


def divide(source: Path, target: Path, ranks: int) -> Path:
    shutil.copytree(source, target)
    shards.reshard(target, ranks)
    assert saved_ranks(target) == ranks
    assert len(list(target.glob("*_rank_*.pt"))) == 3 * ranks  # the old ones are deleted
    return target


def gap(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def test_one_and_two_ranks_continue_each_others_training(train: Train, tmp_path: Path) -> None:
    none = tmp_path / "none"
    train(none, tmp_path / "a2", ranks=1)
    four = train(tmp_path / "a2", tmp_path / "a4", ranks=1)
    six = train(tmp_path / "a4", tmp_path / "a6", ranks=1)
    more = divide(tmp_path / "a2", tmp_path / "two", ranks=2)
    for killed in (True, False):  # before the old files were deleted, then once more
        if killed:
            shutil.copy(more / "extra_state_world_size_2_rank_0.pt",
                        more / "extra_state_world_size_1_rank_0.pt")  # fmt: skip
        digests = {p.name: p.read_bytes() for p in more.glob("*_world_size_2_*.pt")}
        shards.reshard(more, 2)
        assert {p.name: p.read_bytes() for p in more.glob("*_rank_*.pt")} == digests
    result = train(more, tmp_path / "b4", ranks=2)
    assert gap(four, result) < 1e-6
    less = divide(tmp_path / "b4", tmp_path / "one", ranks=1)
    assert gap(six, train(less, tmp_path / "c6", ranks=1)) < 1e-6
    # Negative control: without Adam's state the weights differ.
    fresh = train(more, tmp_path / "fresh", ranks=2, fresh=True)
    assert gap(four, fresh) > 1e-3


@pytest.mark.parametrize("old", [1, 2, 3, 4, 7])
def test_a_rank_gets_its_chunk_of_the_tensor(old: int) -> None:
    for rows, ranks, dim in itertools.product((1, 2, 5, 6, 8, 13), (1, 2, 3, 5, 8), (0, 1)):
        shape = (rows, 3) if dim == 0 else (3, rows)
        full = torch.arange(3 * rows).reshape(shape)
        chunks = full.chunk(old, dim)
        empty = full.narrow(dim, 0, 0)
        parts: Any = [
            SimpleNamespace(
                placements=[Shard(dim)],
                shape=full.shape,
                _local_tensor=(*chunks, *[empty] * old)[i],
            )
            for i in range(old)
        ]
        wanted = [*full.chunk(ranks, dim), *[empty] * ranks]
        for rank in range(ranks):
            result = shards.merged(parts, rank, ranks)
            assert torch.equal(result, wanted[rank]), (rows, ranks, dim, rank)
            assert result.untyped_storage().nbytes() == result.nbytes


def test_two_replicas_of_three_ranks_become_eight_ranks(tmp_path: Path) -> None:
    full = {"w": torch.arange(14.0).reshape(7, 2)}
    write_shards(tmp_path, full, ranks=3, replicas=2)
    for rank in range(6):
        torch.save({"rng": rank}, tmp_path / f"extra_state_world_size_6_rank_{rank}.pt")
    (tmp_path / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 6}')
    shards.reshard(tmp_path, 8)
    assert compare(load_shards(tmp_path, 8), full, torch.float32) == 14
    extra = [
        shards.load_shard(tmp_path / f"extra_state_world_size_8_rank_{r}.pt") for r in range(8)
    ]
    assert [state["rng"] for state in extra] == [0, 1, 2, 3, 4, 5, 0, 1]


def test_shards_that_do_not_say_how_they_are_divided_are_refused(tmp_path: Path) -> None:
    record = tmp_path / "fsdp_config.json"
    for rank in (0, 1):
        torch.save({"w": torch.tensor([rank])}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    for version, output in ((1, "strategy=fsdp: "), (2, "w is not the same on all ranks")):
        record.write_text(json.dumps({"FSDP_version": version, "world_size": 2}))
        with pytest.raises(ConfigError, match=output):
            shards.reshard(tmp_path, 1)
        assert saved_ranks(tmp_path) == 2


WHOLE = {
    "buffer": torch.tensor(3),
    "a.weight": torch.arange(15, dtype=torch.float32).reshape(5, 3) / 7,
    "b.bias": torch.tensor([0.1]),  # one row for two ranks: the second one's part is empty
}


def model_of(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    kept = {"buffer": WHOLE["buffer"]}
    return {name: value.to(dtype) for name, value in WHOLE.items()} | kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_ranks_equal_their_merge(tmp_path: Path, dtype: torch.dtype) -> None:
    write_shards(tmp_path, WHOLE)
    assert compare(load_shards(tmp_path, 2), model_of(dtype), dtype) == 15 + 1 + 1


def test_replicated_shards_of_a_two_dimensional_mesh(tmp_path: Path) -> None:
    write_shards(tmp_path, WHOLE, replicas=2)
    shards = load_shards(tmp_path, 4)
    assert compare(shards, model_of(), torch.float32) == 17
    # The merger reads the first replica only; a second one that differs is found here.
    shards[3]["a.weight"]._local_tensor[0, 0] += 1  # type: ignore[attr-defined]
    with pytest.raises(MismatchError, match=r"a\.weight: the merged values differ"):
        compare(shards, model_of(), torch.float32)


Tensors = dict[str, torch.Tensor]


def flipped(model: Tensors) -> Tensors:
    model["a.weight"].view(torch.int32)[4, 2] ^= 1
    return model


@pytest.mark.parametrize(
    ("ranks", "change", "message"),
    [
        (2, flipped, r"a\.weight: the merged values differ"),
        (2, lambda m: {**m, "a.weight": m["a.weight"].roll(2, 0)}, "the merged values differ"),
        (1, lambda m: m, "do not cover"),
        # What verl's merger does with float32 shards when float32 was asked for.
        (2, lambda m: model_of(torch.bfloat16), r"merged torch\.bfloat16"),
        (2, lambda m: {"c.weight": m.pop("a.weight"), **m}, r"2 names: a\.weight, c\.weight"),
    ],
    ids=["a bit", "order of shards", "a rank not read", "dtype", "names"],
)
def test_a_wrong_merge_is_refused(
    tmp_path: Path, ranks: int, change: Callable[[Tensors], Tensors], message: str
) -> None:
    write_shards(tmp_path, WHOLE)
    with pytest.raises(MismatchError, match=message):
        compare(load_shards(tmp_path, 2)[:ranks], change(model_of()), torch.float32)


def test_a_file_of_another_rank_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, WHOLE)
    zero, copied = (tmp_path / f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1))
    copied.write_bytes(zero.read_bytes())
    with pytest.raises(MismatchError, match="rank 1 was written by another rank"):
        compare(load_shards(tmp_path, 2), model_of(), torch.float32)


def test_weights_that_are_not_finite_are_refused() -> None:
    broken = {"w": torch.tensor([1.0, float("nan")])}
    with pytest.raises(MismatchError, match="w holds values that are not finite"):
        compare([broken], broken, torch.float32)


def test_a_shard_runs_no_code(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    torch.save({"w": Hostile()}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load_shards(tmp_path, 1)
    assert not (tmp_path / "ran").exists()
