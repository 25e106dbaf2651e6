"""What training keeps between forward and backward pass, a part at a time, and how far memory rises on the way.

The counts are those of torch's eager autograd for the model room's code (a test holds them against
``saved_tensors_hooks``): parameters are not activations, and a storage that several operations hold counts once.
Megatron's published formula (Korthikanti et al. 2022, arXiv:2205.05198) stands beside them as an oracle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from assay.cost.core import CORE, keeps_given, stores_scores
from assay.cost.model import count_layers
from assay.cost.rules import Work
from assay.cost.tape import Numerics, OpWork, Tape, Value
from assay.cost.trace import logits_chunk, trace_embedding, trace_head, trace_layer, trace_logits, trace_loss
from assay.recipe.layer import Layer
from assay.recipe.mixer import Attention, attentions_of
from assay.recipe.recipe import Recipe

RECOMPUTE = ("none", "selective", "full")


class Execution(NamedTuple):
    """How one device runs: what it is given at a time, in what numbers, and what it keeps."""

    work: Work
    numerics: Numerics = Numerics()
    recompute: str = "none"
    tp: int = 1
    sequence_parallel: bool = False

    def tape(self, work: Work | None = None, *, train: bool = True) -> Tape:
        return Tape(
            self.work if work is None else work,
            self.numerics,
            train=train,
            tp=self.tp,
            sequence_parallel=self.sequence_parallel,
            recompute_core=self.recompute == "selective",
        )


class Profile(NamedTuple):
    """One stage of the network: the embedding, a layer, or head and loss.

    Attributes:
        kept: bytes held from its forward to its backward pass.
        rise: bytes above that in its backward pass, the arriving gradient included.
        forward_rise: bytes of its forward pass when nothing is kept.
        grads: bytes of its parameter gradients.
        out: its output to the next stage.
        waits: bytes of gradients that its backward pass leaves for an earlier layer, less those that it takes up.
    """

    kept: int
    rise: int
    forward_rise: int
    grads: int
    out: Value
    by_op: dict[str, int]
    work: dict[str, OpWork]
    shared: dict[object, int]
    unknown: frozenset[str]
    waits: int = 0


class Network(NamedTuple):
    """The stages of a recipe in order; equal layers share one profile."""

    embedding: Profile
    layers: tuple[Profile, ...]
    head: Profile

    @property
    def stages(self) -> tuple[Profile, ...]:
        return (self.embedding, *self.layers, self.head)

    def shared(self) -> int:
        """Bytes held once for all layers: rotary tables."""
        found: dict[object, int] = {}
        for stage in self.distinct():
            found.update(stage.shared)
        return sum(found.values())

    def distinct(self) -> list[Profile]:
        return list({id(stage): stage for stage in self.stages}.values())

    def kept(self) -> int:
        return sum(stage.kept for stage in self.stages) + self.shared()

    def by_op(self) -> dict[str, int]:
        """Bytes kept, by the operation that keeps them."""
        out: dict[str, int] = {}
        for stage in self.stages:
            for op, n in stage.by_op.items():
                out[op] = out.get(op, 0) + n
        shared = self.shared()
        if shared:
            out["rope"] = out.get("rope", 0) + shared
        return out

    def work(self) -> dict[str, OpWork]:
        """FLOPs and bytes moved by operation class."""
        out: dict[str, OpWork] = {}
        times: dict[int, int] = {}
        for stage in self.stages:
            times[id(stage)] = times.get(id(stage), 0) + 1
        for stage in self.distinct():
            for op, each in stage.work.items():
                out.setdefault(op, OpWork()).add(each, times[id(stage)])
        return out

    def unknown(self) -> list[str]:
        return sorted(set().union(*(stage.unknown for stage in self.distinct())))


def _profile(tape: Tape, out: Value) -> Profile:
    return Profile(
        kept=tape.kept_bytes(),
        rise=tape.backward_rise() if tape.train else 0,
        forward_rise=tape.forward_rise(),
        grads=tape.param_grads(),
        out=out,
        by_op=tape.kept_by_op(),
        work=tape.work,
        shared=tape.shared_bytes(),
        unknown=frozenset(tape.unknown),
    )


def network(recipe: Recipe, run: Execution, *, train: bool = True, logits_for: int | None = None) -> Network:
    """Every stage of the recipe on one device.

    Args:
        train: keep what the backward pass needs, and end in the loss; else end in logits.
        logits_for: positions a sequence whose logits are made; all new ones when None.
    """
    tape = run.tape(train=train)
    x = trace_embedding(tape, recipe)
    embedding = _profile(tape, x)
    seen: dict[tuple[int, int], Profile] = {}
    layers = []
    for layer in recipe.layers:
        key = (id(layer), x.width)
        if key not in seen:
            seen[key] = layer_profile(layer, recipe.d_model, x, run, train=train)
        layers.append(seen[key])
        x = layers[-1].out
    layers = _with_sources(recipe, layers, run, train)
    head = _head(recipe, x, run) if train else _logits(recipe, x, run, logits_for)
    return Network(embedding, tuple(layers), head)


def _with_sources(recipe: Recipe, layers: list[Profile], run: Execution, train: bool) -> list[Profile]:
    """Keys and values that later layers read are held until the last reader has run; their gradients, the way back."""
    readers = {source: depth for depth, source in enumerate(recipe.kv_sources) if source is not None}  # the last ones
    out = list(layers)
    for source, last in readers.items():
        spec = recipe.layers[source].mixer
        assert isinstance(spec, Attention)
        nbytes = 2 * run.work.tokens * -(-spec.kv_width // run.tp) * run.numerics.compute
        if not train:
            for depth in range(source + 1, last + 1):
                out[depth] = out[depth]._replace(forward_rise=out[depth].forward_rise + nbytes)
            continue
        held = nbytes if run.recompute == "full" else 0
        if not held:
            _hold_for_readers(recipe, out, source, run.tape(), nbytes // 2)
        out[source] = out[source]._replace(kept=out[source].kept + held, waits=out[source].waits - nbytes)
        out[last] = out[last]._replace(waits=out[last].waits + nbytes)
    return out


def _hold_for_readers(recipe: Recipe, out: list[Profile], source: int, tape: Tape, nbytes: int) -> None:
    """Keys, and values, of which the source keeps only copies are kept by the first reader that keeps them as given."""
    group = [source, *(depth for depth, read in enumerate(recipe.kv_sources) if read == source)]
    kept = {d: keeps_given(tape, attentions_of(recipe.layers[d].mixer)[0]) for d in group}
    for which in range(2):
        first = next((d for d in kept if kept[d][which]), source)
        if first != source:
            by_op = {**out[first].by_op, CORE: out[first].by_op.get(CORE, 0) + nbytes}
            out[first] = out[first]._replace(kept=out[first].kept + nbytes, by_op=by_op)


def layer_profile(layer: Layer, d: int, x: Value, run: Execution, *, train: bool = True) -> Profile:
    """One layer that reads a stream like ``x``."""
    tape = run.tape(train=train)
    x = Value(x.n, x.width)
    found = _profile(tape, trace_layer(tape, layer, d, x))
    if not train or run.recompute != "full":
        return found
    for work in tape.work.values():  # the whole forward runs once more
        work.backward_flops += work.flops
        work.backward_bytes += work.bytes
    again = found.kept - (x.nbytes if x.store in tape.kept else 0)
    return found._replace(kept=x.nbytes, rise=again + found.rise, by_op={"layer_inputs": x.nbytes})


def _head(recipe: Recipe, x: Value, run: Execution) -> Profile:
    """Final norm and loss."""
    tape = run.tape()
    return _profile(tape, trace_loss(tape, recipe, trace_head(tape, recipe, Value(x.n, x.width))))


def _logits(recipe: Recipe, x: Value, run: Execution, logits_for: int | None) -> Profile:
    work = run.work if logits_for is None else Work(run.work.batch, logits_for, run.work.past)
    tape = run.tape(work, train=False)
    x = Value(x.n * work.new // run.work.new, x.width)
    return _profile(tape, trace_logits(tape, recipe, trace_head(tape, recipe, x)))


def backward_peak(stages: tuple[Profile, ...], shared: int, grad_share: int = 1) -> int:
    """The highest level of activations and gradients in one forward and backward pass, parameters apart.

    Args:
        grad_share: devices that each keep a part of the parameter gradients once they are summed.
    """
    live = shared + sum(stage.kept for stage in stages)
    peak = live
    for stage in reversed(stages):
        peak = max(peak, live + stage.rise)
        live += -(-stage.grads // grad_share) + stage.waits - stage.kept
    return max(peak, live)


def highest_rise(stages: tuple[Profile, ...]) -> int:
    """The largest rise of a stage's backward pass, over the gradients that wait for earlier ones."""
    waiting = top = 0
    for stage in reversed(stages):
        top = max(top, waiting + stage.rise)
        waiting += stage.waits
    return top


