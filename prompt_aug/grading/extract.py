r"""Where in a response the answer is.

The response ends at the first end marker. Within it, in this order:

1. the last closed `\boxed{...}` (or `\fbox`); boxes joined only by ",", "and" or "or" are one
   list; a later "final answer is $...$" replaces it;
2. the content of the last `<answer>` tag;
3. what follows the last answer phrase, and
4. a value as the whole response or as its conclusion (both in `grading_prose`).

`Extraction.strict` stops after boxes. A bare number somewhere in the text is not an answer unless
`last_number=True` allows it: it would reward a response that never commits itself.
An unclosed box is not an answer either: such a response was cut while it was being written.
All searches are linear in the length of the response.
"""

import re
from dataclasses import dataclass

from prompt_aug.grading.prose import after_phrase, conclusion, final_formula, unwrap

END_MARKERS = (
    "</s>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "[END]",
    "<|im_start|>user",
    "<|start_header_id|>user",
)
_BOX = re.compile(r"\\f?box(?:ed)?\b[ \t]*")
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_BARE_BOX = re.compile(r"-?\d[\d.,]{0,40}(?<![.,])|[A-Za-z]\b")
# What may stand between two boxes of one list: $\boxed{1}$ for part (a) and $y = \boxed{2}$.
_JOIN = re.compile(
    r"(?:[\s$]|\\q?quad|\\[()\[\]])*(?:\\text\{)?\s*"
    r"(?:(?:for|in)\s+(?:part\s+|case\s+)?\(?\w\)?\s*)?(?:,|,?\s*and\b|,?\s*or\b)\s*\}?"
    r"(?:[\s$]|\\q?quad|\\[()\[\]])*(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?|"
)
_MAX_JOIN = 48
_NUMBER = re.compile(r"-?\d[\d,]{0,40}(?:\.\d{1,40})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Extraction:
    """How far the search for an answer may go."""

    strict: bool = False
    last_number: bool = False
    answer_tag: str = "answer"


def cut_at_end_marker(response: str, answer_tag: str = "answer") -> str:
    """The response before the first text that says that it is over."""
    for marker in (*END_MARKERS, f"</{answer_tag}>"):
        response = response.partition(marker)[0]
    return response


def extract(response: str, settings: Extraction) -> str | None:
    """The answer as the model wrote it, or None."""
    text = cut_at_end_marker(response, settings.answer_tag)
    boxes = closed_boxes(text)
    if boxes:
        later = None if settings.strict else final_formula(text, boxes[-1][1])
        return joined(text, boxes) if later is None else later
    if settings.strict:
        return None
    _, tag, inside = text.rpartition(f"<{settings.answer_tag}>")
    if tag:
        return unwrap(inside) or None
    if (stated := after_phrase(text) or conclusion(text)) is not None:
        return stated
    if settings.last_number and (numbers := _NUMBER.findall(text)):
        return str(numbers[-1]).rstrip(",")
    return None


def last_boxed(text: str) -> str | None:
    """The content of the last closed box, with the boxes that a comma or "and" joins to it."""
    boxes = closed_boxes(text)
    return joined(text, boxes) if boxes else None


def joined(text: str, boxes: list[tuple[int, int, str]]) -> str:
    """The content of the last of `boxes` and of those joined to it."""
    contents = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if start - end > _MAX_JOIN or not _JOIN.fullmatch(text[end:start]):
            break
        contents.append(content)
    return ", ".join(reversed(contents)).strip()


def closed_boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of every outermost box that closes, in order; one pass over braces."""
    starts = {match.end(): match.start() for match in _BOX.finditer(text)}
    if not starts:
        return []
    boxes = [
        (start, found.end(), found.group())
        for after, start in starts.items()
        if (found := _BARE_BOX.match(text, after))
    ]
    open_braces: list[int] = []
    for brace in _BRACE.finditer(text, min(starts)):
        if brace.group() == "{":
            open_braces.append(brace.start())
        elif brace.group() == "}" and open_braces:
            opened = open_braces.pop()
            if opened in starts:
                boxes.append((starts[opened], brace.end(), text[opened + 1 : brace.start()]))
    boxes.sort(key=lambda box: (box[0], -box[1]))
    outermost: list[tuple[int, int, str]] = []
    for box in boxes:
        if not outermost or box[0] >= outermost[-1][1]:
            outermost.append(box)
    return outermost
