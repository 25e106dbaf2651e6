"""Specs, parts and slots: how a recipe's choices are written, checked and extended.

A *spec* is a frozen record that refuses unknown keys. A *part* is a spec that is one of several kinds
(``kind = "rmsnorm"``); defining a subclass registers it, so a new kind touches only its own file.
A *slot* is a place in a spec where a part goes: it takes a part, a table with its kind, or the kind alone
as a string (``norm = "rmsnorm"``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from assay.recipe.errors import Problem, nearest


@dataclass(frozen=True)
class Sizes:
    """The widths that derived defaults are computed from."""

    d_model: int
    vocab_size: int
    max_seq_len: int
    n_layers: int


class Spec(BaseModel):
    """A frozen record of a recipe; unknown keys are errors, types are not coerced."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True, validate_default=False
    )

    @classmethod
    def fill(cls, raw: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """Derived defaults of an authored table (``head_dim`` from ``d_model``, sizing rules).

        Raises ValueError, with a sentence that says what is wrong and what would be right.
        """
        return raw

    @classmethod
    def unfilled(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """What is still checked of a table that ``fill`` refuses, for unknown keys and kinds.

        All of it, unless ``fill`` takes keys away that are no fields.
        """
        return raw


# slot name -> kind -> class
_KINDS: dict[str, dict[str, type[Part]]] = {}


class Part(Spec):
    """A choice among kinds. A direct subclass opens a slot; its subclasses are the kinds."""

    slot: ClassVar[str] = ""
    tag: ClassVar[str] = "kind"
    default_kind: ClassVar[str | None] = None  # the kind of a table that names none

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        tag = cls.model_fields.get(cls.tag)
        if tag is None or not isinstance(tag.default, str):
            return
        if not cls.slot:
            raise TypeError(f"{cls.__name__}: a kind must derive from a slot such as Norm, Mixer or Ffn")
        kinds = _KINDS.setdefault(cls.slot, {})
        other = kinds.get(tag.default)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.slot} kind {tag.default!r} is already taken by {other.__module__}.{other.__name__}")
        kinds[tag.default] = cls

    @classmethod
    def shorthand(cls, value: Any, sizes: Sizes | None) -> Any:
        """The table that a bare value stands for; here a string is a kind."""
        return {cls.tag: value} if isinstance(value, str) else value

    @property
    def kind_name(self) -> str:
        return str(getattr(self, self.tag))

    @property
    def is_none(self) -> bool:
        return self.kind_name == "none"


P = TypeVar("P", bound=Part)


def kinds_of(base: type[Part]) -> dict[str, type[Part]]:
    """The registered kinds of a slot, by name."""
    return dict(_KINDS.get(base.slot, {}))


def slots() -> dict[str, tuple[str, ...]]:
    """Every slot with the kinds that fill it, for ``assay list --kinds``."""
    return {slot: tuple(sorted(kinds)) for slot, kinds in sorted(_KINDS.items())}


def pick(base: type[P]) -> Any:
    """Annotation metadata that turns what an author writes in a slot into the right part."""

    def choose(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, base):
            return value
        context = info.context or {}
        sizes: Sizes | None = context.get("sizes")
        table = base.shorthand(value, sizes)
        return make(base, table, context)

    return BeforeValidator(choose)


def make(base: type[P], table: Any, context: dict[str, Any]) -> Any:
    """A part of slot ``base`` from a table; faults are raised with their own place kept."""
    kinds = kinds_of(base)
    names = ", ".join(sorted(kinds))
    if not isinstance(table, Mapping):
        raise _fault(f"not a {base.slot}", table, f"a kind ({names}) or a table with {base.tag} = one of them")
    kind = table.get(base.tag, base.default_kind)
    if kind is None:
        at = base.tag if base.tag in table else ""
        raise _fault(f"missing {base.tag}", dict(table), f"{base.tag} = one of {names}", at=at)
    if not isinstance(kind, str) or kind not in kinds:
        close = nearest(kind, kinds) if isinstance(kind, str) else None
        raise _fault(f"no such {base.slot} {base.tag}", kind, names, close or "", at=base.tag)
    return validated(kinds[kind], {base.tag: kind, **table}, context)


S = TypeVar("S", bound=Spec)


def validated(cls: type[S], table: Any, context: dict[str, Any]) -> S:
    """Fill derived defaults, then validate; raises a custom error that keeps every nested problem."""
    sizes = context.get("sizes")
    if sizes is not None and isinstance(table, Mapping):
        try:
            table = cls.fill(dict(table), sizes)
        except (ValueError, TypeError) as error:
            first = error.problems if isinstance(error, FillError) else (Problem("", str(error)),)
            raise _nested([*first, *_beside(first, cls, table, context)]) from None
    try:
        return cls.model_validate(table, context=context)
    except ValidationError as error:
        raise _nested(problems_of(cls, error)) from None


def _beside(
    found: tuple[Problem, ...], cls: type[Spec], table: Mapping[str, Any], context: dict[str, Any]
) -> list[Problem]:
    """Unknown keys and kinds of a table that cannot be filled, ``found`` aside: they need no derived default."""
    try:
        cls.model_validate(cls.unfilled(dict(table)), context=context)
    except ValidationError as error:
        known = {(p.path, p.message) for p in found}
        others = (p for p in problems_of(cls, error) if p.message == "unknown key" or p.message.startswith("no such "))
        return [p for p in others if (p.path, p.message) not in known]
    return []


class FillError(ValueError):
    """A derived default that cannot be computed; carries its problems with their relative paths."""

    def __init__(self, path: str, message: str, value: Any = None, allowed: str = "", suggestion: str = "") -> None:
        problem = Problem(path, message, value, allowed, suggestion, has_value=value is not None)
        self.problems: tuple[Problem, ...] = (problem,)
        super().__init__(message)

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> FillError:
        """Several faults of one table as one error."""
        error = cls(problems[0].path, problems[0].message)
        error.problems = tuple(problems)
        return error


def refuse(path: str, message: str, value: Any = None, allowed: str = "") -> PydanticCustomError:
    """An error for a model validator to raise: names the field, its value and what is allowed."""
    return _nested([Problem(path, message, value, allowed, has_value=value is not None)])


def _fault(message: str, value: Any, allowed: str, suggestion: str = "", at: str = "") -> PydanticCustomError:
    return _nested([Problem(at, message, value, allowed, suggestion, has_value=True)])


def _nested(problems: list[Problem]) -> PydanticCustomError:
    return PydanticCustomError("assay_nested", "nested problems", {"problems": problems})


def problems_of(cls: type[BaseModel], error: ValidationError) -> list[Problem]:
    """pydantic's errors as problems whose paths are relative to ``cls``; nested ones are flattened."""
    out: list[Problem] = []
    for item in error.errors(include_url=False):
        # pydantic names the members of a union of literals and numbers in `loc`; a path has only real keys
        loc = ".".join(str(part) for part in _real_loc(cls, item["loc"]))
        nested = (item.get("ctx") or {}).get("problems")
        if item["type"] == "assay_nested" and nested is not None:
            out.extend(problem.under(loc) for problem in nested)
        elif item["type"] == "extra_forbidden":
            fields = _fields_at(cls, item["loc"][:-1])
            close = nearest(str(item["loc"][-1]), fields)
            out.append(Problem(loc, "unknown key", item["input"], ", ".join(fields), close or "", has_value=True))
        elif item["type"] == "missing":
            fields = _fields_at(cls, item["loc"][:-1])
            out.append(Problem(loc, "missing; it has no default", allowed=_describe(cls, item["loc"])))
        else:
            message = item["msg"].removeprefix("Value error, ")
            out.append(Problem(loc, message, item["input"], has_value=True))
    return _merge_union_errors(out)


def _merge_union_errors(problems: list[Problem]) -> list[Problem]:
    """One problem a place: a union reports each of its members apart."""
    merged: dict[tuple[str, str], Problem] = {}
    for p in problems:
        key = (p.path, repr(p.value)) if p.has_value and not p.allowed else (p.path, p.message)
        old = merged.get(key)
        if old is None:
            merged[key] = p
        elif p.message not in old.message:
            merged[key] = Problem(p.path, f"{old.message}, or: {p.message}", p.value, has_value=True)
    return list(merged.values())


def _spec_class(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _real_loc(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[int | str]:
    out: list[int | str] = []
    current: type[BaseModel] | None = cls
    for part in loc:
        if current is not None:
            out.append(part)
            field = current.model_fields.get(str(part))
            current = _spec_class(field.annotation) if field is not None else None
        elif isinstance(part, int):
            out.append(part)
    return out


def _fields_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    current: type[BaseModel] | None = cls
    for part in loc:
        field = current.model_fields.get(str(part)) if current is not None else None
        current = _spec_class(field.annotation) if field is not None else None
    return list(current.model_fields) if current is not None else []


def _describe(cls: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    current: type[BaseModel] | None = cls
    annotation: Any = None
    for part in loc:
        field = current.model_fields.get(str(part)) if current is not None else None
        annotation = field.annotation if field is not None else None
        current = _spec_class(annotation)
    if current is not None and issubclass(current, Part):
        return "one of " + ", ".join(sorted(kinds_of(current)))
    return getattr(annotation, "__name__", str(annotation)) if annotation is not None else ""
