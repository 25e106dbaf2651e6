"""Parameters from the fields alone equal the published ones, to the digit, wherever those are exact."""

from __future__ import annotations

import pytest

from assay.atlas import model, models, recount

EXACT = [m.id for m in models() if m.params.precision in ("exact", "computed")]
# published counts that hold what the fields do not, or lack what they do; each is said in params.note
OFF = {
    "gpt-j-6b": -2_498_560,  # the README's figure
    "dclm-7b": 262_144,  # published without the gains of QK-norm
    "smollm3-3b": -2_304,  # published with rotary buffers, 36 x 64
    "stablelm-2-1.6b": -2_048,  # published with one norm bias
}


@pytest.mark.parametrize("model_id", EXACT)
def test_exact_counts_come_out(model_id: str) -> None:
    m = model(model_id)
    count = recount(m)
    assert count.counted, count.missing
    assert count.total - (m.params.total or 0) == OFF.get(model_id, 0)
    if model_id in OFF:
        assert m.params.note


def test_there_are_many() -> None:
    assert len(EXACT) == 63


def test_rounded_names_are_near_the_count_or_their_note_says_how_far() -> None:
    for m in models(precision="rounded"):
        count = recount(m)
        if count.counted and m.params.total:
            off = abs(count.total / m.params.total - 1)
            assert off < 0.035 or m.params.note or m.notes, (m.id, off)


def test_what_cannot_be_counted_is_named() -> None:
    missing = {m.id: recount(m).missing for m in models() if not recount(m).counted}
    assert 10 <= len(missing) <= 25
    assert "d_ff was not found" in missing["yi-34b"]
    assert all(reasons for reasons in missing.values())


@pytest.mark.parametrize(
    ("model_id", "convention", "billions"),
    [
        ("mixtral-8x7b", "active", 12.88),
        ("qwen3-30b-a3b", "active", 3.35),
        ("qwen3-235b-a22b", "active", 22.19),
        ("deepseek-moe-16b", "active", 2.83),
        ("deepseek-v2", "active", 21.38),
        ("gpt-oss-20b", "active_without_input_embedding", 3.61),
        ("gpt-oss-120b", "active_without_input_embedding", 5.13),
        ("deepseek-v2-lite", "active_without_input_embedding", 2.45),
        ("deepseek-v3", "active_without_input_embedding", 36.63),
        ("glm-4.5", "non_embedding", 32.08),
        ("glm-4.5-air", "non_embedding", 12.18),
        ("minimax-m2", "non_embedding", 9.80),
    ],
)
def test_active_parameters_are_three_conventions(model_id: str, convention: str, billions: float) -> None:
    assert getattr(recount(model(model_id)), convention) / 1e9 == pytest.approx(billions, abs=0.005)


def test_parts_add_up() -> None:
    for m in models():
        count = recount(m)
        assert sum(count.parts.values()) == count.total, m.id
