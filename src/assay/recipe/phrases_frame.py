"""Phrases of what stands around the parts of a layer: residual rules and their scales, the two ends, the start."""

from __future__ import annotations

from assay.recipe.base import Part, Sizes, Spec
from assay.recipe.embedding import DenseTransform, Embedding, Head, LinearProjection, NoProjection, NoTransform
from assay.recipe.init import (
    DeepNormScale,
    FanIn,
    FixupScale,
    Init,
    LayerDepth,
    NoDepthScale,
    Normal,
    TotalDepth,
    TruncatedNormal,
    Xavier,
    Zero,
)
from assay.recipe.norm import NoNorm, Norm, Shift
from assay.recipe.parametrization import CompleteP, Mup, Standard
from assay.recipe.phrases import activation_name
from assay.recipe.position import LearnedPosition, NoEmbeddingPosition, SinusoidalPosition
from assay.recipe.residual import Branch, Parallel, ParallelSharedNorm, Serial, Sublayer
from assay.recipe.scale import UNIT_SCALE, ConstantScale, ScalarScale, Scale, VectorScale
from assay.recipe.words import Phrase, Said, dropout_words, joined, number, says, value_words, words

# kinds whose phrase is one expression
_SHORT: dict[type[Spec], Phrase] = {
    ConstantScale: lambda spec, sizes: f"× {number(spec.value)}",
    NoProjection: lambda spec, sizes: "no projection",
    LinearProjection: lambda spec, sizes: (
        f"projection between {spec.dim:,} and {sizes.d_model:,}" + (" with bias" if spec.bias else "")
    ),
    NoEmbeddingPosition: lambda spec, sizes: "no position added",
    LearnedPosition: lambda spec, sizes: (
        f"learned positions, {sizes.max_seq_len:,}" + (f" after {spec.offset:,} unused" if spec.offset else "")
    ),
    NoTransform: lambda spec, sizes: "no transform",
    Normal: lambda spec, sizes: f"N(0, {number(spec.std)}²)",
    TruncatedNormal: lambda spec, sizes: f"N(0, {number(spec.std)}²) cut at {number(spec.cutoff)} std",
    Xavier: lambda spec, sizes: joined(f"Xavier {spec.shape}", [] if spec.gain == 1 else [f"gain {number(spec.gain)}"]),
    Zero: lambda spec, sizes: "0",
}
for _cls, _phrase in _SHORT.items():
    says(_cls)(_phrase)


@says(ScalarScale, VectorScale)
def _learned(spec: ScalarScale | VectorScale, sizes: Sizes) -> Said:
    shape = "scalar" if isinstance(spec, ScalarScale) else "vector"
    return f"× a learned {shape} from {number(spec.init)}"


# residual rules


@says(Serial)
def _serial(spec: Serial, sizes: Sizes) -> Said:
    if spec.mixer == spec.ffn:
        return _sublayer(spec.mixer, sizes)
    return [f"{side}: {', '.join(_sublayer(getattr(spec, side), sizes))}" for side in ("mixer", "ffn")]


@says(Sublayer)
def _sublayer(spec: Sublayer, sizes: Sizes) -> list[str]:
    norms = _placement(spec.input_norm, spec.output_norm, spec.stream_norm, sizes)
    branch, skip = _branch(spec, sizes), _stream(spec.skip, spec.skip_from, sizes)
    if not spec.stream_norm.is_none and spec.skip == ConstantScale(value=deepnorm_alpha(sizes.n_layers)):
        # the number follows the depth, so DeepNorm at two depths is the same rule
        norms, skip = f"DeepNorm: {norms}", _stream(UNIT_SCALE, spec.skip_from, sizes)
    elif norms == _NO_NORMS and isinstance(spec.branch, ScalarScale):
        norms = f"ReZero: {norms}"
    elif isinstance(spec.input_norm, Shift) and isinstance(spec.output_norm, Shift) and spec.stream_norm.is_none:
        norms = "Fixup: no norms, a learned scalar shift before and after"
    return [norms, *branch, *skip]


def deepnorm_alpha(n_layers: int) -> float:
    """DeepNorm's multiplier of the skip in a decoder: (2 M)^(1/4)."""
    return float((2.0 * n_layers) ** 0.25)


_NO_NORMS = "no norms"


def _placement(into: Norm, out: Norm, stream: Norm, sizes: Sizes) -> str:
    """Where norms stand, by the names of the literature; slot by slot where it has none."""
    i, o, s = (words(norm, sizes) for norm in (into, out, stream))
    match (not into.is_none, not out.is_none, not stream.is_none):
        case (False, False, False):
            return _NO_NORMS
        case (True, False, False):
            return f"pre-LN, {i}"
        case (False, False, True):
            return f"post-LN, {s}"
        case (False, True, False):
            return f"reordered norm (on the output), {o}"
        case (True, True, False):
            return f"sandwich norm (input and output), {i if i == o else f'{i} in, {o} out'}"
    named = {"input": into, "output": out, "stream": stream}
    return ", ".join(f"{slot} {words(norm, sizes)}" for slot, norm in named.items() if not norm.is_none)


def _branch(spec: Branch, sizes: Sizes) -> list[str]:
    return [*_scaled("branch", spec.branch, sizes), *dropout_words(spec.dropout)]


def _stream(skip: Scale, skip_from: str, sizes: Sizes) -> list[str]:
    return [*_scaled("skip", skip, sizes), *(["skip from the normed input"] if skip_from == "normed" else [])]


