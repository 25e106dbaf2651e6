"""Texts as documents: every format gives the same ones, nothing is lost, and faults name file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.data import CorpusError, readers
from assay.training.data.sources import Source, open_source
from tests.training.data.support import json_lines, texts, words

DOCUMENTS = texts(30)


def read(name: Path | str, **options: Any) -> list[str]:
    return [document.text for document in open_source(str(name), **options).documents()]


def packed(path: Path, raw: bytes) -> Path:
    path.write_bytes(gzip.compress(raw))
    return path


def zst(path: Path, raw: bytes) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="of the extra `data`")
    with arrow.output_stream(str(path), compression="zstd") as f:
        f.write(raw)
    return path


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="of the extra `data`")
    from pyarrow import parquet as pq

    pq.write_table(arrow.table(columns), path, row_group_size=7)
    return path


def test_json_lines_plain_and_packed(tmp_path: Path) -> None:
    plain = json_lines(tmp_path / "a.jsonl", DOCUMENTS, "content")
    assert read(plain, field="content") == DOCUMENTS
    assert read(packed(tmp_path / "b.jsonl.gz", plain.read_bytes()), field="content") == DOCUMENTS


def test_json_lines_in_zstd(tmp_path: Path) -> None:
    raw = json_lines(tmp_path / "a.jsonl", DOCUMENTS).read_bytes()
    assert read(zst(tmp_path / "b.jsonl.zst", raw)) == DOCUMENTS


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="of the extra `data`")
    assert read(parquet(tmp_path / "a.parquet", {"n": range(30), "text": DOCUMENTS})) == DOCUMENTS
    wide = {"text": arrow.array(DOCUMENTS).dictionary_encode()}
    assert read(parquet(tmp_path / "b.parquet", wide)) == DOCUMENTS
    wide = {"body": arrow.array(DOCUMENTS, arrow.large_string())}
    assert read(parquet(tmp_path / "c.parquet", wide), field="body") == DOCUMENTS
    views = {"text": arrow.array(DOCUMENTS, arrow.string_view())}
    assert read(parquet(tmp_path / "d.parquet", views)) == DOCUMENTS


def dataset(folder: Path, columns: dict[str, Any], files: int = 2) -> Path:
    """What the ``datasets`` library's ``save_to_disk`` leaves."""
    arrow = pytest.importorskip("pyarrow", reason="of the extra `data`")
    folder.mkdir(parents=True)
    table, names = arrow.table(columns), [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    for i, name in enumerate(names):
        part = table.slice(i * len(table) // files, (i + 1) * len(table) // files - i * len(table) // files)
        with arrow.ipc.new_stream(str(folder / name), table.schema) as f:
            f.write_table(part, max_chunksize=7)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_dataset_on_disk(tmp_path: Path) -> None:
    one = dataset(tmp_path / "one", {"text": DOCUMENTS, "n": range(30)})
    assert read(one) == DOCUMENTS
    with pytest.raises(CorpusError, match="no column 'body'; found 'text', 'n'"):
        read(one, field="body")
    dataset(tmp_path / "two" / "test", {"text": DOCUMENTS[:3]})
    (tmp_path / "two" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert read(tmp_path / "two" / "test") == DOCUMENTS[:3]
    with pytest.raises(CorpusError, match=r"several splits; name one: .*test"):
        read(tmp_path / "two")
    state = json.loads((one / "state.json").read_text())
    (one / "state.json").write_text(json.dumps({**state, "_indices_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(CorpusError, match="flatten_indices"):
        read(one)


def test_a_dataset_of_the_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="of the extra `data`")
    arrow = pytest.importorskip("pyarrow", reason="of the extra `data`")
    table = datasets.table.InMemoryTable(arrow.table({"text": DOCUMENTS}))
    datasets.Dataset(table, fingerprint="1").save_to_disk(str(tmp_path / "d"), num_shards=3)
    assert read(tmp_path / "d") == DOCUMENTS


def test_folders_patterns_and_extensions(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.txt", "b/c.md", "b/d.c", "b/.hidden.txt", "e.jpg"):
        (tmp_path / name).write_text(name)
    json_lines(tmp_path / "b" / "x.jsonl", ["from json"])
    assert read(tmp_path) == ["a.txt", "b/c.md", "from json"]
    assert read(tmp_path, extensions=(".c", "jpg")) == ["b/d.c", "e.jpg"]
    assert read(f"{tmp_path}/**/*.[cm]*") == ["b/c.md", "b/d.c"]
    with pytest.raises(CorpusError, match=r"no \.rs files there"):
        read(tmp_path, extensions=(".rs",))


@pytest.mark.parametrize("name", ["english", "chinese"])
def test_texts_of_the_package(name: str) -> None:
    found = read(name)
    assert found == read(name)
    assert len(found) > 200 and all(text.strip() for text in found)
    assert ("In the beginning God created" in found[0]) == (name == "english")


@given(
    st.lists(st.sampled_from(["\n", "\n\n", "é", "x" * 50, "東", "a b\r\n", "🎈" * 9]), max_size=60),
    st.sampled_from([64, 200, 1 << 20]),
)
def test_a_long_text_is_cut_without_loss_inside_no_character(parts: list[str], block: int) -> None:
    """The pieces of one file are the file, whatever the size of a read, and of bounded size."""
    import tempfile

    before = (readers._BLOCK, readers._PIECE, readers._LONGEST, readers._WHOLE)
    readers._BLOCK, readers._PIECE, readers._LONGEST, readers._WHOLE = block, 40, 160, 300
    text = "".join(parts)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "long.txt")
            path.write_bytes(text.encode())
            for alone in (True, False):
                found = list(readers.read(path, "text", alone))
                assert "".join(document.text for document in found) == text
                assert all(len(document.text.encode()) <= block + 1000 for document in found)
                for i, document in enumerate(found[1:], 1):
                    line = 1 + sum(each.text.count("\n") for each in found[:i])
                    assert document.place == f"{path}, line {line}"
    finally:
        readers._BLOCK, readers._PIECE, readers._LONGEST, readers._WHOLE = before


@pytest.mark.parametrize("blocks", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("letter", ["x", "é", "東"])
def test_a_text_of_one_line_is_cut_too(tmp_path: Path, letter: str, blocks: float) -> None:
    """Also where a read ends just where a piece does, or inside a character."""
    text = letter * int(blocks * readers._BLOCK / len(letter.encode()))
    for name, more in (("a.txt", ""), ("b.txt", letter)):
        (tmp_path / name).write_text(text + more, encoding="utf-8")
        assert "".join(read(tmp_path / name)) == text + more


def line(**record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


FAULTS: list[tuple[str, bytes, str]] = [
    ("a.txt", b"one\ntwo\nna\xefve\n", r"a\.txt, line 3: not UTF-8: byte 0xef"),
    ("a.jsonl", line(text="fine") + b'{"text": "na\xefve"}\n', r"a\.jsonl, line 2: not UTF-8"),
    ("a.jsonl", line(text="fine") + b"\n{broken\n", r"a\.jsonl, line 3: not JSON"),
    ("a.jsonl", line(body="fine"), r"line 1: has no field 'text'; found 'body'"),
    ("a.jsonl", b"[1, 2]\n", r"line 1: a record is needed, found \[1, 2\]"),
    ("a.jsonl", line(text="fine") + line(text=float("nan")), r"line 2: field 'text' holds nan, not text"),
    ("a.jsonl", line(text=None), r"line 1: field 'text' holds null, not text"),
    ("a.jsonl", line(text=1.5), r"holds 1\.5, not text"),
    ("a.jsonl", b'{"text": "half \\ud83d"}\n', r"line 1: field 'text' holds half a character"),
    ("a.txt.gz", gzip.compress(words(0, 4000).encode(), mtime=0)[:-20], r"a\.txt\.gz: cannot be read: .*end"),
    ("a.txt.gz", gzip.compress(words(0, 4000).encode(), mtime=0)[:40] + b"?" * 40, r"a\.txt\.gz: cannot be read"),
    ("a.jsonl.gz", b"not gzip", r"a\.jsonl\.gz: cannot be read: Not a gzipped file"),
]


@pytest.mark.parametrize(("name", "raw", "said"), FAULTS)
def test_faults_name_file_and_line(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(CorpusError, match=said):
        read(tmp_path / name)


def test_faults_of_parquet(tmp_path: Path) -> None:
    for columns, said in (
        ({"text": [1.0, float("nan")]}, "column 'text' holds double, not text"),
        ({"text": ["a", None]}, "row 2: field 'text' holds null"),
        ({"body": ["a"]}, "has no column 'text'; found 'body'"),
    ):
        with pytest.raises(CorpusError, match=said):
            read(parquet(tmp_path / "a.parquet", columns))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(CorpusError, match=r"b\.parquet: cannot be read"):
        read(tmp_path / "b.parquet")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.txt.gz"])
def test_a_document_is_there_before_the_file_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long file, two blocks at most have been read when its first document comes."""
    monkeypatch.setattr(readers, "_BLOCK", 8192)
    monkeypatch.setattr(readers, "_WHOLE", 4096)
    read_so_far: list[int] = []
    real = readers._blocks

    def counted(path: Path) -> Iterator[bytes]:
        for block in real(path):
            read_so_far.append(len(block))
            yield block

    monkeypatch.setattr(readers, "_blocks", counted)
    raw = "".join(json.dumps({"text": words(i, 50)}) + "\n\n" for i in range(900)).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    first = next(open_source(str(tmp_path / name)).documents())
    assert first.text and len(read_so_far) <= 2 < len(raw) // 8192


def test_a_field_is_of_records_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(CorpusError, match="plain text has no field 'body'"):
        open_source(str(tmp_path / "a.txt"), "body")
    with pytest.raises(CorpusError, match="no such file or folder; or say one of stdlib, english, chinese"):
        open_source(str(tmp_path / "none.txt"))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match=r"pyarrow reads this and is not installed: pip install 'assay-lm\[data\]'"):
        read(tmp_path / "a.parquet")


def test_identity_is_of_what_is_read(tmp_path: Path) -> None:
    def source(name: str, text: str, field: str = "text") -> Source:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        return open_source(str(json_lines(tmp_path / name, [text], field)), field)

    same = {source("a.jsonl", "x").sha256, source("sub/b.jsonl", "x").sha256}
    assert len(same) == 1
    assert len(same | {source("c.jsonl", "y").sha256, source("d.jsonl", "x", "body").sha256}) == 3
