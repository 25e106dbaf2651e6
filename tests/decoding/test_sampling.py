"""Filters against a slow reference and transformers' own; draws against the exact distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.decoding import DecodingError, Sampling, choose, filtered, uniform
from tests.reference.sampling import distribution

OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.9]),
        "top_k": st.sampled_from(["all", 1, 3, 7, 40]),
        "top_p": st.sampled_from([1.0, 0.95, 0.6, 0.2, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
    }
)


def logits_of(seed: int, rows: int, vocab: int, *, ties: bool = False) -> torch.Tensor:
    z = 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return (z * 2).round() / 2 if ties else z


@given(OPTIONS, st.integers(0, 999), st.sampled_from([2, 11, 29]), st.booleans())
def test_filters_equal_the_slow_reference(options: dict[str, object], seed: int, vocab: int, ties: bool) -> None:
    z = logits_of(seed, 3, vocab, ties=ties)
    seen = torch.rand(3, vocab, generator=torch.Generator().manual_seed(seed + 1)) < 0.4
    got = torch.softmax(filtered(z, Sampling.of(**options), seen), dim=-1)
    for row in range(3):
        want = distribution(
            z[row].double().tolist(),
            temperature=options["temperature"],
            k=None if options["top_k"] == "all" else options["top_k"],
            p=options["top_p"],
            share=options["min_p"],
            penalty=options["repetition_penalty"],
            seen=set(seen[row].nonzero().flatten().tolist()),
        )
        np.testing.assert_allclose(got[row].numpy(), want, rtol=1e-12, atol=1e-300)


@given(OPTIONS, st.integers(0, 999))
def test_filters_equal_transformers(options: dict[str, object], seed: int) -> None:
    """Its processors in the order in which its ``generate`` applies them."""
    transformers = pytest.importorskip("transformers")
    z = logits_of(seed, 2, 31).double()
    prompt = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(seed))
    chain = transformers.LogitsProcessorList()
    if options["repetition_penalty"] != 1:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    chain.append(transformers.TemperatureLogitsWarper(options["temperature"]))
    if options["top_k"] != "all":
        chain.append(transformers.TopKLogitsWarper(options["top_k"]))
    if options["top_p"] < 1:
        chain.append(transformers.TopPLogitsWarper(options["top_p"]))
    if options["min_p"] > 0:
        chain.append(transformers.MinPLogitsWarper(options["min_p"]))
    seen = torch.zeros(2, 31, dtype=torch.bool).scatter(1, prompt, True)
    got, want = filtered(z, Sampling.of(**options), seen), chain(prompt, z.clone())
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.15}, {"temperature": 2.0, "top_k": 9, "top_p": 0.9}]
)
def test_draws_follow_the_exact_distribution(options: dict[str, object]) -> None:
    """20,000 seeds at one step: chi-square against the reference; what is barred never comes."""
    z, n = 0.4 * logits_of(5, 1, 12), 20_000
    sampling = Sampling.of(**{"temperature": 1.0, **options})
    drawn = choose(z.expand(n, -1), sampling, range(n), step=3)
    counts = np.bincount(drawn.numpy(), minlength=12)
    names = {"top_k": "k", "top_p": "p", "min_p": "share", "temperature": "temperature"}
    p = distribution(z[0].tolist(), **{"temperature": 1.0, **{names[k]: v for k, v in options.items()}})
    assert counts[p == 0].sum() == 0
    assert 3 < (p > 0).sum() < (13 if not options else 12)
    assert stats.chisquare(counts[p > 0], n * p[p > 0]).pvalue > 1e-4


def test_streams_are_uniform_and_apart() -> None:
    """Along steps and along seeds; neighbouring seeds and steps are uncorrelated."""
    table = np.array([[uniform(seed, step) for step in range(200)] for seed in range(200)])
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-3
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / math.sqrt(a.size)
    assert uniform(-3, 0) != uniform(3, 0)


def test_a_row_depends_on_its_own_seed_alone() -> None:
    z = logits_of(1, 6, 40)
    sampling = Sampling.of(temperature=1.3, top_p=0.9)
    seeds = [7, 7, 3, 0, 99, 2**70]
    together = choose(z, sampling, seeds, step=4)
    for row, seed in enumerate(seeds):
        assert choose(z[row : row + 1], sampling, [seed], step=4).item() == together[row]
    shuffled = [3, 0, 5, 1, 4, 2]
    again = choose(z[shuffled], sampling, [seeds[i] for i in shuffled], step=4)
    assert again.tolist() == together[shuffled].tolist()


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-199])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = logits_of(0, 5, 20)
    assert choose(logits, Sampling(temperature=temperature), range(5), 0).tolist() == logits.argmax(-1).tolist()


def test_greedy_takes_the_lowest_id_of_a_tie_and_heeds_the_penalty() -> None:
    z = torch.tensor([[1.0, 3.0, 3.0, -1.0], [-2.0, -1.0, -4.0, -1.5]])
    assert choose(z, Sampling(), [0, 0], 0).tolist() == [1, 1]
    seen = torch.tensor([[False, True, False, False], [False, True, False, False]])
    assert choose(z, Sampling.of(repetition_penalty=2.0), [0, 0], 0, seen).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"temperature": -1.0}, ("temperature", "-1.0")),
        ({"temperature": math.nan}, ("temperature",)),
        ({"temperature": 1.0, "top_k": 0}, ("top_k", "0")),
        ({"temperature": 1.0, "top_p": 0.0}, ("top_p", "0.0")),
        ({"temperature": 1.0, "min_p": 1.5}, ("min_p", "1.5")),
        ({"repetition_penalty": 0.0}, ("repetition_penalty", "0.0")),
        ({"top_k": 5}, ("top_k", "temperature 0")),
        ({"top_p": 0.5}, ("top_p", "temperature 0")),
        ({"temprature": 1.0}, ("temprature", "nearest: temperature")),
    ],
)
def test_faults_name_the_option(fields: dict[str, float], parts: tuple[str, ...]) -> None:
    with pytest.raises(DecodingError) as error:
        Sampling.of(**fields)
    for part in parts:
        assert part in str(error.value)
