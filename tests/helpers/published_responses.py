"""A fixed corpus of responses, whole and broken, on which format rewards are compared.

Worked answers of the toy world in every template's format, then broken: a piece is repeated, lost,
moved, or replaced, mostly at a marker. The same list in every process and on every machine.
"""

import hashlib
import random
from collections.abc import Iterator

from prompt_aug.templates import load_bank
from recipe.toy.demonstrations import draw_demonstration
from recipe.toy.world import Problem, load_world

SIZE = 6500  # responses, an equal part of them in the format of each template
MARKERS = sorted({marker for t in load_bank().values() for marker in t.published})
PIECES = [*MARKERS, *(m.strip() for m in MARKERS), "\n", " ", "", "\\boxed{1}", "</s>", "<think"]


def broken(text: str, chance: random.Random) -> str:
    """`text` after up to four changes."""
    for _ in range(chance.randrange(5)):
        here = [m for m in MARKERS if m in text]
        place = text.find(chance.choice(here)) if here else chance.randrange(len(text) + 1)
        end = min(len(text), place + chance.randrange(1, 24))
        piece = chance.choice([text[place:end], *PIECES])
        kind = chance.randrange(3)
        cut = text[:place] + (text[place:] if kind == 0 else text[end:])
        spot = chance.randrange(len(cut) + 1) if kind == 2 else min(place, len(cut))
        text = cut[:spot] + piece + cut[spot:]
    return text


def responses() -> Iterator[str]:
    """SIZE responses."""
    world, names, chance = load_world("sums"), load_bank().names, random.Random(0)
    for i in range(SIZE):
        b, a = sorted(chance.randrange(10, 100) for _ in range(2))
        problem = Problem(a=a, op=chance.choice("+-"), b=b, level=2)
        whole = draw_demonstration(world, problem, names[i % len(names)], "published", i)
        yield whole if i % 5 == 0 else broken(whole, chance)


def digest(texts: list[str]) -> str:
    """SHA-256 of texts in their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
