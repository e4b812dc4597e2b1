"""Muon for the matrices of a model, AdamW for the rest.

    actor_rollout_ref.actor.optim.optimizer_impl=recipe.actor.muon
    actor_rollout_ref.actor.optim.optimizer=MuonAdamW

torch's own Muon takes only matrices; verl gives an optimizer all parameters in one list.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.adamw import adamw

# Newton-Schulz coefficients, steps and momentum, as in Keller Jordan's Muon and torch.optim.Muon.
COEFFICIENTS, STEPS, MOMENTUM = (3.4445, -4.775, 2.0315), 5, 0.95


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return U S' V^T for matrix = U S V^T, with S' between about 0.7 and 1.2, in float32.

    X_0 = M / |M|_F and five times X <- a X + b (X X^T) X + c (X X^T)^2 X.
    """
    a, b, c = COEFFICIENTS
    x = matrix.float()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class MuonAdamW(torch.optim.Optimizer):
    """M <- 0.95 M + 0.05 G; W <- W (1 - lr wd) - lr 0.2 sqrt(max(rows, columns)) ortho(nesterov M).

    The factor gives an update the root mean square of AdamW's (arXiv 2502.16982), so that AdamW's
    learning rate fits. AdamW updates the vectors and all matrices with the shape of the first
    parameter: the token embeddings and a separate output head. Under FSDP2 each rank computes the
    update of the whole matrix and keeps its shard.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        given = list(params)
        rest = [p for p in given if p.ndim != 2 or p.shape == given[0].shape]
        kept = {id(p) for p in rest}
        groups: list[dict[str, Any]] = [
            {"params": [p for p in given if id(p) not in kept], "matrices": True},
            {"params": rest, "matrices": False},
        ]
        if not groups[0]["params"]:
            raise ValueError("MuonAdamW: the model has no matrix beside its embeddings.")
        super().__init__(
            groups, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            (self._muon if group["matrices"] else self._adamw)(trained, group)

    def _muon(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p)
            moving = state["momentum_buffer"].lerp_(p.grad, 1 - MOMENTUM)
            update = p.grad.lerp(moving, MOMENTUM)
            if isinstance(update, DTensor):
                whole = orthogonalize(update.full_tensor())
                update = distribute_tensor(
                    whole.to(p.dtype), update.device_mesh, update.placements, src_data_rank=None
                )
            else:
                update = orthogonalize(update).to(p.dtype)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)

    def _adamw(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p]["step"] = torch.tensor(0.0)
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        states = [self.state[p] for p in params]
        beta1, beta2 = group["betas"]
        adamw(
            params,
            [p.grad for p in params],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
