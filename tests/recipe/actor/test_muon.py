"""Muon: singular values of an update, AdamW for the rest, the same step on two FSDP2 ranks."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

from recipe.actor.muon import MuonAdamW, orthogonalize

LR, DECAY = 0.01, 0.1


def model() -> nn.Sequential:
    """Embeddings, a wide and a tall matrix with biases, and an output head."""
    torch.manual_seed(0)
    layers = [nn.Embedding(10, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)]
    return nn.Sequential(*layers, nn.Linear(6, 10, bias=False))


def trained(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.arange(10)).logsumexp(-1).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (16, 16)])
def test_orthogonal_updates(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    found = torch.linalg.svdvals(orthogonalize(matrix))
    assert 0.6 < found.min() <= found.max() < 1.3
    torch.testing.assert_close(orthogonalize(100 * matrix), orthogonalize(matrix))  # no scale
    aligned = (orthogonalize(matrix) * matrix).sum() / matrix.norm()
    assert aligned > 0  # downhill


def test_a_step_by_hand() -> None:
    network = model()
    before = [p.detach().clone() for p in network.parameters()]
    optimizer = MuonAdamW(network.parameters(), lr=LR, weight_decay=DECAY)
    trained(network, optimizer, steps=1)
    for index in (1, 3):  # the matrices of the linear layers
        matrix, weight = before[index], list(network.parameters())[index]
        update = (matrix * (1 - LR * DECAY) - weight) / (LR * 0.2 * max(matrix.shape) ** 0.5)
        # The first momentum is parallel to the gradient.
        torch.testing.assert_close(update, orthogonalize(weight.grad), atol=1e-4, rtol=0)
    twin = model()
    names = ("betas", "eps", "lr", "weight_decay")
    adamw = torch.optim.AdamW(twin.parameters(), **{n: optimizer.defaults[n] for n in names})
    trained(twin, adamw, steps=1)
    same = [torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True)]
    assert same == [True, False, True, False, True, True]  # but for the two matrices


def test_a_saved_state_continues() -> None:
    whole, part = model(), model()
    trained(whole, MuonAdamW(whole.parameters(), lr=LR), steps=4)
    optimizer = MuonAdamW(part.parameters(), lr=LR)
    trained(part, optimizer, steps=2)
    again = MuonAdamW(part.parameters(), lr=LR)
    again.load_state_dict(optimizer.state_dict())
    trained(part, again, steps=2)
    for a, b in zip(whole.parameters(), part.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_a_model_without_matrices_is_rejected() -> None:
    with pytest.raises(ValueError, match="no matrix"):
        MuonAdamW(nn.Embedding(4, 2).parameters())


def on_a_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)  # a forked process has no others
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    network = model()
    fully_shard(network, mesh=dist.init_device_mesh("cpu", (2,)))
    trained(network, MuonAdamW(network.parameters(), lr=LR))
    found = [p.full_tensor() for p in network.parameters()]
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def test_two_ranks_take_the_same_steps(tmp_path: Path) -> None:
    """8 and 6 rows on two ranks; the gradient is the mean over ranks with the same data."""
    mp.start_processes(on_a_rank, args=(str(tmp_path),), nprocs=2, start_method="fork")
    alone = model()
    trained(alone, MuonAdamW(alone.parameters(), lr=LR))
    for a, b in zip(torch.load(tmp_path / "found.pt"), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
