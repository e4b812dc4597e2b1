"""Draw the template and the rephrasing of a rollout: pure functions without a random generator.

    x = BLAKE2b-64(seed, epoch, uid[, rollout]) / 2^64  in [0, 1)
    template = number floor(x n) of n

A draw depends on its arguments alone, so it is the same for any number of workers, on every node,
and after a resume. arXiv 2602.03190 draws one template per question and epoch, shared by the whole
group (unseeded, uniform over 13).
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Literal, get_args

Mode = Literal["per_question", "per_rollout", "fixed"]
MODES: tuple[str, ...] = get_args(Mode)


def draw(
    *,
    seed: int,
    epoch: int,
    uid: str,
    rollout: int = 0,
    names: Sequence[str],
    mode: Mode = "per_question",
) -> str:
    """Return the name of the template of one rollout.

    `uid` identifies the question; `rollout` counts within its group and matters in the mode
    "per_rollout" only. "fixed" requires exactly one name.
    Raises ValueError for no names, repeated names or an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"unknown draw mode {mode!r}: known are {', '.join(MODES)}")
    if isinstance(names, str) or not names:
        raise ValueError("names must be a non-empty list of template names")
    if len(set(names)) != len(names):
        raise ValueError(f"a template is named twice in {list(names)}")
    if mode == "fixed":
        if len(names) != 1:
            raise ValueError(f"mode 'fixed' needs exactly one template, got {len(names)}")
        return names[0]
    key = [int(seed), int(epoch), str(uid)]
    if mode == "per_rollout":
        key.append(int(rollout))
    digest = hashlib.blake2b(json.dumps(["template", *key]).encode(), digest_size=8).digest()
    return names[int.from_bytes(digest) * len(names) >> 64]


def rephrasing(*, rollout: int, per_rephrasing: int, available: int) -> int:
    """Return the index n of a rollout's rephrasing: 0 is the question, n its n-th rephrasing.

        n = (rollout // per_rephrasing) mod (available + 1)

    `rollout` counts within the group, `per_rephrasing` is G, the responses to each rephrasing, and
    `available` the number of rephrasings in use. With N rephrasings and a group of (N + 1) G (arXiv
    2601.22478) every text gets exactly G. For a question with fewer rephrasings the group keeps its
    size and the texts repeat in order; without any, all responses answer the question itself.
    Raises ValueError for impossible counts.
    """
    if rollout < 0 or per_rephrasing < 1 or available < 0:
        raise ValueError(
            f"impossible: rollout={rollout}, per_rephrasing={per_rephrasing}, available={available}"
        )
    return rollout // per_rephrasing % (available + 1)
