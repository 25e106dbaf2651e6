"""A few recipes that together hold every kind and field, each where it makes a difference."""

from __future__ import annotations

from tests.strategies import Table

_SIZES = {"d_model": 16, "vocab_size": 19, "max_seq_len": 14}

# every RoPE scaling, QK-norms, caps, gates; learned positions, projections, a start of its own for each role
ROTARY: Table = {
    "name": "rotary",
    **_SIZES,
    "embedding": {
        "tied": False,
        "scale": 2.5,
        "projection": {"kind": "linear", "dim": 6},
        "position": {"kind": "learned", "offset": 2},
        "norm": {"kind": "fixnorm", "radius": 1.7},
        "dropout": 0.1,
    },
    "head": {
        "norm": {"kind": "layernorm", "eps": 1e-4},
        "transform": {"kind": "dense", "activation": "gelu", "norm": {"kind": "layernorm", "eps": 1e-4}, "bias": True},
        "projection": {"kind": "linear", "dim": 7, "bias": True},
        "bias": True,
        "scale": 1.3,
        "soft_cap": 6.0,
    },
    "block": {
        "mixer": {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "scale": 0.4, "dropout": 0.2},
        "ffn": {"kind": "mlp", "d_ff": 9, "activation": {"kind": "swish", "beta": 1.7}, "bias": ["up"], "dropout": 0.1},
        "residual": {"rule": "sandwich", "norm": {"kind": "rmsnorm", "gain": "one_plus"}},
    },
    "layers": {
        "yarn": {
            "mixer": {
                "position": {
                    "kind": "rope",
                    "theta": 50.0,
                    "scaling": {"kind": "yarn", "factor": 4.0, "original_seq_len": 64},
                },
                "qk_norm": {"over": "head", "norm": {"kind": "rmsnorm", "eps": 1e-3}, "gain_per": "head"},
                "clip_qkv": 1.5,
            },
        },
        "llama3": {
            "mixer": {
                "position": {
                    "kind": "rope",
                    "theta": 100.0,
                    "layout": "interleaved",
                    "scaling": {"kind": "llama3", "factor": 8.0, "original_seq_len": 40},
                },
                "qk_norm": {"over": "width", "norm": "layernorm", "order": "after_rope"},
                "sinks": "per_head",
            },
        },
        "linear": {
            "mixer": {
                "position": {"kind": "rope", "fraction": 0.5, "scaling": {"kind": "linear", "factor": 3.0}},
                "output_gate": "channel",
                "bias": "all",
                "soft_cap": 3.0,
            },
        },
        "ntk": {
            "mixer": {
                "position": {"kind": "rope", "fraction": 0.75, "scaling": {"kind": "ntk", "factor": 3.0}},
                "query_scale": {"kind": "by_position", "beta": 0.5, "period": 4, "first": 1},
                "output_gate": "head",
                "inner_norm": "scalenorm",
            },
        },
        "dynamic": {
            "mixer": {
                "position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_seq_len": 6}},
                "qk_norm": {"over": "head", "norm": {"kind": "scalenorm"}},
                "differential": {"norm": {"kind": "rmsnorm", "eps": 1e-3}, "start": 0.3},
                "dropout": 0.0,
            },
        },
        "longrope": {
            "mixer": {
                "position": {
                    "kind": "rope",
                    "fraction": 0.5,
                    "scaling": {
                        "kind": "longrope",
                        "short_factor": [1.0, 1.3],
                        "long_factor": [1.1, 4.0],
                        "original_seq_len": 8,
                        "attention_factor": 1.2,
                    },
                },
            },
        },
    },
    "stack": [{"cycle": ["yarn", "llama3", "linear", "ntk", "dynamic", "longrope"], "n_layers": 7}],
    "init": {
        "weights": {"kind": "fan_in", "gain": 0.9},
        "embedding": {"kind": "normal", "std": 0.5},
        "attn_in": {"kind": "truncated_normal", "std": 0.03},
        "ffn_in": {"kind": "xavier", "shape": "uniform"},
        "depth": "layer_depth",
    },
}

