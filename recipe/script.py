"""Commands of a shell script with the values of their arguments; nothing is executed.

tree-sitter's grammar of bash finds the commands. A variable has its last value above. After
branches that leave different values it has a word for each, of which none is sure. Inside a longer
word these are unknown, as are unset variables and the output of commands. The script has no
arguments.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

OPEN = "\ue000"  # before and after an unknown part of a word
UNKNOWN = re.compile(rf"{OPEN}[^{OPEN}]*{OPEN}")
FIELD = re.compile(rf"(?:{OPEN}[^{OPEN}]*{OPEN}|\\\n|\S)+")
LONGEST, MOST = 20_000, 300  # characters and words of a variable
COMMANDS = 5_000  # after these no function and no text is followed
CONTINUED = "\\\n"
BRANCHES = ("if_statement", "case_statement", "while_statement", "list")
LOOPS = ("for_statement", "c_style_for_statement")
EXPANSIONS = ("simple_expansion", "expansion")
PRINTS = ("echo", "printf")
DEFAULTS = ("-", ":-", "=", ":=")
NO_ARGUMENTS = ("variable_assignment", "file_redirect", "herestring_redirect")


class Word(NamedTuple):
    """An argument in its line; `sure` is False if only some branches pass it."""

    line: int
    text: str
    sure: bool = True

    def fields(self) -> Iterator["Word"]:
        """Yield the words into which the shell divides an unquoted value."""
        for match in FIELD.finditer(self.text):
            if text := match[0].replace(CONTINUED, ""):
                line = self.line + self.text[: match.start()].count("\n")
                yield Word(line, text, self.sure)


class Command(NamedTuple):
    """A command in lines `line` to `end`; its first word is the program."""

    line: int
    end: int
    words: tuple[Word, ...]


def commands(source: str, script: re.Pattern[str]) -> list[Command]:
    """Return the commands in order; an argument in which `script` is found is read as a script."""
    reader = Reader(script)
    reader.read(source, 1)
    return reader.found


def joined(parts: Iterable[Word]) -> Word:
    """Return one word, with continuations where a part after a blank is in a later line."""
    first, *rest = [*parts] or [Word(0, "")]
    text = first.text
    for part in rest:
        blank = text[-1:].isspace() or part.text[:1].isspace()
        text += CONTINUED * (part.line - first.line - text.count("\n")) * blank + part.text
    return first._replace(text=text if len(text) < LONGEST else OPEN)


def merged(options: Sequence[list[Word]]) -> list[Word]:
    """Return the value of a variable that has one of these values."""
    texts = [[word.text for word in option] for option in options]
    if all(text == texts[0] for text in texts):
        return options[0]
    alike = 0
    while len({text[alike] if alike < len(text) else None for text in texts}) == 1:
        alike += 1
    rest = {word.text: word._replace(sure=False) for option in options for word in option[alike:]}
    return [*options[0][:alike], *rest.values()][:MOST]


def source_of(node: Any) -> str:
    return str(node.text.decode(errors="replace"))


class Reader:
    """Walks through a syntax tree and keeps the values of variables."""

    def __init__(self, script: re.Pattern[str]) -> None:
        from tree_sitter import Language, Parser  # only where a script is read
        from tree_sitter_bash import language

        self.parser, self.script, self.first = Parser(Language(language())), script, 1
        self.found: list[Command] = []
        self.values: ChainMap[str, list[Word]] = ChainMap({"@": []})
        self.functions, self.called = dict[str, Any](), set[str]()

    def read(self, source: str, first: int) -> None:
        """Read a script whose first line is `first`, and last the functions without a call."""
        before = self.first, self.functions
        self.first, self.functions = first, {}
        self.visit(self.parser.parse(source.encode()).root_node)
        for name, body in [*self.functions.items()]:
            if name not in self.called:
                self.visit(body)
        self.first, self.functions = before

    def line(self, node: Any) -> int:
        return int(self.first + node.start_point[0])

    def visit(self, node: Any) -> None:
        """Read a node and what is in it."""
        children = node.children
        if node.type == "variable_assignment":
            self.assign(node)
        elif node.type == "function_definition":
            name = source_of(node.child_by_field_name("name"))
            self.functions[name], children = node.child_by_field_name("body"), []
        elif node.type in BRANCHES or node.type in LOOPS:
            self.branch(node)
            children = []
        elif node.type == "command":
            self.command(node)
            children = [x for x in children if x.type != "variable_assignment"]
        elif node.type == "heredoc_redirect" and self.script.search(source_of(node)):
            self.here_document(node)
        for child in children:
            self.visit(child)

    def branch(self, node: Any) -> None:
        """Read each branch from the same values, and keep what they leave."""
        apart = [x for x in node.children if x.type in ("elif_clause", "else_clause", "case_item")]
        common = [x for x in node.children if x not in apart]
        if node.type == "list":
            self.visit(common.pop(0))
        if node.type == "for_statement":
            name, *items, _ = node.named_children
            self.values[source_of(name)] = merged([[word] for word in self.words(items)] or [[]])
        options = [*([common] if node.type != "case_statement" else []), *([x] for x in apart)]
        if not (apart and source_of(apart[-1]).startswith(("else", "*"))):
            options.append([])
        before, results = self.values, []
        for nodes in options:
            self.values = before.new_child()
            for child in nodes:
                self.visit(child)
            results.append(self.values)
        self.values = before
        for name in {name for result in results for name in result.maps[0]}:
            before[name] = merged([result.get(name, []) for result in results])

    def command(self, node: Any) -> None:
        """Add a command, and read the function or the scripts that it runs."""
        words = self.words(x for x in node.named_children if x.type not in NO_ARGUMENTS)
        if not words:
            return
        plain = [word._replace(text=word.text.replace(CONTINUED, "")) for word in words]
        self.found.append(Command(self.line(node), self.first + node.end_point[0], tuple(plain)))
        program = plain[0].text
        if program == "shift":
            self.values["@"] = self.values["@"][1:]
        elif program in PRINTS or len(self.found) > COMMANDS:
            return
        elif program in self.functions:
            outer, body = self.values["@"], self.functions.pop(program)  # once if it calls itself
            self.called.add(program)
            self.values["@"] = words[1:]
            self.visit(body)
            self.values["@"], self.functions[program] = outer, body
        else:
            for word in words:
                known = UNKNOWN.sub("", word.text)
                if re.search(r"\s", known) and self.script.search(known):
                    self.read(word.text, word.line)

    def here_document(self, node: Any) -> None:
        """Read a here-document as a script; behind a quoted end its variables are its own."""
        parts = {child.type: child for child in node.children}
        if body := parts.get("heredoc_body"):
            is_quoted = source_of(parts["heredoc_start"])[0] in "\\'\""
            text = source_of(body) if is_quoted else joined(self.inside(body, 0)).text
            self.read(text, self.line(body))

    def assign(self, node: Any) -> None:
        """Set a variable, or add to it with +=."""
        name, value = (node.child_by_field_name(field) for field in ("name", "value"))
        old = self.values.get(source_of(name), []) if node.children[1].type == "+=" else []
        if value and value.type == "array":
            new = [*old, *self.words(x for x in value.named_children if x.type != "comment")]
        else:
            word = joined(part for part, _ in self.parts(value)) if value else Word(0, "")
            new = [joined([before, word]) for before in old] or [word]
        self.values[source_of(name)] = new if len(new) <= MOST else [Word(0, OPEN)]

    def words(self, nodes: Iterable[Any]) -> list[Word]:
        """Return the arguments of a command or an array."""
        found, end = list[Word](), -1
        for node in nodes:
            new = self.arguments(node)
            if node.start_byte == end and found and new:  # the grammar divides a-$B/c behind its $
                found[-1] = found[-1]._replace(text=found[-1].text + new.pop(0).text)
            found += new
            end = node.end_byte
        return found

    def arguments(self, node: Any) -> list[Word]:
        """Return the words that a command gets from a node."""
        inner = node.children[1] if node.type == "string" and node.child_count == 3 else node
        if inner.type in EXPANSIONS and len(node.text) - len(inner.text) in (0, 2):
            name, index, rest = reference(inner)
            if name in ("@", "*"):
                return self.values["@"]
            if not rest and name in self.values and index in ("", "@", "*"):
                words = self.values[name]
                return words if inner != node else [x for word in words for x in word.fields()]
        found, ended = list[Word](), True
        for part, is_divided in self.parts(node):
            new = [*part.fields()] if is_divided else [part]
            if new and not ended and not (is_divided and part.text[0].isspace()):
                found[-1] = joined([found[-1], new.pop(0)])
            found += new
            ended = not found or (is_divided and part.text[-1:].isspace())
        return found

    def parts(self, node: Any) -> Iterator[tuple[Word, bool]]:
        """Yield the parts of a word, each with True if the shell divides it at blanks."""
        line, text = self.line(node), source_of(node)
        if node.type in EXPANSIONS:
            yield self.value(node), True
        elif node.type == "string":
            yield from ((part, False) for part in self.inside(node, 1))
        elif node.type in ("concatenation", "command_name"):
            for child in node.children:
                yield from self.parts(child)
        elif node.type in ("raw_string", "ansi_c_string"):
            yield Word(line, text.partition("'")[2][:-1]), False
        elif node.child_count or text == "$":
            yield Word(line, f"{OPEN}{text}{OPEN}"), False
        else:
            yield Word(line, re.sub(r"\\(.)", r"\1", text.replace(CONTINUED, ""))), False

    def inside(self, node: Any, quotes: int) -> Iterator[Word]:
        """Yield the parts of a text in double quotes or of a here-document."""
        at, line = quotes, self.line(node)
        for child in [*(x for x in node.children if x.child_count), None]:
            end = child.start_byte - node.start_byte if child else len(node.text) - quotes
            text = node.text[at:end].decode(errors="replace")
            yield Word(line, re.sub(r'\\(["\\$`])', r"\1", text))
            line += text.count("\n")
            if child:
                yield from (part for part, _ in self.parts(child))
                at = child.end_byte - node.start_byte

    def value(self, node: Any) -> Word:
        """Return the value of a variable inside a word."""
        name, index, rest = reference(node)
        operator = rest[0].type if rest else ""
        found = self.values.get(name, [])
        if name.isdigit():
            found = self.values["@"][int(name) - 1 :][:1]
        is_empty = not found or (operator[:1] == ":" and [x.text for x in found] == [""])
        if operator in DEFAULTS and is_empty:
            found = [joined(part for child in rest[1:] for part, _ in self.parts(child))]
            if "=" in operator:
                self.values[name] = found
        is_one = len(found) == 1 and found[0].sure and index in ("", "0", "@", "*")
        if is_one and operator in ("", "?", ":?", *DEFAULTS):
            return found[0]
        return Word(self.line(node), f"{OPEN}{source_of(node)}{OPEN}")


def reference(node: Any) -> tuple[str, str, list[Any]]:
    """Return name and index of an expansion, and the nodes behind them."""
    name, *rest = [x for x in node.children if x.type not in ("$", "${", "}")] or [node]
    if name.type != "subscript":
        return source_of(name), "", rest
    return source_of(name.children[0]), source_of(name).partition("[")[2][:-1], rest
