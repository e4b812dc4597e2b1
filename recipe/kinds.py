"""Kinds of values that a setting may have: types with their ranges, and what a list may hold."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

# A literal value: no "3" for 3, no 1 for true, no infinity.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
UNSET = "???"  # OmegaConf's mark of a value that has to be given


def distinct(values: list[Any]) -> list[Any]:
    """For lists in which a name twice would count twice."""
    if len(set(values)) < len(values):
        raise ValueError("a name is listed twice")
    return values


def sum_above_zero(values: list[float]) -> list[float]:
    if values and not sum(values) > 0:
        raise ValueError("all weights are 0")
    return values


def not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("0 would leave none (-1: all)")
    return value


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def is_set(value: str) -> str:
    if value == UNSET:
        raise ValueError("is not set")
    return value


def validated(key: str) -> str:
    if not re.fullmatch("val/.+/accuracy", key):
        raise ValueError("should be val/SOURCE/accuracy, SOURCE a data_source of data.val_files")
    return key


# Not empty, which is what an unset shell variable leaves.
Text = Annotated[str, Field(pattern=r"\S"), AfterValidator(is_set)]
Texts = Annotated[list[Text], BeforeValidator(as_list)]
Names = Annotated[list[Text], Field(min_length=1), AfterValidator(distinct)]
Weights = Annotated[list[Annotated[float, Field(ge=0)]], AfterValidator(sum_above_zero)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
OrNever = Annotated[int, Field(ge=-1)]  # verl's -1: never, or no limit
OrAll = Annotated[int, Field(ge=-1), AfterValidator(not_zero)]
Weight = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what numpy and vLLM take


class Record(BaseModel):
    model_config = STRICT
