"""Commands of a shell script with the values of their arguments; nothing is executed.

tree-sitter's grammar of bash finds the commands. A variable has its last value above. After a
branch, a loop or a function that sets it, it has the words of all its values, of which those that
are not in each are unsure. Inside a longer word such a value is unknown, as are unset variables,
arguments of functions, and the output of commands. The script itself has no arguments. An ``if``
whose tests compare known texts has one branch, and a ``while`` whose test is false is left out;
there a variable that nothing sets is empty.
"""

import operator
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

OPEN = "\ue000"  # before and after the name of a variable, or nothing: an unknown part of a word
BLANK = "\ue001"  # of an unquoted value, where the shell divides a word
LONGEST, MOST = 20_000, 300  # characters and words of a variable
COMMANDS = 5_000  # after these no text is read as a script
CONTINUED = "\\\n"
BRANCHES = (
    "if_statement", "case_statement", "list", "function_definition",
    "for_statement", "c_style_for_statement", "while_statement",
)  # fmt: skip
REPEATS = BRANCHES[3:]
CLAUSES = ("elif_clause", "else_clause", "case_item")
EXPANSIONS = ("simple_expansion", "expansion")
FOLDED = (*EXPANSIONS, "arithmetic_expansion", "command_substitution")
ARGUMENTS = re.compile(r"\$\{?[@*](?::\d+)?\}?")
# The name of a variable, and the operator before a default.
REFERENCE = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?(?:(:?[-=?]).*)?\}?", re.DOTALL)
LENGTH = re.compile(r"\$\{?#(?:(\w+)\[[@*]\])?\}?")  # of an array, or of the arguments
PRINTS = ("echo", "printf", ":")
SETTERS = ("read", "mapfile", "readarray", "getopts")  # of variables that are arguments
SUMS = ("compound_statement", "arithmetic_expansion")
# A name that an arithmetic expression changes.
SETS = re.compile(
    r"(?:\+\+|--)\s*[A-Za-z_]\w*|\b[A-Za-z_]\w*(?=\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=)))"
)
LOCAL = re.compile(r"\b(?:local|declare|typeset)\s+(?:-\w+\s+)*(\w+)")
LARGEST = 2**63  # of the shell's integers
PATTERN = re.compile(r"[*?\[]|[@+!]\(")
INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
COMPARE: dict[str, Callable[[int, int], bool]] = {
    **{"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt},
    **{"-le": operator.le, "-gt": operator.gt, "-ge": operator.ge},
}
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul},
    "/": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),
}


class Word(NamedTuple):
    """An argument in its line; `sure` is False if only some branches pass it."""

    line: int
    text: str
    sure: bool = True

    def fields(self) -> Iterator["Word"]:
        """Yield the words into which the shell divides an unquoted value."""
        for match in re.finditer(r"(?:\\\n|\S)+", self.text):
            if text := match[0].replace(CONTINUED, ""):
                line = self.line + self.text[: match.start()].count("\n")
                yield Word(line, text, self.sure)


class Command(NamedTuple):
    """A command in lines `line` to `end`; its first word is the program."""

    line: int
    end: int
    words: tuple[Word, ...]


def unknown(name: str = "") -> str:
    """Return an unknown part of a word, with the variable that would make it known."""
    return f"{OPEN}{name}{OPEN}"


def unknown_names(text: str) -> list[str]:
    """Return the names of the unknown parts of a text, "" for one without a variable."""
    return re.findall(f"{OPEN}(.*?){OPEN}", text)


