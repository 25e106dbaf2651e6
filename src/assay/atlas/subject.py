"""What rules look at: a recipe with its run settings, and measures that read a value from it and from real models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from assay.atlas.facts import near
from assay.atlas.records import Model
from assay.cost.budget import Params, count_params
from assay.recipe import Layer, Recipe, Spec
from assay.recipe.ffn import Glu, Mlp
from assay.recipe.mixer import Attention
from assay.recipe.residual import Serial

# run settings that rules know, with what they are
SETTINGS: Mapping[str, str] = {
    "lr": "peak learning rate",
    "warmup_steps": "steps of warmup",
    "steps": "steps of the run",
    "tokens": "training tokens",
    "batch_tokens": "tokens a step",
    "epochs": "passes over the data",
    "dropout": "dropout of the run, where the recipe leaves it to the run",
    "weight_decay": "weight decay",
    "decay_roles": "parameter roles that decay (assay.recipe.ParamRole)",
    "grad_clip": "gradient norm clipped to",
    "z_loss": "coefficient of the z-loss",
    "beta2": "second-moment decay of Adam",
    "dtype": "compute dtype: bf16, fp16, fp32, fp8",
    "master_dtype": "dtype of the weights that the optimizer updates",
    "tp": "tensor-parallel ranks",
    "language": "english, chinese, code or multilingual",
}
_TEXTS = ("dtype", "master_dtype", "language")
_LANGUAGES = ("english", "chinese", "code", "multilingual")


@dataclass(frozen=True, slots=True)
class Reading:
    """One value, and the place in the recipe it was read from."""

    value: Any
    where: str = ""


class Missing(LookupError):
    """A run setting that a measure needs and was not given."""

    def __init__(self, *names: str) -> None:
        self.names = names
        super().__init__(", ".join(names))


S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Subject:
    """A recipe and its run settings, with the things that measures share."""

    recipe: Recipe
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            _check_setting(key, value)

    def run(self, name: str) -> Any:
        """A run setting; raises Missing where it was not given."""
        if name not in self.settings:
            raise Missing(name)
        return self.settings[name]

    @cached_property
    def params(self) -> Params:
        return count_params(self.recipe)

    @cached_property
    def layers(self) -> tuple[tuple[Layer, tuple[int, ...]], ...]:
        """Each distinct layer with its depths."""
        depths: dict[int, tuple[Layer, list[int]]] = {}
        for i, layer in enumerate(self.recipe.layers):
            depths.setdefault(id(layer), (layer, []))[1].append(i)
        return tuple((layer, tuple(at)) for layer, at in depths.values())

    @cached_property
    def attentions(self) -> tuple[tuple[str, Attention], ...]:
        """Every attention of a distinct layer, by the layer's name."""
        return tuple((layer.name, a) for layer, _ in self.layers for a in parts_in(layer.mixer, Attention))

    @cached_property
    def ffns(self) -> tuple[tuple[str, Mlp | Glu], ...]:
        """Every plain or gated feed-forward part of a distinct layer."""
        found: list[tuple[str, Mlp | Glu]] = []
        for layer, _ in self.layers:
            found += [(layer.name, f) for f in parts_in(layer.ffn, Glu)]
            found += [(layer.name, f) for f in parts_in(layer.ffn, Mlp)]
        return tuple(found)

    @cached_property
    def placements(self) -> tuple[tuple[str, str], ...]:
        """Norm placement of each sublayer of a distinct layer, by the layer's name."""
        return tuple((layer.name, p) for layer, _ in self.layers for p in placements_of(layer))


def _check_setting(key: str, value: Any) -> None:
    if key not in SETTINGS:
        raise ValueError(f"no such run setting: {key!r}{near(key, SETTINGS)}; known: {', '.join(SETTINGS)}")
    if key == "decay_roles":
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ValueError(f"decay_roles: not a list of roles: {value!r}")
        return
    if key in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"{key}: not a text: {value!r}; {SETTINGS[key]}")
        if key == "language" and value not in _LANGUAGES:
            raise ValueError(f"language: {value!r}{near(value, _LANGUAGES)}; known: {', '.join(_LANGUAGES)}")
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{key}: not a number of at least 0: {value!r}; {SETTINGS[key]}")
    if key in ("steps", "tokens", "batch_tokens", "tp", "epochs") and value <= 0:
        raise ValueError(f"{key}: not positive: {value!r}; {SETTINGS[key]}")


def parts_in(spec: Spec, cls: type[S]) -> Iterator[S]:
    """``spec`` and the parts inside it that are of a class."""
    if isinstance(spec, cls):
        yield spec
        return
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Spec):
                yield from parts_in(item, cls)


def placements_of(layer: Layer) -> Iterator[str]:
    """``pre``, ``post``, ``sandwich``, ``reordered``, ``deepnorm``, ``none``, or the slots by name; one a sublayer."""
    residual = layer.residual
    shared = getattr(residual, "input_norm", None) is not None
    stream = getattr(residual, "stream_norm", None)
    for side in ("mixer", "ffn"):
        if getattr(layer, side).is_none:
            continue
        rule = getattr(residual, side)
        places = set()
        if shared or not rule.input_norm.is_none:
            places.add("input")
        if not rule.output_norm.is_none:
            places.add("output")
        after = rule.stream_norm if isinstance(residual, Serial) else stream
        if after is not None and not after.is_none:
            places.add("stream")
        yield _PLACEMENTS.get(frozenset(places), " + ".join(sorted(places)))


_PLACEMENTS = {
    frozenset(): "none",
    frozenset({"input"}): "pre",
    frozenset({"stream"}): "post",
    frozenset({"output"}): "reordered",
    frozenset({"input", "output"}): "sandwich",
}

Read = Callable[[Subject], Iterable[Reading]]
OfModel = Callable[[Model], Any]


@dataclass(frozen=True)
class Measure:
    """A value that can be read from a recipe and, where ``of_model`` is given, from real models."""

    name: str
    about: str
    read: Read
    of_model: OfModel | None = None


_MEASURES: dict[str, Measure] = {}


def register_measure(name: str, about: str, read: Read, of_model: OfModel | None = None) -> None:
    """Name a measure; rules may use it from then on. A name that starts with ``run.`` needs that run setting."""
    _MEASURES[name] = Measure(name, about, read, of_model)


def measure(name: str, about: str, of_model: OfModel | None = None) -> Callable[[Read], Read]:
    """Decorator form of :func:`register_measure`."""

    def apply(read: Read) -> Read:
        register_measure(name, about, read, of_model)
        return read

    return apply


def measures() -> Mapping[str, Measure]:
    """Every measure by name."""
    from assay.atlas import measures_init, measures_run, measures_shape  # noqa: F401 - register theirs

    return _MEASURES
