r"""Find the answer in a response; the order of the search is in GRADING.md.

A value is a number (with its unit), one formula, or several joined by commas, "and" or "or". All
searches are linear in the length of the response, because no pattern backtracks far.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from prompt_aug.grading.normalize import TEXT, TEXT_PATTERN, canonical
from prompt_aug.grading.units import UNSURE, split_unit

_MAX_PHRASE = 300
_MAX_TAIL = 700
_MAX_SENTENCE = 240
_MAX_VALUE = 160
_MIN_CLAUSE_WORDS = 4
_MAX_UNIT_WORDS = 3

_ROUND = r"\\\((?:\\[^()\n]|[^\\\n]){1,300}\\\)"
_SQUARE = r"\\\[(?:\\[^\[\]]|[^\\]){1,300}\\\]"
_SPAN = (
    rf"(?:\$\$(?:\\[^\n]|[^$\\]){{1,300}}\$\$|\$(?:\\[^\n]|[^$\\\n]){{1,300}}\$|{_ROUND}|{_SQUARE})"
)
_JOINED = r"\s{0,3}(?:,|,?\s{0,3}\b(?:and|or)\b)\s{0,3}"
_ANY_SPAN = re.compile(_SPAN)
_SPANS = re.compile(rf"{_SPAN}(?:{_JOINED}{_SPAN}){{0,20}}")
_REMARK_WORD = r"(?:as|since|because|which|by|so|in (?:total|all))\b"
_FIRST_SPAN = re.compile(
    rf"\s{{0,9}}({_SPAN})(?!\s{{0,3}},?\s{{0,3}}\b(?:and|or)\b(?!\s+we\s+are\s+done)|\s{{0,3}},(?!\s{{0,3}}{_REMARK_WORD}))"
)
_LAST_SPAN = re.compile(rf"({_SPAN})[\s.*]*$")
_ADVERB = "therefore|thus|hence|then|so|simply|just|indeed|exactly|approximately|about"
_SO = rf"(?:,?[ \t]{{0,2}}(?:{_ADVERB})\b,?[ \t]{{0,4}})"
_PHRASE = re.compile(
    r"(?-i:(?=[AaCcOo#]|^[ \t>*Ff]))"  # halves the time of the search
    r"(?:(?:answer|\bcorrect (?:option|choice))\*{0,2}[ \t]{0,4}(?:is(?![a-z])|:|=)[ \t]{0,4}"
    rf"{_SO}?(?:\*\*)?[ \t]{{0,4}}[:=]?"
    r"|(?:option|choice)[ \t](?=\**\(?[A-J]\)?\**[ \t]is[ \t](?:the[ \t])?correct\b)"
    r"|^[ \t>#*]{0,8}(?:(?:Ans\.?|A)(?:\*\*)?[ \t]{0,4}:[ \t*]{0,4}|(?:final )?answer[ \t*]{0,4}"
    r"(?:(?=\$\$|\\\[|\$[^$\n]+\$|\\\([^\n]+\\\))|\n|(?:[-–—]>?|→)[ \t]))"
    r"|####:?)",
    re.IGNORECASE | re.MULTILINE,
)
_CHOOSES = re.compile(r"correct|option|choice", re.IGNORECASE)
# After "####": a number of a list, a word of a proof's parts, two words without a digit, a colon.
_HEADING = re.compile(
    r"\d+[.)]\s+[A-Za-z]|.*:\W*$|[^\d\n]*[A-Za-z]{2}[^\d\n]*\s[^\d\n]*[A-Za-z]{2}[^\d\n]*$"
    r"|\W*(?:step|part|conclusion|solution|verification|answer|explanation|summary|check|result|proof"
    r"|analysis|reasoning|calculations?|final)\b",
    re.IGNORECASE,
)
# After a phrase: a judgment on an answer that was stated before, and a reason.
_JUDGMENT = re.compile(r"\W{0,4}(?:correct|helpful|(?:un)?clear|final)\s*(?:[.!?\n]|$)")
_REASON = re.compile(r"\s+(?:because|since|as|is\s+(?:the\s+)?correct)\b")
_OPTION = re.compile(r"^[ \t>#*]{0,8}[B-E](?:\*\*)?[ \t]{0,2}[:.)]", re.MULTILINE)
_SENTENCE_END = re.compile(rf"\n|[.;!?](?=\s|$)|,(?=\s+{_REMARK_WORD})")
_BREAK = re.compile(
    r"[.;!?](?:\*\*)?\s+|\n\s*|(?<=[$)\]])\s+(?=(?:So,|Therefore|Thus|Hence)(?![a-z]))"
)
_COURTESY = re.compile(r"\s*I hope (?:it|this) (?:is correct|helps)[.!]?\s*$")
_BOLD = re.compile(r"(?<![\w*)])\*\*(?![\s*])([^*\n]{1,160})(?<!\s)\*\*(?![\w*({-])")  # no power
# Markdown's emphasis by underscores, and HTML's. Indices, as in `x_1 + y_1`, `_5C_2`, are none.
_EMPHASIS = re.compile(
    r"(?<![\w\\)}\]])(_{1,3})(?![\s_])((?:[^_\n]|(?<=[a-zA-Z\d])_(?=[a-zA-Z\d{])){1,160})(?<!\s)\1"
    r"(?![\w({\\-])|<(b|strong|i|em|u)>(?=[^\n]{1,160}</\3>)|</(?:b|strong|i|em|u)>"
)
_CONCLUSION = re.compile(
    r"\W{0,4}(?:(?:and|so)\s+)?(?:therefore|thus|hence|consequently|in conclusion|so,)",
    re.IGNORECASE,
)
# A response that repeats the question has not answered it.
_ASKS = re.compile(
    r"^\W{0,4}(?:\w+ly\s+)?(?:find|evaluate|compute|calculate|simplify|solve|factor|expand"
    r"|determine|express|write|rationalize|convert|round|add|subtract|multiply|divide"
    r"|what|which|how|who|let|if|given|suppose|assume|consider|for|enter|prove|show"
    r"|the (?:equation|function|graph|expression))\b|\?\W*$",
    re.IGNORECASE,
)
_FINDS = re.compile(r"(?::|\b(?:that|get|gets|gives?|obtain|have|yields?))$")
_LIST_OPEN = re.compile(r"(?:,|\band|\bor)$")
_COPULA = re.compile(r"(?:\b(?:is|are|equal to|equals?|be)|'s)\b:?\s+|=\s*")
_NUMBER = r"-?\d[\d,]{0,40}(?:\.\d{1,40})?"
_AMOUNT = rf"{_NUMBER}(?:/\d{{1,20}})?(?:\s?\\?%)?"
_ANY_AMOUNT = re.compile(rf"(?<![\w.,/$\\])(?:-?\\?\$)?{_AMOUNT}(?!\w)")
_COMMAND = re.compile(rf"{TEXT_PATTERN}|\\[a-zA-Z]+")
_LETTERS = re.compile(r"[A-Za-z]+")
_KNOWN = frozenset("and or sin cos tan log ln exp".split())
# After a formula: it is retracted, one of several, or a part of another one.
_TAKEN_BACK = re.compile(
    r"\s*(?:[(;,-]\s*)?(?:or|if|otherwise|squared|cubed|times|plus|minus|no|wait|and(?!\s+we\s+are\s+done)|hundred|thousand"
    r"|[mbtr]+illion|dozen|hal(?:f|ves)|(?:third|quarter|fourth|fifth)s?|(?:is|was)\s+(?:wrong|false|not))\b"
    r"|\s*\?|\s*(?:[/^+*<>=$\d]|\\(?![\])])|-\s*[\d$\\(])"
    r"|[.!]?\s+(?:No|Wait|Actually|Correction|But)\b"
)
_SUPPOSED = re.compile(
    r"\b(?:half|twice|double|thrice|third|quarter|suppose|assume|assuming|if|unless|guess|whether"
    r"|(?:opposite|negative|square|cube|root|inverse|reciprocal) of|(?:before|after|than)"
    r"|doubt\w*|someone|he|she|they|you|refuse)\b"
    r"[^.\n]{0,24}(?:\banswer|$)",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z]{2,}")
_MIN_PROSE_WORDS = 2
# A label before a value: "Answer \[9\]" (tests of Math-Verify), \text{Final answer: }9.
_TITLED = re.compile(
    r"(?:\\text\w*\{|\*\*)?\s*((?:[A-Za-z]{2,3} )?(?:[A-Za-z]{4,}|Ans|Sum|So)(?: [a-z]+){0,3})"
    r"\s*([:=]?)\s*(?:\}|\*\*)?\s*([:=]?)\s*(\S.*?)[\s.]*",
    re.DOTALL,
)
# The labels that need no mark behind them: other words before a value change it ("multiple of 9").
_ANSWER = re.compile(
    r"(?:(?:the|my|our|final|correct|so|thus) )*(?:answer|ans|result|solution|value|total|sum|so"
    r"|thus|hence|therefore)(?: is| are)?",
    re.IGNORECASE,
)
_OPEN_END = re.compile(
    r"(?:\b(?:of|from|than|but|to|by|with|without|in|under|over|above|below|between|near|after|before|not"
    r"|excluding|times|base|less|more|minus|plus|anti))$",
    re.IGNORECASE,
)
_EVENT = re.compile(r"\b(?:probability|chance)s?\b[^.$\n]{1,80}?(?=\bis\b|=)", re.IGNORECASE)
_DENIES = re.compile(
    r"\b(?:not|cannot|can['’]t|isn['’]t|never|false|wrong|incorrect|at least|at most)\b",
    re.IGNORECASE,
)
_CORRECTS = re.compile(r", .*(?:\bis|'s)\b")  # not 16, it is 15
_CLAUSE_END = re.compile(r"[.!?;:,\n]")
_STEP = re.compile(
    r"\b(?:divid|multipl|subtract|add|substitut|squar|consider|assum|suppos|let|try|reject|exclud"
    r"|discard|contradict|equation|case|step|hold)\w*|both sides|ruled? out",
    re.IGNORECASE,
)
END_MARKERS = (
    "</s> <|im_end|> <|endoftext|> <|eot_id|> <|end_of_text|> <end_of_turn> <eos>"
    " <｜end▁of▁sentence｜> [END] <|im_start|>user <|start_header_id|>user <start_of_turn>user"
    " <｜User｜>"
).split()
_BOX = re.compile(r"\\f?box(?:ed)?\b[ \t]*")
_PLACEHOLDER = re.compile(
    r"(?:\\text\w*)?[\s{\[<]{0,9}(?:(?:your|the|final) )*answer(?: here)?[\s}\]>]{0,9}"
    r"|[.?_=\\]*|\\[lc]?dots|\\[hv]?phantom\{[^{}]*\}",
    re.IGNORECASE,
)
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_BARE_BOX = re.compile(r"-?\d[\d.,]{0,40}(?<![.,])|[A-Za-z]\b")
_GAP = r"(?:[\s$]|\\q?quad|\\[()\[\] ,;!])*"
_SIDE = r"(?:[A-Za-z](?:_\{?\w+\}?)?(?:\(\w{1,3}\))?|\(\w(?:,\s?\w){1,3}\))\s*=\s*"  # x =, f(1) =
_JOIN = re.compile(  # also side by side on one line
    rf"{_GAP}(?:\\text\{{)?\s*(?:,|,?\s*(?:and|or)\b)\s*\}}?{_GAP}(?:{_SIDE})?"
    r"|(?:[ \t$]|\\q?quad|\\[,;!])*"
)
_MAX_JOIN = 48


def is_value(text: str) -> bool:
    """Return whether the text is a value and nothing else."""
    text = _unwrap(text)
    if not text or len(text) > _MAX_VALUE:
        return False
    if _SPANS.fullmatch(text):
        return True
    plain = canonical(text)
    if "\n" in text or not re.search(r"\d|\\(?!text)[a-z]|^\W*[A-Za-z]\W*$", plain):
        return False
    number, unit = split_unit(plain)
    tail = plain[len(number) :] if unit is not None else ""
    if len(tail.split()) > _MAX_UNIT_WORDS or number.endswith((".", ":")):
        return False
    words = _LETTERS.findall(_COMMAND.sub(" ", number))
    return all(w in _KNOWN or len(w) == 1 or (w.isupper() and len(w) <= 3) for w in words)


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    last = deque(matches, maxlen=1)
    return last[0] if last else None


def after_phrase(text: str) -> str | None:
    """Return what follows the last "answer is", "Answer:", "####" and the like.

    A line "A: 18" counts too, unless other letters have such lines: those are options. A phrase
    without text after it is ignored, as an empty box is: the response was truncated. A phrase
    before a judgment and the "####" of a heading are ignored too.
    """
    options, stop = bool(_OPTION.search(text)), len(text.rstrip(" \t\n.:*$"))

    def states(phrase: re.Match[str]) -> bool:
        mark, end = phrase[0].strip(" \t>#*:"), phrase.end()
        if end >= stop or (options and mark == "A") or _JUDGMENT.match(text, end):
            return False
        line = text[end : end + _MAX_PHRASE].lstrip("# \t\n").partition("\n")[0]
        last = text.find("\n", end, stop) < 0
        return bool(mark) or last or is_value(line) or not _HEADING.match(line)

    found = list(filter(states, _PHRASE.finditer(text)))
    # "The answer is 12. So option C is correct."
    last = next(reversed([m for m in found if not _CHOOSES.match(m[0])] or found), None)
    if last is None:
        return None
    before = text[max(0, last.start() - 24) : last.start()]  # "the wrong answer is"
    lead = _CLAUSE_END.split(before)[-1]
    if _DENIES.search(lead + last[0]) or _SUPPOSED.search(lead):
        return None
    tail = text[last.end() : last.end() + _MAX_PHRASE]
    math = _FIRST_SPAN.match(tail)
    if math and not _TAKEN_BACK.match(tail, math.end()):
        return _inside(math[1])
    tail = tail.lstrip()
    end = _SENTENCE_END.search(tail)
    if end and end[0] == "?":
        return None
    sentence = _unwrap(tail[: end.start()] if end else tail)
    if math:  # the text after it changes it, so the whole line is the answer
        return _unwrap(tail.splitlines()[0])
    reason = _REASON.search(sentence)
    if reason and is_value(value := _unwrap(sentence[: reason.start()])):
        return value
    denied = _DENIES.match(sentence) and not _CORRECTS.search(sentence)
    if sentence[:1].isalpha() and not is_value(sentence) and not denied:
        return _after_copula(sentence) or _only_value(sentence) or sentence
    return sentence or None


def conclusion(text: str) -> str | None:
    """Return the value that a short response, or the last sentence of a long one, states."""
    short = len(text) <= _MAX_SENTENCE + _MAX_VALUE
    text = _BOLD.sub(r"\1", _COURTESY.sub("", text[-_MAX_TAIL:])).strip()
    if short and is_value(text):
        return text if not _ANY_SPAN.fullmatch(text) else _inside(text)
    span = _LAST_SPAN.search(text)
    lead = text[: span.start()].rstrip() if span else text.rstrip(" .!*\n")
    last_break = _last(_BREAK.finditer(lead))
    start = last_break.end() if last_break else 0
    concludes = bool(_CONCLUSION.match(lead[start:]))
    closed = span is not None or text.endswith((".", "!", ".**"))
    if not (concludes and closed) and (not short or last_break or _ASKS.search(text)):
        return None
    sentence = text[start:].rstrip(" .!*\n")
    if _DENIES.search(_EVENT.sub("", sentence)) or (
        "answer" in sentence and _SUPPOSED.search(sentence)
    ):
        return None
    if value := _after_copula(sentence):
        return value
    listed = _LIST_OPEN.search(lead) and re.search(r"[$\d\\]", lead[start:])
    if span and not listed and (concludes or _FINDS.search(lead)):
        return _inside(span[1])
    return _only_value(sentence) if concludes else None


def stated_value(answer: str) -> str | None:
    r"""Return the value that an answer with words states: 6\sqrt3 of `\text{The area is }6\sqrt3`.

    It follows "is", "are", "equals" or "=", or a label. None if the words deny, doubt, offer a
    choice or change the value.
    """
    plain = TEXT.sub(r" \1 ", canonical(answer))
    if UNSURE.search(plain) or _SUPPOSED.search(plain.rstrip(" .0123456789")):
        return None
    titled = _TITLED.fullmatch(answer.strip())
    if titled and split_unit(rf"1\text{{ {titled[1]}}}")[1] is not None:
        label, value = titled[1].strip(), titled[4]
        marked = (titled[2] or titled[3]) and not _OPEN_END.search(label)
        if marked and is_value(value):
            return value
        if _ANY_SPAN.fullmatch(value) and (marked or _ANSWER.fullmatch(label)):
            return value
    if len([word for word in _WORD.findall(plain) if word not in _KNOWN]) < _MIN_PROSE_WORDS:
        return None
    return _after_copula(plain.strip(" ."))


def _inside(span: str) -> str:
    """Return a formula without its delimiters."""
    width = 1 if span.startswith("$") and not span.startswith("$$") else 2
    return span[width:-width].strip()


def _unwrap(text: str) -> str:
    return text.strip().strip("*").strip()


def _after_copula(sentence: str) -> str | None:
    """Return the longest value that ends a sentence: "is 3 or 4" is not 4."""
    masked = _ANY_SPAN.sub(lambda span: "#" * len(span[0]), sentence)
    ends = (_unwrap(sentence[match.end() :]) for match in _COPULA.finditer(masked))
    return next((end for end in ends if is_value(end)), None)


def _only_value(sentence: str) -> str | None:
    """Return the only formula or number of a clause without doubt or a step of the work."""
    doubts = UNSURE.search(sentence) or _STEP.search(sentence)
    if doubts or len(sentence.split()) < _MIN_CLAUSE_WORDS:
        return None
    values = [_inside(span) for span in _ANY_SPAN.findall(sentence)]
    values += _ANY_AMOUNT.findall(_ANY_SPAN.sub(" ", sentence))
    return values[0] if len(values) == 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Extraction:
    """Settings of the search for an answer."""

    strict: bool = False
    last_number: bool = False
    answer_tag: str = "answer"


def extract(text: str, settings: Extraction, *, after_boxes: bool = False) -> str | None:
    """Return the answer of a response, or of its text after all boxes, as the model wrote it."""
    for marker in END_MARKERS:
        text = text.partition(marker)[0]
    text = text[: _end_of_answer(text, f"</{settings.answer_tag}>")]
    text = _EMPHASIS.sub(lambda match: match[2] or "", text)
    if after_boxes:
        text = text[max((end for _, end, _ in closed_boxes(text)), default=len(text)) :]
    _, thought, answered = text.rpartition("</think>")
    if thought and (answer := _answer_in(answered, settings)) is not None:
        return answer
    return _answer_in(text, settings)


def _end_of_answer(text: str, closing: str) -> int:
    """Return the position of the first closing tag that is not inside thoughts, else the end."""
    end = len(text)
    for mark in re.finditer(rf"</?think>|{re.escape(closing)}", text):
        if mark[0] == "</think>":
            end = len(text)
        elif mark[0] == closing:
            end = min(end, mark.start())
        elif end < len(text):
            break  # other thoughts follow the answer
    return end


def _answer_in(text: str, settings: Extraction) -> str | None:
    boxes = closed_boxes(text)
    while len(boxes) > 1 and is_placeholder(boxes[-1][2]):
        boxes.pop()
    if boxes:
        return _joined(text, boxes)
    if settings.strict:
        return None
    if cut := _BOX.search(text):
        text = text[: cut.start()].rstrip("$ \\([")  # the content of an unclosed box is incomplete
    _, tag, inside = text.rpartition(f"<{settings.answer_tag}>")
    if tag:
        return _unwrap(inside.partition(f"</{settings.answer_tag}>")[0]) or None
    if (stated := after_phrase(text) or conclusion(text)) is not None:
        return stated
    if settings.last_number and (numbers := re.findall(_NUMBER, text)):
        return str(numbers[-1]).rstrip(",")
    return None


def is_placeholder(content: str) -> bool:
    r"""Return whether a box is empty or shows where an answer goes: `\boxed{answer}`."""
    return bool(_PLACEHOLDER.fullmatch(content.strip(" \t\n$")))


def open_box(text: str) -> str:
    """Return the content of the last closed box and of those joined to it; without any, `text`."""
    boxes = closed_boxes(text)
    return (_joined(text, boxes) if boxes else "") or text


def _joined(text: str, boxes: list[tuple[int, int, str]]) -> str:
    """Return the content of the last of `boxes` and of those joined to it."""
    contents = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if start - end > _MAX_JOIN or not _JOIN.fullmatch(text[end:start]):
            break
        contents.append(content)
    return ", ".join(contents[::-1]).strip()


def closed_boxes(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, content) of every outermost closed box, in one pass over the braces."""
    starts = {match.end(): match.start() for match in _BOX.finditer(text)}
    if not starts:
        return []
    # The contents themselves would need quadratic memory for nested boxes, so their ends are kept.
    spans = [
        (start, bare.end(), *bare.span())
        for after, start in starts.items()
        if (bare := _BARE_BOX.match(text, after))
    ]
    open_braces: list[int] = []
    for brace in _BRACE.finditer(text, min(starts)):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            if opened in starts:
                spans.append((starts[opened], brace.end(), opened + 1, brace.start()))
    spans.sort(key=lambda span: (span[0], -span[1]))
    outermost: list[tuple[int, int, str]] = []
    for start, end, begins, ends in spans:
        if not outermost or start >= outermost[-1][1]:
            outermost.append((start, end, text[begins:ends]))
    return outermost
