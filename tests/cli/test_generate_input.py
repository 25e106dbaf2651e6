"""What ``assay generate`` is given: text that is none, files that are not its own, templates that break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli.app import app


def run(*argv: str, code: int = 0) -> str:
    out = CliRunner().invoke(app, ["generate", *argv], prog_name="assay")
    assert out.exit_code == code, out.output
    return out.stdout if code == 0 else out.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recipe and random weights; bytes are its tokens."""
    from assay import build, load
    from assay.model import save_weights

    folder = tmp_path_factory.mktemp("model")
    decoder = build(load("tiny/base", ["max_seq_len=64"]))
    save_weights(decoder, folder / "model.safetensors")
    (folder / "recipe.toml").write_text(decoder.recipe.to_toml(), encoding="utf-8")
    return str(folder)


def many(model: str, source: Path, out: Path, code: int = 0) -> str:
    argv = ("--tokenizer", "bytes", "--input", str(source), "--output", str(out), "--max-new-tokens", "3")
    return run(model, *argv, code=code)


def test_lines_end_at_line_feeds_alone(model: str, tmp_path: Path) -> None:
    """JSON text may hold U+2028, U+2029 and U+0085 as they are."""
    rows = [{"prompt": "a\u2028b\u2029c\x85d"}, {"prompt": "e"}]
    (tmp_path / "in").write_text("\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    many(model, tmp_path / "in", tmp_path / "out")
    written = (tmp_path / "out").read_bytes().split(b"\n")
    assert [json.loads(line)["prompt"] for line in written[:-1]] == [row["prompt"] for row in rows]
    assert "2 of them from before" in many(model, tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b'{"prompt": "\xff"}', "no UTF-8"),
        (b'{"prompt": "\\ud800"}', "no UTF-8"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(model: str, tmp_path: Path, line: bytes, part: str) -> None:
    (tmp_path / "in").write_bytes(b'{"prompt": "a"}\n' + line + b"\n")
    assert f"{tmp_path / 'in'}: line 2: {part}" in many(model, tmp_path / "in", tmp_path / "out", code=2)
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_no_text(model: str) -> None:
    """They come from the command line as halves of surrogate pairs."""
    assert "prompt: not UTF-8 from character 1 on" in run(model, "a\udcff", "--tokenizer", "bytes", code=2)
    assert "stop: not UTF-8" in run(model, "a", "--stop", "\udcff", "--tokenizer", "bytes", code=2)


def test_a_file_of_someone_else_is_left_alone(model: str, tmp_path: Path) -> None:
    """A single line without an end is no half of a text of ours, be it the input itself."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_text('{"prompt": "a"}')
    out.write_text("one line")
    assert f"{out}: line 1 is damaged" in many(model, source, out, code=2)
    assert out.read_text() == "one line"
    assert "the input itself" in many(model, source, source, code=2)
    assert source.read_text() == '{"prompt": "a"}'
    many(model, source, tmp_path / "ours")
    whole = (tmp_path / "ours").read_bytes()
    for cut in (1, 5, 20, len(whole) - 1):
        out.write_bytes(whole[:cut])
        many(model, source, out)
        assert out.read_bytes() == whole
    assert "not a file" in many(model, source, Path("/dev/full"), code=2)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        (b"{{ messages[0].content + 1 }}", "TypeError"),
        (b"{{ 1 / 0 }}", "ZeroDivisionError"),
        (b"{{ range(999999999) | list }}", "OverflowError"),
        (b"{{ messages[0].content.a.b }}", "no attribute"),
        (b"{{ messages[0]", "refuses"),
        (b"{{ '' }}", "leaves no token"),
        (b"\xff", "chat_template.jinja: cannot be read"),
    ],
)
def test_a_template_that_breaks_is_told(model: str, tmp_path: Path, template: bytes, part: str) -> None:
    from assay.decoding import Bytes
    from assay.interop.tokenizer_files import write_tokenizer

    write_tokenizer(Bytes(), tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(template)
    told = run(model, "a", "--tokenizer", str(tmp_path), code=2)
    assert part in told
    assert "Traceback" not in told
