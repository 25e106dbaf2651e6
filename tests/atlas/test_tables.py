"""Tables: every cell with a source, the recovered ones with the numbers that the papers print."""

from __future__ import annotations

import json

import pytest

from assay.atlas import atlas_data, model, models, table, table_names
from assay.atlas.tables import _published


def column(name: str, title: str) -> dict[str, object]:
    """A column of a table by the first cell of its row."""
    t = table(name)
    at = t.columns.index(title)
    return {row[0].text: row[at].value for row in t.rows}


@pytest.mark.parametrize("name", table_names())
def test_a_table_is_whole(name: str) -> None:
    t = table(name)
    assert t.id == name
    assert t.title
    assert t.rows
    for row in t.rows:
        assert len(row) == len(t.columns)
        for cell in row:
            assert cell.text
            assert t.sources_of(cell), (name, row[0].text)
    texts = t.texts()
    assert len(texts) == len(t.rows)
    assert len(t.footnotes()) == len(set(t.footnotes()))
    json.dumps(t.to_dict(), allow_nan=False)


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="nearest: shazeer-glu"):
        table("shazeer-gluu")


def test_recovered_numbers() -> None:
    assert column("narang-norms", "Final loss")["RMS Norm"] == 1.821
    assert column("narang-norms", "Step/s") | {} == {
        "Vanilla Transformer": 3.5, "RMS Norm": 3.68, "ReZero": 3.51, "ReZero + LayerNorm": 3.26,
        "ReZero + RMS Norm": 3.34, "Fixup": 2.95,
    }  # fmt: skip
    glu = column("shazeer-glu", "GLUE average")
    assert (glu["SwiGLU"], glu["Bilinear"], glu["its standard deviation"]) == (84.36, 83.79, 0.235)
    assert column("data-movement", "% runtime")["Tensor contraction (matmul)"] == 61.0
    assert column("grouped-query", "Average") == {
        "MHA-Large": 46.0, "MHA-XXL": 47.2, "MQA-XXL": 46.6, "GQA-8-XXL": 47.1,
    }  # fmt: skip


def test_gated_rows_beat_their_ungated_rows_in_narang() -> None:
    loss = column("narang-activations", "Final loss")
    pairs = {"GLU": "Sigmoid", "GeGLU": "GeLU", "ReGLU": "Vanilla (ReLU)", "SwiGLU": "Swish"}
    assert all(loss[gated] < loss[plain] for gated, plain in pairs.items())  # type: ignore[operator]


def test_cells_of_the_atlas_are_recomputed() -> None:
    assert column("aspect-ratio", "d_model / n_layers")["T5 (11B)"] == pytest.approx(42.667, abs=1e-3)
    assert column("attention-ratio", "heads x head_dim / d_model")["PaLM"] == pytest.approx(2 / 3)
    assert column("vocabulary", "Rows")["GPT"] == 40_478
    assert column("z-loss", "Coefficient")["Falcon 7B"] == 1e-4
    assert table("aspect-ratio").footnotes()[0].startswith("1024/24")


def test_printed_and_recomputed_differ_only_where_a_note_says_so() -> None:
    slacks = {"ffn-ratio": (2, 0.02), "aspect-ratio": (2, 0.6), "attention-ratio": (5, 0.02), "vocabulary": (2, 0)}
    printed = 1
    for name, (recomputed, slack) in slacks.items():
        for row in table(name).rows:
            a, b = row[printed].value, row[recomputed].value
            if isinstance(a, int | float) and isinstance(b, int | float) and abs(a - b) > slack:
                assert row[0].note or row[printed].note or row[recomputed].note, (name, row[0].text, a, b)


def test_the_timeline_shows_what_converged() -> None:
    t = table("timeline")
    years = {row[0].value: row for row in t.rows}
    share = lambda year, title: years[year][t.columns.index(title)].value  # noqa: E731
    assert share(2022, "RMSNorm") < 0.3
    assert share(2025, "RMSNorm") > 0.95
    assert share(2026, "gated FFN") == 1.0
    assert share(2023, "QK-norm") == 0.0
    assert share(2025, "QK-norm") > 0.5
    assert share(2023, "parallel block") > share(2025, "parallel block")
    counted = sum(row[1].value for row in t.rows if isinstance(row[0].value, int))
    assert counted == years["all"][1].value


def test_the_evidence_of_every_rule_is_a_table() -> None:
    labels = {row[2].value for row in table("evidence").rows}
    assert labels == {"swept", "copied: nobody re-checked", "nobody checked", "follows from the definition"}


def test_dropout_left_and_decay_stayed() -> None:
    t = table("decay-and-dropout")
    dropout, decay = t.columns.index("Dropout"), t.columns.index("Weight decay")
    new = [row for row in t.rows if str(row[1].value) >= "2023"]
    assert not [row for row in new if isinstance(row[dropout].value, float) and row[dropout].value > 0]
    assert sum(row[decay].value == 0.1 for row in new) > 30
    qwen = next(row for row in t.rows if row[0].value == "qwen-14b")
    assert qwen[dropout].value is None
    assert "SFT" in qwen[decay].note


def test_users() -> None:
    assert set(column("users-z-loss", "Coefficient")) >= {"palm-540b", "falcon-7b", "olmo-2-7b", "dclm-7b"}
    assert "smollm3-3b" not in column("users-z-loss", "Coefficient")
    assert column("users-soft-cap", "Attention")["gemma2-9b"] == 50
    assert set(column("users-parallel", "Norms a layer")) >= {"gpt-j-6b", "command-a", "falcon-40b"}
    assert len(table("users-qk-norm").rows) == len(models(qk_norm=True))


def test_censuses_count_every_model() -> None:
    for name in table_names():
        if name.startswith("census-"):
            assert sum(row[1].value for row in table(name).rows) == len(models())


def test_the_tables_of_the_course_chapter() -> None:
    t = table("dense-shapes")
    row = next(r for r in t.rows if r[0].value == "llama-3.1-8b")
    assert row[t.columns.index("Tokens")].value == 15_000_000_000_000
    assert "405B" in row[t.columns.index("Tokens")].note
    assert len(t.rows) == 7
    assert len(table("flagships").rows) == 7


def test_published_tables_name_models_that_exist() -> None:
    cells = [c for t in _published().values() for row in t["rows"] for c in row if isinstance(c, str) and c[:1] == "="]
    assert len(cells) > 60
    assert all(model(c.partition(":")[2]) for c in cells)


def test_every_mark_of_a_published_table_finds_its_cell() -> None:
    for t in _published().values():
        labels = {str(row[0]) for row in t["rows"]}
        for mark in t.get("marks", ()):
            assert mark["row"] in labels, (t["id"], mark)
            assert mark["column"] in t["columns"], (t["id"], mark)


def test_the_whole_atlas_is_plain_data() -> None:
    data = atlas_data()
    json.dumps(data, allow_nan=False)
    assert len(data["models"]) == 154
    assert set(data["tables"]) == set(table_names())
    assert data["rules"][0]["evidence_text"]