# sums of branches, windows, layers that lack a sublayer, learned scales; sinusoidal positions
SUMS: Table = {
    "name": "sums",
    **_SIZES,
    "embedding": {
        "tied": True,
        "position": {"kind": "sinusoidal", "theta": 50.0, "spacing": "inclusive", "offset": 1},
        "norm": "layernorm",
    },
    "head": {"norm": {"kind": "scalenorm", "init": 2.0}},
    "layers": {
        "sum": {
            "mixer": {
                "kind": "sum",
                "branches": [
                    {
                        "mixer": {
                            "kind": "attention",
                            "n_heads": 2,
                            "head_dim": 5,
                            "position": "none",
                            "span": {"kind": "window", "size": 3, "causal": False},
                        },
                        "input_norm": "layernorm",
                        "output_scale": 0.5,
                    },
                    {
                        "mixer": {
                            "kind": "attention",
                            "n_heads": 3,
                            "n_kv_heads": 1,
                            "position": "rope",
                            "head_dim": 4,
                        },
                        "input_scale": 1.4,
                        "output_norm": "rmsnorm",
                    },
                ],
            },
            "ffn": {
                "kind": "sum",
                "branches": [
                    {
                        "ffn": {
                            "kind": "mlp",
                            "d_ff": 8,
                            "activation": {"kind": "elu", "alpha": 0.6},
                            "act_norm": "layernorm",
                        },
                        "input_scale": 2.0,
                    },
                    {
                        "ffn": {
                            "kind": "glu",
                            "d_ff": 6,
                            "activation": "silu",
                            "clamp": 1.5,
                            "up_offset": 1.0,
                            "inner_norm": "rmsnorm",
                            "dropout": 0.2,
                        },
                        "output_norm": "shift",
                    },
                ],
            },
            "residual": {
                "mixer": {"input_norm": "rmsnorm", "branch": {"kind": "vector", "init": 0.1}, "skip_from": "normed"},
                "ffn": {"stream_norm": "layernorm", "skip": {"kind": "constant", "value": 1.6}, "dropout": 0.1},
            },
        },
        "mixing": {
            "mixer": {
                "kind": "attention",
                "n_heads": 2,
                "position": {"kind": "t5", "n_buckets": 8, "max_distance": 12},
                "span": {"kind": "full", "causal": False},
            },
            "ffn": "none",
            "residual": "rezero",
        },
        "feeding": {"mixer": "none", "ffn": {"kind": "glu", "d_ff": 5, "activation": "relu"}, "residual": "fixup"},
    },
    "stack": ["sum", "mixing", "feeding"],
    "init": {"depth": "deepnorm"},
}

# the parallel forms; every span, biases on scores
PARALLEL: Table = {
    "name": "parallel",
    **_SIZES,
    "embedding": {"tied": True, "scale": "sqrt_d_model"},
    "head": {"norm": "rmsnorm", "scale": "inv_sqrt_d_model"},
    "block": {
        "mixer": {"kind": "attention", "n_heads": 2, "position": "rope", "span": {"kind": "window", "size": 4}},
        "ffn": {"kind": "glu", "d_ff": 6, "activation": "gelu_tanh"},
    },
    "layers": {
        "apart": {
            "residual": {
                "form": "parallel",
                "mixer": {"input_norm": "rmsnorm", "branch": 0.7, "dropout": 0.1},
                "ffn": {"input_norm": "layernorm", "output_norm": "rmsnorm"},
                "skip": {"kind": "scalar", "init": 0.9},
            },
            "mixer": {
                "position": {"kind": "t5", "n_buckets": 8, "max_distance": 12},
                "span": {"kind": "strided", "stride": 3},
            },
        },
        "biased": {
            "residual": "post",
            "mixer": {
                "position": {"kind": "t5", "n_buckets": 8, "max_distance": 9, "table": "first"},
                "span": {"kind": "chunked", "size": 13},
            },
            "ffn": {"activation": {"kind": "xielu", "alpha": 0.9}},
        },
        "distant": {
            "residual": {"rule": "deepnorm", "norm": {"kind": "layernorm", "bias": False}},
            "mixer": {
                "position": {"kind": "alibi", "multiplier": 1.5},
                "span": {"kind": "fixed", "block": 5, "summary": 2},
            },
        },
        "shared": {
            "residual": {
                "form": "parallel_shared_norm",
                "input_norm": "layernorm",
                "ffn": {"output_norm": "rmsnorm", "branch": {"kind": "scalar", "init": 0.5}},
                "stream_norm": "rmsnorm",
            },
            "mixer": {"span": {"kind": "window_global", "size": 2, "n_global": 2}},
        },
    },
    "stack": ["apart", "2 shared", "biased", "distant"],
    "init": {"weights": {"kind": "xavier", "gain": 0.9}, "depth": "total_depth"},
}

# layers that read the keys of earlier ones, of either of two
READERS: Table = {
    "name": "readers",
    **_SIZES,
    "embedding": {"tied": True},
    "head": {"norm": "rmsnorm"},
    "block": {
        "mixer": {
            "kind": "attention",
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 8,
            "position": "rope",
            "span": {"kind": "window", "size": 4},
            "qk_norm": {"over": "head", "norm": "rmsnorm"},
        },
        "ffn": {"kind": "glu", "d_ff": 9, "activation": "silu"},
        "residual": {"rule": "pre", "norm": "rmsnorm"},
    },
    "layers": {
        "source": {"mixer": {"bias": "all"}},
        "near": {"mixer": {"kv": {"kind": "shared", "layer": "source"}, "bias": "all"}},
        "far": {"mixer": {"kv": {"layer": 0}, "output_gate": "head"}},
    },
    "stack": ["2 source", "near", "far", "near"],
}

RICH = {str(table["name"]): table for table in (ROTARY, SUMS, PARALLEL, READERS)}