def megatron_layer_bytes(
    seq_len: int,
    batch: int,
    d_model: int,
    n_heads: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "",
) -> int:
    """Bytes that one GPT layer keeps with 16-bit activations and dropout: ``s b h (34 + 5 a s / h)``.

    Korthikanti et al. 2022, arXiv:2205.05198, table 2: with tensor parallelism ``s b h (10 + 24/t + 5 a s/(h t))``;
    with sequence parallelism the whole divided by t; selective recomputation drops the ``5 a s / h``; full
    recomputation keeps the layer's input, ``2 s b h``.
    """
    sbh, core = seq_len * batch * d_model, 5 * n_heads * seq_len * seq_len * batch
    if recompute == "full":
        return 2 * sbh
    core = 0 if recompute == "selective" else core
    if sequence_parallel:
        return (34 * sbh + core) // tp
    return 10 * sbh + (24 * sbh + core) // tp


def activation_report(recipe: Recipe, run: Execution, net: Network) -> dict[str, Any]:
    """The activation ledger of one device's micro-batch: whole, by operation, by layer kind, by recomputation."""
    kept = net.kept()
    kept_with = {
        mode: kept if mode == run.recompute else network(recipe, run._replace(recompute=mode)).kept()
        for mode in RECOMPUTE
    }
    kinds: dict[str, dict[str, int]] = {}
    for layer, profile in zip(recipe.layers, net.layers, strict=True):
        entry = kinds.setdefault(layer.name, {"layers": 0, "bytes_per_layer": profile.kept})
        entry["layers"] += 1
    distinct = count_layers(recipe.layers)
    specs = [(spec, n) for layer, n in distinct.items() for spec in attentions_of(layer.mixer)]
    stored = {stores_scores(spec, run.numerics.backend) for spec, _ in specs}
    work = run.work
    megatron = sum(
        n * megatron_layer_bytes(work.new, work.batch, recipe.d_model, spec.n_heads, run.tp, run.sequence_parallel)
        for spec, n in specs
    )
    return {
        "bytes": kept,
        "bytes_per_token": kept // work.tokens,
        "recompute": run.recompute,
        **{f"{mode}_bytes": kept_with[mode] for mode in RECOMPUTE},
        "by_op": net.by_op(),
        "by_layer": kinds,
        "backend": {frozenset(): "none", frozenset({True}): "reference", frozenset({False}): "sdpa"}.get(
            frozenset(stored), "mixed"
        ),
        "kernels": "accelerator" if run.numerics.fused else "cpu",
        "megatron_formula_bytes": megatron,
        "logits": logits_report(recipe, run),
        "unknown": net.unknown(),
    }


def logits_report(recipe: Recipe, run: Execution) -> dict[str, int]:
    """Bytes of the logits: whole, with their gradient, and what assay's chunked loss has at once."""
    vocab, width = -(-recipe.vocab_size // run.tp), run.numerics.compute
    chunk = logits_chunk(recipe, run.work.tokens, width)
    whole = run.work.tokens * vocab * width
    return {
        "bytes": whole,
        "float32_bytes": run.work.tokens * vocab * 4,
        "with_gradient_bytes": 2 * whole,
        "chunk_tokens": chunk,
        "chunk_bytes": chunk * vocab * width,
    }
