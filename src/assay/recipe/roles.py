"""The one vocabulary of parameter roles, shared by init, weight decay, optimizers, cost and interop.

A role says what a tensor *does*, never what it is called: rules keyed on names break at the next rename.
"""

from __future__ import annotations

from enum import StrEnum


class ParamRole(StrEnum):
    """What a parameter does in the model."""

    EMBEDDING = "embedding"  # token table, and the tied head's
    POSITION = "position"  # learned absolute positions
    PROJECTION = "projection"  # between the embedding width and the model width; the head's dense layer
    ATTN_IN = "attn_in"  # query, key and output-gate projections
    ATTN_VALUE = "attn_value"  # value projection (DeepNorm scales it, not q and k)
    ATTN_OUT = "attn_out"  # writes to the residual stream
    FFN_IN = "ffn_in"  # up and gate
    FFN_OUT = "ffn_out"  # writes to the residual stream
    HEAD = "head"  # untied unembedding
    NORM_GAIN = "norm_gain"
    BIAS = "bias"  # of projections and of norms
    SCALE = "scale"  # learned residual scalars and vectors, Fixup's scalars
    SINK = "sink"  # one logit a head
    LAMBDA = "lambda"  # the vectors that differential attention's factor is made of

    @property
    def is_matrix(self) -> bool:
        """True for the roles that are drawn from a distribution; the others start at a constant."""
        return self in MATRIX_ROLES

    @property
    def writes_to_stream(self) -> bool:
        """True for matrices whose output is added to the residual stream."""
        return self in (ParamRole.ATTN_OUT, ParamRole.FFN_OUT)

    @property
    def is_hidden_matrix(self) -> bool:
        """True for the matrices that Muon-like optimizers take: inside a layer, two-dimensional."""
        return self in HIDDEN_ROLES

    @property
    def decays(self) -> bool:
        """Weight decay by default: matrices of the layers, the head and the projections.

        Embeddings, positions, norm gains, biases, residual scales, sinks and lambdas do not decay.
        """
        return self in DECAY_ROLES


HIDDEN_ROLES = frozenset(
    {ParamRole.ATTN_IN, ParamRole.ATTN_VALUE, ParamRole.ATTN_OUT, ParamRole.FFN_IN, ParamRole.FFN_OUT}
)
DECAY_ROLES = HIDDEN_ROLES | {ParamRole.HEAD, ParamRole.PROJECTION}
MATRIX_ROLES = DECAY_ROLES | {ParamRole.EMBEDDING, ParamRole.POSITION, ParamRole.LAMBDA}