def _scaled(name: str, scale: Scale, sizes: Sizes) -> list[str]:
    if scale == UNIT_SCALE:
        return []
    said = f"{name} {words(scale, sizes)}"
    return [f"{said} (LayerScale)" if isinstance(scale, VectorScale) and name == "branch" else said]


@says(Parallel)
def _parallel(spec: Parallel, sizes: Sizes) -> Said:
    out = ["parallel, each part behind its own norm", *_branches(spec.mixer, spec.ffn, sizes)]
    return out + _stream_end(spec.stream_norm, spec.skip, "stream", sizes)


@says(ParallelSharedNorm)
def _shared(spec: ParallelSharedNorm, sizes: Sizes) -> Said:
    out = [f"parallel, both parts behind one norm, {words(spec.input_norm, sizes)}"]
    if spec.mixer != Branch() or spec.ffn != Branch():
        out += _branches(spec.mixer, spec.ffn, sizes)
    return out + _stream_end(spec.stream_norm, spec.skip, spec.skip_from, sizes)


def _branches(mixer: Branch, ffn: Branch, sizes: Sizes) -> list[str]:
    def said(spec: Branch) -> list[str]:
        norms = _placement(spec.input_norm, spec.output_norm, NoNorm(), sizes)
        return [norms.removeprefix("pre-LN, "), *_branch(spec, sizes)]

    if mixer == ffn:
        return said(mixer)
    return [f"mixer: {', '.join(said(mixer))}", f"ffn: {', '.join(said(ffn))}"]


def _stream_end(norm: Norm, skip: Scale, skip_from: str, sizes: Sizes) -> list[str]:
    placed = [] if norm.is_none else [f"{words(norm, sizes)} on the sum"]
    return placed + _stream(skip, skip_from, sizes)


# the two ends and the start


@says(SinusoidalPosition)
def _sinusoidal(spec: SinusoidalPosition, sizes: Sizes) -> Said:
    out = [f"sinusoidal positions, theta {number(spec.theta)}", spec.layout]
    out += ["down to 1/theta inclusive"] if spec.spacing == "inclusive" else []
    return ", ".join(out + ([f"from position {spec.offset:,}"] if spec.offset else []))


@says(DenseTransform)
def _transform(spec: DenseTransform, sizes: Sizes) -> Said:
    after = "" if spec.norm.is_none else f" and {words(spec.norm, sizes)}"
    return f"a dense layer{' with bias' if spec.bias else ''}, {activation_name(spec.activation, sizes)}{after}"


@says(Embedding)
def _embedding(spec: Embedding, sizes: Sizes) -> Said:
    out = ["one table with the head (tied)" if spec.tied else "a table of its own (untied)"]
    if spec.scale != 1:
        out.append(f"× {value_words(spec.scale, sizes)}")
    for part in (spec.projection, spec.position, spec.norm):
        out += [] if part.is_none else [words(part, sizes)]
    return out + dropout_words(spec.dropout)


@says(Head)
def _head(spec: Head, sizes: Sizes) -> Said:
    out = ["no final norm" if spec.norm.is_none else f"final {words(spec.norm, sizes)}"]
    out += [words(part, sizes) for part in (spec.transform, spec.projection) if not part.is_none]
    if spec.bias:
        out.append("bias")
    if spec.scale != 1:
        out.append(f"logits × {value_words(spec.scale, sizes)}")
    if spec.soft_cap != "none":
        out.append(f"logits soft-capped at {number(spec.soft_cap)}")
    return out


@says(FanIn)
def _fan_in(spec: FanIn, sizes: Sizes) -> Said:
    variance = "1/fan_in" if spec.gain == 1 else f"{number(spec.gain)}²/fan_in"
    return f"N(0, {variance})" + ("" if spec.cutoff == "none" else f" cut at {number(spec.cutoff)} std")


@says(NoDepthScale, TotalDepth, LayerDepth, DeepNormScale, FixupScale)
def _depth(spec: Part, sizes: Sizes) -> Said:
    return {
        "none": "the same at every depth",
        "total_depth": "1/√(branches of the stack) on what writes to the stream (GPT-2)",
        "layer_depth": "1/√(2(l + 1)) on what layer l writes to the stream",
        "deepnorm": "DeepNorm's beta on values, outputs and feed-forward",
        "fixup": "Fixup: branch ends at 0, the rest of a branch by depth",
    }[spec.kind_name]


@says(Standard, Mup, CompleteP)
def _parametrization(spec: Part, sizes: Sizes) -> Said:
    if isinstance(spec, CompleteP):
        return f"CompleteP from width {spec.base_width} and {spec.base_depth} layers, alpha {number(spec.alpha)}"
    return f"muP from width {spec.base_width}" if isinstance(spec, Mup) else "standard parametrisation"


@says(Init)
def _init(spec: Init, sizes: Sizes) -> Said:
    by_phrase: dict[str, list[str]] = {}
    for entry in spec.roles:
        by_phrase.setdefault(words(entry.distribution, sizes), []).append(str(entry.role))
    usual = max(by_phrase, key=lambda phrase: len(by_phrase[phrase]))
    out = [f"{', '.join(roles)}: {phrase}" for phrase, roles in by_phrase.items() if phrase != usual]
    out.append(f"{'all else' if out else 'every matrix'}: {usual}")
    return out if spec.depth.is_none else [*out, words(spec.depth, sizes)]
