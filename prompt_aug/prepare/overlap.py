"""Likeness of questions: overlap with benchmarks and near duplicates, by normalized n-grams.

A question is its lower-case words, numbers and operators, without layout, drawings ([asy]) and
punctuation. With G(q) the set of its n-grams (all its words as one, if it has fewer than n):

    overlap(q, b) = |G(q) & G(b)| / min(|G(q)|, |G(b)|)        n = 8
    likeness(q, r) = |G(q) & G(r)| / |G(q) | G(r)|             n = 3

With the minimum, a longer or shorter version of a question still matches. With the union, only
nearly equal questions match.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prompt_aug.base.progress import track
from prompt_aug.grading.echo import DRAWING

OVERLAP_N, OVERLAP_LIMIT = 8, 0.5
LIKENESS_N, LIKENESS_LIMIT = 3, 0.8

Gram = tuple[str, ...]
_LAYOUT = re.compile(r"\\(left|right|text|textbf|mathrm|mathbf|displaystyle|quad|qquad|,|;|!| )")
_FRACTION = re.compile(r"\\[dt]frac")
_WORD = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[-+*/=<>^|%!]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A benchmark question, number `index` of `of`, and its overlap in (0, 1] with a question."""

    of: str
    index: int
    score: float


def words(text: str) -> list[str]:
    """Return the words, numbers and operators of a question, in order."""
    text = _FRACTION.sub(r"\\frac", DRAWING.sub(" ", text))
    return _WORD.findall(_LAYOUT.sub(" ", text).lower().replace("\\", " "))


def grams(text: str, n: int) -> frozenset[Gram]:
    """Return the n-grams of `words`; fewer than n words are one gram; empty without words."""
    listed = words(text)
    if not listed:
        return frozenset()
    return frozenset(tuple(listed[i : i + n]) for i in range(max(1, len(listed) - n + 1)))


class OverlapIndex:
    """Index of the n-grams of benchmarks that finds the most similar benchmark question."""

    def __init__(self, benchmarks: Mapping[str, Sequence[str]]) -> None:
        self.sizes: list[tuple[str, int, int]] = []
        self.places: dict[Gram, list[int]] = defaultdict(list)
        for name, texts in benchmarks.items():
            for index, text in enumerate(texts):
                own = grams(text, OVERLAP_N)
                for gram in own:
                    self.places[gram].append(len(self.sizes))
                self.sizes.append((name, index, len(own)))

    def best(self, text: str) -> Match | None:
        """Return the benchmark question with the largest overlap; None without a shared n-gram."""
        own = grams(text, OVERLAP_N)
        shared = Counter(place for gram in own for place in self.places.get(gram, ()))
        scores = {p: count / min(len(own), self.sizes[p][2]) for p, count in shared.items()}
        if not scores:
            return None
        place = max(scores, key=scores.__getitem__)  # the first of equal ones
        name, index, _ = self.sizes[place]
        return Match(of=name, index=index, score=scores[place])


def near_duplicates(
    texts: Sequence[str], limit: float = LIKENESS_LIMIT, n: int = LIKENESS_N
) -> Iterator[tuple[int, int, float]]:
    """Yield all (i, j, likeness) with i < j and likeness >= `limit`, without comparing all pairs.

    Sets whose likeness is at least t share one of their first |G| - ceil(t |G|) + 1 grams in any
    common order. With the rarest grams first, few pairs have to be compared (prefix filter: Bayardo
    et al., "Scaling up all pairs similarity search", WWW 2007).
    """
    sets = [grams(text, n) for text in texts]
    frequency = Counter(gram for own in sets for gram in own)
    seen: dict[Gram, list[int]] = defaultdict(list)
    for j, own in enumerate(track(sets, "near duplicates", "questions")):
        rare = sorted(own, key=lambda gram: (frequency[gram], gram))
        prefix = rare[: len(own) - math.ceil(limit * len(own) - 1e-9) + 1]  # 1e-9: float noise
        for i in sorted({i for gram in prefix for i in seen[gram]}):
            shared = len(own & sets[i])
            likeness = shared / (len(own) + len(sets[i]) - shared)
            if likeness >= limit:
                yield i, j, likeness
        for gram in prefix:
            seen[gram].append(j)
