"""The base of every config: frozen, no unknown field, errors in one sentence."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

BOUNDS = {
    "greater_than_equal": ("≥", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("≤", "le"),
    "less_than": ("<", "lt"),
}
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}


class ConfigError(ValueError):
    """A setting that makes no sense; `name` is the option, if it is one option's fault."""

    def __init__(self, message: str, name: str = ""):
        super().__init__(message)
        self.name = name


class Config(BaseModel):
    """A group of settings. Subclasses list fields made by `option`; `heading` is their title in --help."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
    heading: ClassVar[str] = ""
    inferred: ClassVar[bool] = True  # as a member of a union: chosen by its options alone, without its name


def option(default: Any, help: str, *, only_with: Mapping[str, object] | None = None, **bounds: Any) -> Any:
    """A field: its default, what it means, and bounds (ge, gt, le, lt).

    `only_with`: {"schedule": "halving"} says that giving this option together with any other schedule is an error.
    """
    extra: dict[str, Any] = {"only_with": dict(only_with or {})}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # "a,b" or ("a", "b")
Whole = Annotated[int, BeforeValidator(_plain)]  # also NumPy's, of a search over np.arange
Number = Annotated[float, BeforeValidator(_plain)]


def explained(error: ValidationError) -> ConfigError:
    """The first of pydantic's complaints, with what was given and what is allowed."""
    first = error.errors(include_url=False)[0]
    names = [part for part in first["loc"] if isinstance(part, str) and part.isidentifier()]  # not "tuple[int, ...]"
    name = names[-1] if names and not isinstance(first["input"], dict) else ""  # a rule between options is no option's fault
    return ConfigError(_sentence(name, first), name)


def _sentence(name: str, error: ErrorDetails) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind in BOUNDS:
        sign, key = BOUNDS[kind]
        return f"{name} must be {sign} {context[key]:g}, got {given}"
    if kind in ("literal_error", "enum"):
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        return f"{name} {given!r} is none of: {choices}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return f"there is no setting {name!r}"
    for word, wanted in KINDS.items():
        if kind.startswith(word):
            return f"{name} {given!r} is not {wanted}"
    if kind == "finite_number":
        return f"{name} must be finite, got {given}"
    if kind == "missing":
        return f"{name} is missing"
    return f"{name}: {error['msg']}"
