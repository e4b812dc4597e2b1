"""Typed reader for the files and settings that a user writes: pydantic types, one-line errors.

`read_typed` reads a yaml or json file into a pydantic model; `parse_typed` does the same for a
value. Each problem becomes one line ``KEY=VALUE: what is wrong``, with the full key. All problems
of a file are in one error. Models derive from `Record`: closed, frozen, and strict (the text "3" is
not a number, and 1 is not a boolean).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, iter_lines, read_json, read_text

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
UNSET = "???"  # OmegaConf's mark of a mandatory value


class Record(BaseModel):
    """Base of the models: unknown keys, other types, infinities and assignments are errors."""

    model_config = STRICT


def _must(hold: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator that rejects values for which `hold` is false, with `message`."""

    def checked(value: Any) -> Any:
        if not hold(value):
            raise ValueError(message)
        return value

    return AfterValidator(checked)


def as_list(value: Any) -> Any:
    """Return a list of one for a text, otherwise the value."""
    return [value] if isinstance(value, str) else value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[
    str,
    _must(str.strip, "must not be empty (is a shell variable not set?)"),
    _must(lambda text: text != UNSET, "is not set"),
]
FileName = Annotated[  # a folder's, so without a slash or a dot at its start
    Text, _must(re.compile(r"\w[\w.-]*").fullmatch, "should have letters, digits, . _ - only")
]
Texts = Annotated[list[Text], BeforeValidator(as_list)]
_DISTINCT = _must(lambda names: len(set(names)) == len(names), "a name is listed twice")
Names = Annotated[list[Text], Field(min_length=1), _DISTINCT]
Several = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]  # Several[Level]: a list in the file
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
OrNever = Annotated[int, Field(ge=-1)]  # verl's -1: never, or no limit
OrAll = Annotated[int, Field(ge=-1), _must(bool, "0 would leave none (-1: all)")]
Weight = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the range of numpy and vLLM


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a nested mapping; an empty section is a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], node


class _UniqueKeyLoader(yaml.CSafeLoader):
    """Safe loader that rejects repeated keys; yaml's own loader takes the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"  # "<<", which may be repeated
        keys = [str(key.value) for key, _ in node.value if key.tag != merge]
        if repeated := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.YAMLError(f"the key {repeated[0]!r} is repeated, {node.start_mark}")
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, place: str) -> Any:
    """Return the value of a yaml text. Raises FileError naming `place`."""
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        reason = " ".join(str(error).split())
        raise FileError(f"{place}: not valid yaml: {reason}. Correct the file.") from error


def read_typed(path: Path, kind: type[T], error: type[UserError] = FileError) -> T:
    """Read a yaml file, or a .json file, as `kind`: a `Record`, or any type pydantic validates.

    Raises `error` for a missing or unreadable file and for wrong values, all problems in one.
    """
    try:
        as_json = path.suffix == ".json"
        value = read_json(path) if as_json else parse_yaml(read_text(path), str(path))
    except FileError as problem:
        raise problem if isinstance(problem, error) else error(str(problem)) from problem
    return parse_typed(value, kind, str(path), error)


def stored(*needed: str, **types: Any) -> type[BaseModel]:
    """Return the type of a record that a command writes, perhaps of another version.

    It may have more keys, and lack those that are not `needed`.
    """
    fields: Any = {key: (kind, ... if key in needed else None) for key, kind in types.items()}
    return create_model("Stored", __config__=ConfigDict(strict=True), **fields)


def read_record(path: Path, /, *needed: str, **types: Any) -> dict[str, Any]:
    """Return the record in a yaml or json file; raises FileError unless it is so `stored`."""
    record = read_typed(path, dict[Any, Any])
    for problem in problems(adapter(stored(*needed, **types)), record).values():
        why = problem.removesuffix(" Give it a value.").rstrip(".")
        raise FileError(f"{path}: {why}. Restore it from a copy.")
    return record


def typed_lines(path: Path, /, *needed: str, **types: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON lines; raises FileError unless they are so `stored`."""
    check = adapter(stored(*needed, **types))
    return iter_lines(path, lambda record: not problems(check, record))


def parse_typed(value: Any, kind: type[T], place: str, error: type[UserError] = FileError) -> T:
    """Return `value` as `kind`; raises `error`, each line beginning with `place`."""
    checker: TypeAdapter[T] = adapter(kind)
    if messages := problems(checker, value):
        raise error("\n".join(f"{place}: {message}" for message in messages.values()))
    return checker.validate_python(value)


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator of a type, strict also where the type is not a `Record`."""
    is_record = isinstance(kind, type) and issubclass(kind, BaseModel)
    return TypeAdapter(kind, config=None if is_record else STRICT)


def problems(checker: TypeAdapter[Any], value: Any, key: str = "") -> dict[str, str]:
    """Return {full key: pydantic's message} for all that is wrong with `value`, named `key`."""
    try:
        checker.validate_python(value)
    except ValidationError as error:
        lines: dict[str, str] = {}
        # Of the alternatives of a union the one with the right type explains the most.
        errors = sorted(error.errors(include_url=False), key=lambda e: e["type"].endswith("_type"))
        for problem in errors:
            name = _full_key(key, value, problem)
            lines.setdefault(name, _message(checker, name, problem))
        return lines
    return {}


def _message(checker: TypeAdapter[Any], name: str, problem: Any) -> str:
    given, reason = problem["input"], problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        reason = f"unknown key{closest(problem['loc'][-1], _fields(checker)) or '. Remove it.'}"
    elif problem["type"] == "missing" or given == UNSET:
        reason = "not set. Give it a value."
    elif name and not isinstance(given, Mapping | BaseModel):
        name += f"={shown(given):.200}"
    return f"{name}: {reason}" if name else reason


def _full_key(key: str, value: Any, problem: Any) -> str:
    """Return ``recipe.augment.templates[1]``, without the names of a union's alternatives."""
    missing = problem["loc"][-1] if problem["type"] == "missing" else None
    for part in problem["loc"]:
        if isinstance(value, list | tuple) and isinstance(part, int):
            key, value = f"{key}[{part}]", value[part] if part < len(value) else None
        elif isinstance(value, Mapping) and (part in value or part == missing):
            key, value = f"{key}.{part}", value.get(part)
    return key.removeprefix(".")


def _fields(checker: TypeAdapter[Any]) -> list[str]:
    """Return the keys of all records of a type."""
    schema = checker.json_schema()
    records = [schema, *schema.get("$defs", {}).values()]
    return sorted({name for record in records for name in record.get("properties", {})})


def closest(name: str, names: Iterable[str]) -> str:
    """Return ``, did you mean X?`` or nothing; a key with the same last part comes first.

    Upper and lower case count as equal.
    """
    names, last = list(names), name.rpartition(".")[2]
    same = [k for k in names if "." in name and k.rpartition(".")[2] == last]
    by_lower = {k.lower(): k for k in same or names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0 if same else 0.6)
    return f", did you mean {by_lower[near[0]]}?" if near else ""


def shown(value: Any) -> str:
    """Return a value as it is written in yaml and on the command line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return re.sub(r"\s+", " ", str(value))
