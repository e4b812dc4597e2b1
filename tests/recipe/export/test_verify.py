"""The independent reading of shards: where a piece lies, and that a wrong merge is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_shards import write
from torch.distributed.tensor.placement_types import Partial

from recipe.export.verify import MismatchError, compare, load_shards

WHOLE = {
    "buffer": torch.tensor(3),
    "a.weight": torch.arange(15, dtype=torch.float32).reshape(5, 3) / 7,
    "b.bias": torch.tensor([0.1]),  # one row for two ranks: the second one's part is empty
}


def merged(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    kept = {"buffer": WHOLE["buffer"]}
    return {name: value.to(dtype) for name, value in WHOLE.items()} | kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_ranks_equal_their_merge(tmp_path: Path, dtype: torch.dtype) -> None:
    write(tmp_path, WHOLE)
    assert compare(load_shards(tmp_path, 2), merged(dtype), dtype) == 15 + 1 + 1


def test_replicated_shards_of_a_two_dimensional_mesh(tmp_path: Path) -> None:
    write(tmp_path, WHOLE, replicas=2)
    shards = load_shards(tmp_path, 4)
    assert compare(shards, merged(), torch.float32) == 17
    # The merger reads the first replica only; a second one that differs is found here.
    shards[3]["a.weight"]._local_tensor[0, 0] += 1  # type: ignore[attr-defined]
    with pytest.raises(MismatchError, match=r"a\.weight: the merged values differ"):
        compare(shards, merged(), torch.float32)


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
        (2, lambda m: merged(torch.bfloat16), r"merged torch\.bfloat16"),
        (2, lambda m: {"c.weight": m.pop("a.weight"), **m}, r"2 names: a\.weight, c\.weight"),
    ],
    ids=["a bit", "order of shards", "a rank not read", "dtype", "names"],
)
def test_a_wrong_merge_is_refused(
    tmp_path: Path, ranks: int, change: Callable[[Tensors], Tensors], message: str
) -> None:
    write(tmp_path, WHOLE)
    with pytest.raises(MismatchError, match=message):
        compare(load_shards(tmp_path, 2)[:ranks], change(merged()), torch.float32)


def test_a_file_of_another_rank_is_refused(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    zero, one = (tmp_path / f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1))
    one.write_bytes(zero.read_bytes())
    with pytest.raises(MismatchError, match="rank 1 was written by another rank"):
        compare(load_shards(tmp_path, 2), merged(), torch.float32)


def test_pieces_that_fsdp_does_not_write_are_refused(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    shards: Any = load_shards(tmp_path, 2)
    spec = shards[1]["a.weight"]._spec
    spec.placements, right = (Partial(),), spec.placements
    with pytest.raises(MismatchError, match="not one that FSDP writes"):
        compare(shards, merged(), torch.float32)
    spec.placements = right
    shards[1]["a.weight"]._local_tensor.resize_(1, 3)
    with pytest.raises(MismatchError, match=r"rank 1 holds \(1, 3\), which is not its part of"):
        compare(shards, merged(), torch.float32)


def test_weights_that_are_not_finite_are_refused() -> None:
    broken = {"w": torch.tensor([1.0, float("nan")])}
    with pytest.raises(MismatchError, match="w holds values that are not finite"):
        compare([broken], broken, torch.float32)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    path = tmp_path / "model_world_size_2_rank_1.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(MismatchError, match=r"rank_1\.pt cannot be read, it is damaged"):
        load_shards(tmp_path, 2)
    path.unlink()
    with pytest.raises(MismatchError, match=r"rank_1\.pt is missing"):
        load_shards(tmp_path, 2)


def test_a_shard_runs_no_code(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    torch.save({"w": Hostile()}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(MismatchError, match="cannot be read"):
        load_shards(tmp_path, 1)
    assert not (tmp_path / "ran").exists()
