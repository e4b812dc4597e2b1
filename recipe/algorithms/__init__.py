"""The algorithms: one file each, named after what it holds. torch and numpy only, float64.

`ADVANTAGES`: name -> function (rewards_B, group_B) -> advantages_B. Every one gives exactly 0 to a
group whose rewards are all equal, a group of one included, refuses rewards that are not finite, and
does not depend on the order of the rows or the ids of the groups.

`TOKEN_WEIGHTS`: name -> function (logprobs_BT, advantages_BT, mask_BT, group_B, **settings) ->
weights_BT, which multiply the advantages; 0 where the mask is 0. Statistics are over whole groups,
or the whole batch: micro-batches, padding and data-parallel ranks change nothing.

How a function gets in, from here or from outside: `recipe.algorithms.registry`. How they are put
together: `recipe.algorithms.compute`.
"""

import importlib
import pkgutil

from recipe.algorithms.registry import ADVANTAGES, TOKEN_WEIGHTS

__all__ = ["ADVANTAGES", "TOKEN_WEIGHTS"]

# A loss of the actor, registered with verl, which takes seconds to import and chooses its platform
# when it is: the actor's processes import it by the path in `actor.policy_loss._target_`.
IMPORT_VERL = ("gmpo",)

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in IMPORT_VERL:
        importlib.import_module(f"{__name__}.{_module.name}")
