"""The algorithms, one file each. torch and numpy only, float64.

`ADVANTAGES`: name -> function (rewards_B, group_B) -> advantages_B. Each returns exactly 0 for
a group whose rewards are all equal, a group of one included, and raises for rewards that are not
finite. The result depends neither on the order of rows nor on the ids of groups.

`TOKEN_WEIGHTS`: name -> function (logprobs_BT, advantages_BT, mask_BT, group_B, **settings) ->
weights_BT, which multiply the advantages; 0 where the mask is 0. Statistics are over whole groups
or the whole batch, so micro-batches, padding and data-parallel ranks change nothing.

`recipe.algorithms.registry` registers functions, also those of other packages;
`recipe.algorithms.compute` combines them.
"""

import importlib
import pkgutil

from recipe.algorithms.registry import ADVANTAGES, TOKEN_WEIGHTS

__all__ = ["ADVANTAGES", "TOKEN_WEIGHTS"]

# A loss of the actor. It imports verl, which takes seconds and fixes the platform, so only the
# actor's processes import it, by the path in `actor.policy_loss._target_`.
IMPORT_VERL = ("gmpo",)

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in IMPORT_VERL:
        importlib.import_module(f"{__name__}.{_module.name}")
