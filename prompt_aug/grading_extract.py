r"""Where in a response the answer is.

The response ends at the first end marker. Within it, in this order:

1. the last closed `\boxed{...}` (or `\fbox`); boxes joined only by ",", "and" or "or" are one list;
2. the content of the last `<answer>` tag;
3. what follows the last "answer is", "answer:", "answer =" or "####".

`Extraction.strict` stops after 1. A bare number somewhere in the text is not an answer unless
`last_number=True` allows it: it would reward a response that never commits itself.
An unclosed box is not an answer either: such a response was cut while it was being written.
All searches are linear in the length of the response.
"""

import re
from collections import deque
from dataclasses import dataclass

END_MARKERS = (
    "</s>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "[END]",
)
_BOX = re.compile(r"\\f?box(?:ed)?\b[ \t]*")
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_BARE_BOX = re.compile(r"-?\d[\d.,]{0,40}(?<![.,])|[A-Za-z]\b")
_JOIN = re.compile(
    r"(?:[\s$]|\\q?quad)*(?:\\text\{)?\s*(?:,|,?\s*and|,?\s*or)\s*\}?(?:[\s$]|\\q?quad)*"
)
_MAX_JOIN = 48
_MAX_PHRASE = 300
_PHRASE = re.compile(
    r"answer(?:\*\*)?[ \t]{0,4}(?:is|:|=)[ \t]{0,4}(?:\*\*)?[ \t]{0,4}[:=]?|####", re.IGNORECASE
)
_MATH = re.compile(
    r"\s{0,9}(?:\$\$(?P<display>[^$]{1,300})\$\$|\$(?P<inline>[^$\n]{1,300})\$(?!\s{0,3},)"
    r"|\\\((?P<round>.{1,300}?)\\\)|\\\[(?P<square>.{1,300}?)\\\])",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"\n|[.;!?](?=\s|$)")
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
    if (boxed := last_boxed(text)) is not None:
        return boxed
    if settings.strict:
        return None
    _, tag, inside = text.rpartition(f"<{settings.answer_tag}>")
    if tag:
        return _unwrap(inside) or None
    if (phrase := _after_phrase(text)) is not None:
        return phrase
    if settings.last_number and (numbers := _NUMBER.findall(text)):
        return str(numbers[-1]).rstrip(",")
    return None


def last_boxed(text: str) -> str | None:
    """The content of the last closed box, with the boxes that a comma or "and" joins to it."""
    boxes = _closed_boxes(text)
    if not boxes:
        return None
    contents = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        between = text[end:start] if start - end <= _MAX_JOIN else ""
        if not _JOIN.fullmatch(between):
            break
        contents.append(content)
    return ", ".join(reversed(contents)).strip()


def _closed_boxes(text: str) -> list[tuple[int, int, str]]:
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


def _after_phrase(text: str) -> str | None:
    last = deque(_PHRASE.finditer(text), maxlen=1)
    if not last:
        return None
    tail = text[last[0].end() : last[0].end() + _MAX_PHRASE]
    if math := _MATH.match(tail):
        return (math["display"] or math["inline"] or math["round"] or math["square"]).strip()
    tail = tail.lstrip()
    end = _SENTENCE_END.search(tail)
    return _unwrap(tail[: end.start()] if end else tail) or None


def _unwrap(text: str) -> str:
    return text.strip().strip("*").strip()