def commands(
    source: str,
    script: re.Pattern[str],
    environment: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> list[Command]:
    """Return the commands in order; an argument in which `script` is found is read as a script.

    `environment` are variables before the first line; those of `given` keep their values.
    """
    reader = Reader(script, environment or {}, given or {})
    reader.read(source, 1)
    return reader.found


def tree(source: str) -> Any:
    """Return the root of a script's syntax tree."""
    from tree_sitter import Language, Parser  # only where a script is read
    from tree_sitter_bash import language

    return Parser(Language(language())).parse(source.encode()).root_node


def unparsed(source: str) -> int | None:
    """Return the line of the first text that the grammar cannot parse, None without one."""
    nodes = [tree(source.replace("\r\n", "\n"))]
    while nodes:
        node = nodes.pop()
        if node.is_error or node.is_missing:
            return int(node.start_point[0]) + 1
        nodes += [child for child in reversed(node.children) if child.has_error]
    return None


def source_of(node: Any) -> str:
    """Return the text of a node, without blanks before it that the grammar adds in a string."""
    text = str(node.text.decode(errors="replace"))
    return text.lstrip(" \t\n\\") if node.type in FOLDED else text


class Reader:
    """Walks through a syntax tree and keeps the values of variables."""

    def __init__(
        self, script: re.Pattern[str], environment: Mapping[str, str], given: Mapping[str, str]
    ) -> None:
        self.script, self.first = script, 1
        self.found: list[Command] = []
        # Loops and functions around a node: what is in them runs with other values.
        self.repeats = 0
        self.functions: dict[str, dict[str, list[Word]]] = {}  # the variables that each sets
        self.uneven: set[str] = set()  # arrays whose length depends on a branch
        before = {name: [Word(0, text)] for name, text in {**environment, **given}.items()}
        self.given = frozenset(given)
        self.values: ChainMap[str, list[Word]] = ChainMap({**before, "@": []})

    def read(self, source: str, first: int) -> None:
        """Read a script whose first line is `first`, with variables of its own."""
        before = self.first, self.values
        self.first, self.values = first, self.values.new_child()
        self.visit(tree(source))
        self.first, self.values = before

    def line(self, node: Any) -> int:
        return int(self.first + node.start_point[0])

    def visit(self, node: Any) -> None:
        """Read a node and what is in it."""
        if node.type == "if_statement" and (chosen := self.chosen(node)) is not None:
            for child in chosen:
                self.visit(child)
            return
        if node.type in BRANCHES:
            self.branch(node)
            return
        self.unset(node)
        if node.type == "variable_assignment" and node.parent.type != "command":
            self.assign(node)
        elif node.type == "command":
            self.command(node)
        elif node.type in ("subshell", "command_substitution"):  # has variables of its own
            before, self.values = self.values, self.values.new_child()
            for child in node.children:
                self.visit(child)
            self.values = before
            return
        elif node.type == "heredoc_body" and self.script.search(source_of(node)):
            text = re.sub(r"\\([\\$`])", r"\1", source_of(node))
            is_comment = re.match(r":\s*<", source_of(node.parent.parent))
            self.read("" if is_comment else text, self.line(node))
        for child in node.children:
            self.visit(child)

    def branch(self, node: Any) -> None:
        """Read each branch from the same values, and merge what they leave."""
        test = body.prev_named_sibling if (body := node.child_by_field_name("body")) else None
        once = not self.repeats and not self.script.search(source_of(node))
        if test and node.children[0].type == "while" and once and self.holds(test) is False:
            return
        if variable := node.child_by_field_name("variable"):
            self.values[source_of(variable)] = [Word(0, unknown())]
        before, results = self.values, [self.values]  # no branch may apply
        self.repeats += (repeats := node.type in REPEATS)
        for child in node.children:
            if len(results) == 1 or child.type in CLAUSES:
                results.append(before.new_child())
                self.values = results[-1]
                if node.type == "function_definition":
                    self.values["@"] = [Word(0, unknown())]
            self.visit(child)
        self.values = before
        self.repeats -= repeats
        names = {name for result in results[1:] for name in result.maps[0]} - self.given
        if node.type == "function_definition":
            names -= {"@", *LOCAL.findall(source_of(node))}
            function = source_of(node.child_by_field_name("name"))
            self.functions[function] = {name: results[-1][name] for name in names}
        self.merge(names, results)

    def merge(self, names: Iterable[str], results: Sequence[Mapping[str, list[Word]]]) -> None:
        """Give variables the words of all their values."""
        for name in names:
            options = [result.get(name, []) for result in results]
            self.uneven |= {name} if len({*map(len, options)}) > 1 else set()
            words = [*dict.fromkeys(word[:2] for option in options for word in option)][:MOST]
            sure = [all(Word(*word) in option for option in options) for word in words]
            self.values[name] = [Word(*word, x) for word, x in zip(words, sure, strict=True)]

    def chosen(self, node: Any) -> list[Any] | None:
        """Return what runs of an ``if`` whose tests are known, None if one is not."""
        for clause in (node, *(x for x in node.children if x.type in CLAUSES)):
            holds = clause.type == "else_clause" or self.holds(clause.named_children[0])
            if holds is None:
                return None
            if holds:
                return [x for x in clause.children if x.type not in CLAUSES]
        return None if self.script.search(source_of(node)) else []

    def holds(self, node: Any) -> bool | None:
        """Return the result of a test of known texts or integers, None of another or unknown."""
        if node.type != "test_command" or len(node.named_children) != 1:
            return None
        parts = node.named_children[0].children
        sign, *sides = sorted(parts, key=lambda x: x.type not in ("test_operator", "=", "==", "!="))
        texts, name = list(map(self.known, sides)), source_of(sign)
        if None in texts:
            return None
        if len(texts) == 1 and name in ("-z", "-n"):
            return (texts[0] == "") == (name == "-z")
        if (
            name in COMPARE
            and not self.repeats
            and all(INTEGER.fullmatch(str(text)) for text in texts)
        ):
            return COMPARE[name](*(int(str(text)) for text in texts))
        compares = name in ("=", "==", "!=") and not PATTERN.search(str(texts[1]))
        compares = compares and "nocasematch" not in self.values
        return (texts[0] == texts[1]) == (name != "!=") if compares else None

    def known(self, node: Any) -> str | None:
        """Return the text of a node without variables that nothing sets, None if it is unknown."""
        text = self.text(node).replace(BLANK, " ")
        for name in filter(None, unknown_names(text)):
            is_set = name in self.values or self.is_argument(name)
            text = text if is_set else text.replace(unknown(name), "")
        return None if OPEN in text else text

    def is_argument(self, name: str) -> bool:
        """Return True for a parameter of a function, which some call may give."""
        return name.isdigit() and bool(self.values["@"])

    def command(self, node: Any) -> None:
        """Add a command, unless it only prints, and read the scripts that it runs."""
        name = node.child_by_field_name("name")
        words = self.words([name, *node.children_by_field_name("argument")] if name else [])
        if words:
            self.builtin(words[0].text, words[1:])
        if not words or words[0].text in PRINTS:
            return
        if set_here := self.functions.get(words[0].text):
            self.merge(set_here, [self.values, set_here])
        if words[0].text == "eval" and words[1:]:
            line, text = words[1].line, ""
            for word in words[1:]:
                text += " " + CONTINUED * (word.line - line - text.count("\n")) + word.text
            words = [words[0], Word(line, text)] if len(text) < LONGEST else words
        plain = tuple(word._replace(text=word.text.replace(CONTINUED, "")) for word in words)
        self.found.append(Command(self.line(node), self.first + node.end_point[0], plain))
        for word in words if len(self.found) <= COMMANDS else ():
            if re.search(r"\s", word.text) and self.script.search(word.text):
                self.read(word.text, word.line)

    def put(self, name: str, words: list[Word]) -> None:
        """Set a variable, unless its value is given."""
        if name not in self.given:
            self.values[name] = words

    def unset(self, node: Any) -> None:
        """Empty the variables of ``unset``; those that arithmetic sets become unknown."""
        if node.type == "unset_command":
            for child in (x for x in node.named_children if x.type == "variable_name"):
                self.put(source_of(child), [])
            self.forget(re.findall(r"\w+\[", source_of(node)))  # an entry of an array
        elif node.type in SUMS and re.match(r"\$?\(\(", source_of(node)):
            self.forget(SETS.findall(source_of(node)))

    def forget(self, texts: Iterable[str]) -> None:
        """Make variables unknown, whose names are in texts such as ``++N`` or ``N[0]``."""
        for match in filter(None, (re.search(r"[A-Za-z_]\w*", text) for text in texts)):
            self.put(match[0], [Word(0, unknown())])

    def builtin(self, name: str, words: list[Word]) -> None:
        """Apply ``set --``; the variables that another builtin sets become unknown."""
        texts = [word.text for word in words]
        if name == "set" and "--" in texts:
            new = words[texts.index("--") + 1 :]
            self.values["@"] = new if len(new) <= MOST else [Word(0, unknown())]
        elif name == "shift" and self.values["@"]:
            self.values["@"] = [Word(0, unknown())]
        elif name == "shopt" and "nocasematch" in texts:
            self.put("nocasematch", [])
        elif name in ("cd", "pushd", "popd") and "PWD" in self.values:
            folder = texts[0] if texts and texts[0][:1] == "/" else unknown()
            self.put("PWD", [Word(0, folder)])
        elif name == "let":
            self.forget(SETS.findall(" ".join(texts)))
        elif name in SETTERS:
            self.forget(filter(str.isidentifier, texts))
        elif name == "printf" and texts[:1] == ["-v"]:
            self.forget(texts[1:2])

    def assign(self, node: Any) -> None:
        """Set a variable, or add to it with +=."""
        name, value = (node.child_by_field_name(field) for field in ("name", "value"))
        if source_of(name) in self.given:
            return
        if name.type == "subscript" or node.parent.type == "c_style_for_statement":
            self.forget([source_of(name)])
            return
        new = [*self.values.get(source_of(name), [])] if node.children[1].type == "+=" else []
        if value and value.type == "array":
            new += self.words(x for x in value.named_children if x.type != "comment")
        else:
            line, text = self.line(node), self.text(value).replace(BLANK, " ") if value else ""
            if value and source_of(value).startswith("~/"):  # as the shell does in assignments
                text = self.values.get("HOME", [Word(0, unknown("HOME"))])[0].text + text[1:]
            last = new.pop() if new else Word(line, "")
            text = last.text + CONTINUED * (line - last.line - last.text.count("\n")) + text
            new.append(last._replace(text=text if len(text) < LONGEST else unknown()))
        self.values[source_of(name)] = new if len(new) <= MOST else [Word(0, unknown())]

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
        node = node.children[0] if node.type == "command_name" else node
        inner = node.children[1] if node.type == "string" and node.child_count == 3 else node
        if inner.type in EXPANSIONS and source_of(node).strip('"') == source_of(inner):
            words = self.value(inner)
            return words if node.type == "string" else [x for word in words for x in word.fields()]
        first, *rest = self.text(node).split(BLANK)
        return [Word(self.line(node), text) for text in (first, *filter(None, rest))]

    def value(self, node: Any) -> list[Word]:
        """Return the words of a variable or its default."""
        line = self.line(node)
        if ARGUMENTS.fullmatch(source_of(node)):
            return [word._replace(line=word.line or line) for word in self.values["@"]]
        if match := LENGTH.fullmatch(source_of(node)):
            return [Word(line, self.length(match[1] or "@"))]
        if not (match := REFERENCE.fullmatch(source_of(node))):
            return [Word(line, unknown())]
        name, default = match[1], match[2] or ""
        found = self.values.get(name, [])
        is_empty = not found or (default[:1] == ":" and [word.text for word in found] == [""])
        if is_empty and default[-1:] in ("-", "=") and not self.is_argument(name):
            text = "".join(map(self.text, node.named_children[1:])).replace(BLANK, " ")
            found = [Word(line, text)]
            if "=" in default:
                self.values[name] = found
        elif not found and name in self.values:  # an empty array
            return []

        def argument(match: re.Match[str]) -> str:
            """Name an argument of the script after the variable that takes it."""
            return match[0] if match[1].strip("0123456789") else unknown(name)

        texts = (re.sub(f"{OPEN}(.*?){OPEN}", argument, word.text) for word in found)
        named = [w._replace(line=w.line or line, text=t) for w, t in zip(found, texts, strict=True)]
        return named or [Word(line, unknown(name))]

    def length(self, name: str) -> str:
        """Return the number of words of an array, or of the arguments ``@``."""
        words = self.values.get(name)
        if words is None or name in self.uneven:
            return unknown(name.strip("@"))
        if any({OPEN, "*", "?"} & {*word.text} or not word.sure for word in words):
            return unknown(name.strip("@"))
        return str(len(words))

    def number(self, node: Any) -> int | None:
        """Return the value of integer arithmetic, None if it is unknown."""
        inner = node.named_children
        if node.type in ("arithmetic_expansion", "parenthesized_expression") and len(inner) == 1:
            return self.number(inner[0])
        if node.type == "binary_expression" and len(inner) == 2:
            sign, left, right = node.children[1].type, *map(self.number, inner)
            if left is None or right is None or sign not in ARITHMETIC or (sign, right) == ("/", 0):
                return None
            result = ARITHMETIC[sign](left, right)
            return result if abs(result) < LARGEST else None
        words = self.values.get(source_of(node), [])
        text = words[0].text if len(words) == 1 and words[0].sure else self.text(node)
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None

    def text(self, node: Any) -> str:
        """Return the text of a node inside a longer word, in one line if it is a variable's."""
        if node.type in EXPANSIONS:
            first, *rest = self.value(node) or [Word(0, "")]
            text = re.sub(r"\s", BLANK, first.text.replace(CONTINUED, ""))
            match = REFERENCE.fullmatch(source_of(node))
            return text if first.sure and not rest else unknown(match[1] if match else "")
        if node.type == "arithmetic_expansion":
            names = [
                x for x in re.findall(r"[A-Za-z_]\w*", source_of(node)) if x not in self.values
            ]
            number = self.number(node)
            return unknown("".join(names[:1])) if number is None else str(number)
        if source_of(node) == "$(pwd)" and "PWD" in self.values:
            first, *rest = self.values["PWD"]
            return first.text if first.sure and not rest else unknown()
        if node.type == "string":  # in which blanks are not always nodes
            pieces, at = list[str](), 1
            for child in [*(x for x in node.children if x.child_count), None]:
                inner = source_of(child) if child else '"'
                end = (child or node).end_byte - node.start_byte - len(inner.encode())
                piece = node.text[at:end].decode(errors="replace")
                pieces.append(re.sub(r'\\(["\\$`])', r"\1", piece))
                if child:
                    pieces.append(self.text(child).replace(BLANK, " "))
                    at = child.end_byte - node.start_byte
            return "".join(pieces)
        if node.type in ("concatenation", "command_name"):
            return "".join(map(self.text, node.children))
        text = source_of(node)
        if node.type in ("raw_string", "ansi_c_string"):
            return text.partition("'")[2][:-1]
        if (node.child_count and text != "[") or text == "$":  # the grammar wraps some "["
            return unknown()
        return re.sub(r"\\(.)", r"\1", text.replace(CONTINUED, ""))
