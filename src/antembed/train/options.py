"""Nested configs ↔ flat options: `l1_penalty=1e-4` finds its own place, and an option of another solver is an error.

A config of a task is a tree (config.solver.sparsity.l1_penalty); people type flat names. Names are unique in a tree, but
the configs of several solvers may share some; which of these is meant follows from the solver that was chosen.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

BOUNDS = {"greater_than_equal": ("≥", "ge"), "greater_than": (">", "gt"),
          "less_than_equal": ("≤", "le"), "less_than": ("<", "lt")}  # fmt: skip
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
    """A field: its default, what it means, and bounds (ge, gt, le, lt). `only_with`: {"schedule": "halving"} says that giving
    this option together with any other schedule is an error."""
    extra: dict[str, Any] = {"only_with": dict(only_with or {})}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # "a,b" or ("a", "b")
Integer = Annotated[int, BeforeValidator(_plain)]  # also NumPy's, of a search over np.arange
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


ConfigT = TypeVar("ConfigT", bound=Config)
Options = Mapping[str, object]
CHOICE = "name"  # the field that distinguishes the members of a union
AUTO = "auto"  # instead of a member's name: the one that the other options belong to
NOT_OPTIONS = ("version", "task", CHOICE)


@dataclass(frozen=True)
class Option:
    """A leaf of the tree."""

    name: str
    path: tuple[str, ...]
    field: FieldInfo
    heading: str
    owners: tuple[str, ...] = ()  # members of a union that have it; (): it is in every config
    choices: tuple[str, ...] = ()  # the words it may be, if they are listed
    inferred: tuple[str, ...] = ()  # of a union: members that are meant where only their options are given

    @property
    def only_with(self) -> dict[str, tuple[object, ...]]:
        """Other options, and the values they must have."""
        extra = self.field.json_schema_extra
        rules: Mapping[str, Any] = extra.get("only_with", {}) if isinstance(extra, dict) else {}  # type: ignore[assignment]
        return {other: wanted if isinstance(wanted, tuple) else (wanted,) for other, wanted in rules.items()}


def members(field: FieldInfo) -> list[type[Config]]:
    """The configs that a field may hold: none for a leaf, several for a union."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]


def _choice_of(member: type[Config]) -> str:
    return str(member.model_fields[CHOICE].default)


def _walk(config: type[Config], path: tuple[str, ...] = (), owner: str = "") -> Iterator[Option]:
    for name, field in config.model_fields.items():
        several = members(field)
        if len(several) > 1:
            first = several[0]
            listed = FieldInfo(default=vars(field.default)[CHOICE], description=first.model_fields[CHOICE].description)
            names = tuple(_choice_of(member) for member in several)
            inferred = tuple(_choice_of(member) for member in several if member.inferred)
            yield Option(name, (*path, name, CHOICE), listed, first.heading, choices=names, inferred=inferred)
        for member in several:
            yield from _walk(member, (*path, name), _choice_of(member) if len(several) > 1 else owner)
        if not several and name not in NOT_OPTIONS:
            words = tuple(str(word) for word in get_args(field.annotation) if isinstance(word, str))
            yield Option(name, (*path, name), field, config.heading, (owner,) if owner else (), words)


def options_of(config: type[Config]) -> dict[str, Option]:
    """All options of a config by their flat names, in the order of its fields."""
    found: dict[str, Option] = {}
    for leaf in _walk(config):
        if leaf.name not in found:
            found[leaf.name] = leaf
            continue
        before = found[leaf.name]
        if not (before.owners and leaf.owners):
            both = f"{'.'.join(before.path)} and {'.'.join(leaf.path)}"
            raise TypeError(f"{config.__name__} has two options {leaf.name!r}: {both}")
        found[leaf.name] = replace(before, owners=(*before.owners, *leaf.owners))
    return found


def chosen_options(config: type[Config], choices: Mapping[str, str]) -> dict[str, Option]:
    """The options that there are with these members of unions."""
    chosen = set(choices.values())
    return {leaf.name: leaf for leaf in _walk(config) if not leaf.owners or set(leaf.owners) & chosen}


