"""The rule about the loss: verl's by name, or the user's class and function, called once.

verl reads a loss of the user only in the first update, after the first rollouts.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from recipe.config.compose import one_line
from recipe.config.verl import LOSS, LOSSES, A
from recipe.start.rules import Setup, note


def known_loss(s: Setup) -> Iterator[str]:
    """The loss is verl's, or the user's class exists and registers it."""
    if not s.own_loss:
        if s.loss not in LOSSES:
            yield s.message(LOSS, f"unknown. Known are {', '.join(LOSSES)}.")
        return
    # The run imports verl anyway, in the process of these checks.
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.utils.config import omega_conf_to_dataclass

    target = f"{A}.policy_loss._target_"
    try:
        omega_conf_to_dataclass(s.actor.policy_loss)
    except Exception as error:  # whatever the user's module raises
        yield s.message(
            target,
            f"{one_line(error.__cause__ or error)}. Correct the class or its fields, or put the "
            "folder of its package into PYTHONPATH.",
        )
        return
    if s.actor.policy_loss.loss_mode not in POLICY_LOSS_REGISTRY:
        yield s.message(
            f"{LOSS} {target}",
            f"not registered. Known are {', '.join(POLICY_LOSS_REGISTRY)}. Register yours with "
            "verl's @register_policy_loss in the module of the class.",
        )
        return
    loss = POLICY_LOSS_REGISTRY[s.actor.policy_loss.loss_mode]
    if getattr(loss, "__globals__", {}).get("__name__", "").startswith("verl."):  # not of a wrapper
        yield s.message(
            f"{LOSS} {target}",
            "this loss is verl's, so the class has no effect. Set the first key to the name that "
            "its module registers.",
        )
        return
    try:
        config = omega_conf_to_dataclass(s.actor)
        check_result(*call_loss(loss, config, bool(s.correction.rollout_is)))
    except TypeError as error:
        yield s.message(
            LOSS, f"a call as verl's actor makes it, by keywords, failed: {one_line(error)}."
        )
    except Exception as error:  # perhaps only here: it may need a GPU or other processes
        note(f"{LOSS}: a trial call failed: {error!r}")


def call_loss(loss: Callable[..., Any], config: Any, weighted: bool) -> tuple[Any, torch.Tensor]:
    """Call a loss on two responses of three tokens, as verl's `ppo_loss`; raise what it raises.

    Returns its result, and the log-probabilities that its gradient is of.
    """
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=6,
        global_batch_size=2,
        loss_scale_factor=config.loss_scale_factor,
    )
    given_BT = torch.linspace(-2.0, -0.1, 6).reshape(2, 3).requires_grad_()
    logprobs_BT = given_BT * 1  # no leaf, as in the actor
    result = loss(
        old_log_prob=logprobs_BT.detach(),
        log_prob=logprobs_BT,
        advantages=torch.tensor([[1.0], [-1.0]]).expand(2, 3).clone(),
        response_mask=torch.ones(2, 3, dtype=torch.bool),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=torch.ones(2, 3) if weighted else None,
    )
    return result, given_BT


def check_result(result: Any, given_BT: torch.Tensor) -> None:
    """Raise TypeError if a loss does not return (loss of no dimension, {name: one number}).

    Also without a finite gradient of `given_BT`, at which the ratio is 1.
    """
    try:
        value, metrics = result
        numbers = [value, *metrics.values()]
        wrong = value.dim() or any(torch.as_tensor(number).numel() != 1 for number in numbers)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"its result is not (loss, metrics): {error}") from error
    if wrong:
        raise TypeError("its loss or a metric is not one number")
    if not value.requires_grad:
        raise RuntimeError("its loss has no gradient")  # perhaps only here, if it selects tokens
    value.backward()
    if given_BT.grad is None or not given_BT.grad.isfinite().all():
        raise TypeError("its gradient is NaN or infinite where the ratio is 1")