def from_options(config: type[ConfigT], given: Options, defaults: Options | None = None) -> ConfigT:
    """A config from flat options. `defaults` come behind `given`, and those of another solver than the chosen one are left out.
    An unknown option, one of another solver, or one that does not go with the others is an error that says so."""
    known = options_of(config)
    given = {name.strip().removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    for name in given:
        if name not in known:
            raise ConfigError(f"there is no option {name!r}{nearest(name, known)}", name)
    choices = {name: _chosen(config, leaf, given, known) for name, leaf in known.items() if leaf.path[-1] == CHOICE}
    given = {name: value for name, value in given.items() if not (name in choices and value == AUTO)}
    chosen = chosen_options(config, choices)
    for name in given:
        if name not in chosen:
            raise ConfigError(_whose(known[name], choices), name)
    more = {name: value for name, value in (defaults or {}).items() if name in chosen and name not in given}
    made = validated(config, _tree(choices | more | given, chosen))
    values = _values(made, chosen)
    for name in given:
        if (other := _unmet(chosen[name], values)) is not None:
            raise ConfigError(_without_effect(chosen[name], other, values[other], known[name].owners), name)
    used = {name: value for name, value in more.items() if _unmet(chosen[name], values) is None}
    return made if used == more else validated(config, _tree(choices | used | given, chosen))


def _chosen(config: type[Config], union: Option, given: Options, known: Mapping[str, Option]) -> str:
    """The member of a union that is meant: the one that was named, or the first that has all the options given, if possible one
    in which they have an effect."""
    named = str(given.get(union.name, AUTO))
    if named != AUTO:
        if named not in union.choices:
            raise ConfigError(f"{union.name} {named!r} is none of: {', '.join((AUTO, *union.choices))}", union.name)
        return named
    owners = [known[name].owners for name in given if known[name].owners]
    usual = str(union.field.default)
    fitting = [choice for choice in (usual, *union.inferred) if all(choice in each for each in owners)]

    def has_effects(choice: str) -> bool:
        own = chosen_options(config, {union.name: choice})
        values = {name: leaf.field.default for name, leaf in own.items()} | dict(given)
        return all(_unmet(own[name], values) is None for name in given if name in own)

    return next(filter(has_effects, fitting), fitting[0] if fitting else usual)


def _tree(flat: Options, chosen: Mapping[str, Option], tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """Flat options, each at its place, among those of `tree`."""
    tree = {} if tree is None else tree
    for name, value in flat.items():
        *folders, last = chosen[name].path
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return tree


def validated(config: type[ConfigT], tree: Mapping[str, Any]) -> ConfigT:
    """The config that a JSON object describes; errors in one sentence."""
    try:
        return config.model_validate(tree)
    except ValidationError as error:
        raise explained(error) from error


def to_options(config: Config, *, all: bool = False) -> dict[str, Any]:
    """The flat options that differ from the defaults (or `all`), without those that have no effect beside the others.
    from_options makes a config of them that does the same."""
    known = options_of(type(config))
    choices = {name: str(_at(config, leaf.path)) for name, leaf in known.items() if leaf.path[-1] == CHOICE}
    usual = validated(type(config), {name: {CHOICE: choice} for name, choice in choices.items()})
    chosen = chosen_options(type(config), choices)
    values = _values(config, chosen)
    plain: dict[str, Any] = {}
    for name, leaf in chosen.items():
        default = leaf.field.default if name in choices else _at(usual, leaf.path)
        if (all or values[name] != default) and _unmet(leaf, values) is None:
            plain[name] = values[name]
    return plain


def with_options(config: ConfigT, **changes: object) -> ConfigT:
    """The same config with some options changed, whether or not they go with each other by themselves."""
    chosen = chosen_options(type(config), {"solver": str(_at(config, ("solver", CHOICE)))})
    return validated(type(config), _tree(changes, chosen, config.model_dump()))


def _at(config: Config, path: tuple[str, ...]) -> Any:
    found: Any = config
    for part in path:
        found = vars(found)[part]
    return found


def _values(config: Config, chosen: Mapping[str, Option]) -> dict[str, Any]:
    return {name: _at(config, leaf.path) for name, leaf in chosen.items()}


def _unmet(leaf: Option, values: Options) -> str | None:
    """The option whose value leaves this one without effect; None: there is none."""
    return next((other for other, allowed in leaf.only_with.items() if values.get(other) not in allowed), None)


def typed(name: str) -> str:
    """l1_penalty → --l1-penalty."""
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Collection[str]) -> str:
    """What an error says beside an unknown name."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are: {', '.join(known)}"


def _whose(leaf: Option, choices: Mapping[str, str]) -> str:
    chosen = ", ".join(f"{typed(union)} {choice}" for union, choice in choices.items())
    owners = " and ".join(f"--solver {owner}" for owner in leaf.owners)
    return f"{typed(leaf.name)} is an option of {owners}; this run has {chosen}"


def _without_effect(leaf: Option, other: str, value: object, owners: tuple[str, ...]) -> str:
    """`other` has a value beside which the option does nothing; `owners`: all the solvers that have it."""
    if "" in leaf.only_with[other]:
        return f"{leaf.name} has no effect beside {typed(other)} {value}; leave one of them out"
    words = " or ".join(str(each) for each in leaf.only_with[other])
    now = ",".join(map(str, value)) if isinstance(value, tuple) else value
    elsewhere = " or ".join(owner for owner in owners if owner not in leaf.owners)
    remedy = f"leave {typed(leaf.name)} out" + (f", or use --solver {elsewhere}" if elsewhere else "")
    return f"{leaf.name} is for {typed(other)} {words}, not {now}; {remedy}"
