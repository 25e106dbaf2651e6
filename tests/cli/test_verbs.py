"""The command line: what each verb prints, and what it says of a fault."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay import __version__, budget, load
from assay.cli import numbers
from assay.cli.app import VERBS
from assay.cost import tensors_of
from assay.recipe import preset_names, resolve
from assay.recipe.base import slots
from tests.cli.support import assay, fault, printed, read

PAGES = (
    ("list",),
    ("list", "--kinds"),
    ("show", "gemma3-4b"),
    ("show", "gemma3-4b", "--layers"),
    ("show", "opt-350m"),
    ("budget", "gemma3-4b"),
    ("diff", "llama-3.1-8b", "gemma3-4b"),
    (
        "diff",
        "tiny/parallel-shared",
        "--set",
        "block.mixer.span={kind='window',size=3}",
        "--set",
        "init.depth=total_depth",
    ),
)


# every verb


def test_help_names_every_verb() -> None:
    text = printed("--help")
    for verb in VERBS:
        assert re.search(rf"^  {verb} +\w", text, re.MULTILINE)
    assert "..." not in text.partition("Commands:")[2]  # each verb's line fits


def test_version() -> None:
    assert printed("--version") == f"assay {__version__}\n"
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{__version__}"\n' in project


OWN_FILES = (
    "train", "coord-check", "study", "report", "demo", "import", "export", "new", "scale", "tokenize", "generate",
    "eval", "convert",
)  # fmt: skip


# these verbs run for minutes, write files or need a model: their examples are run in files of their own, made small
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in OWN_FILES])
def test_the_examples_of_a_help_page_run(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some examples write files
    lines = [line.strip() for line in printed(verb, "--help").splitlines()]
    examples = [line for line in lines if line.startswith("assay ")]
    assert examples
    for example in examples:
        assert printed(*shlex.split(example.partition(">")[0])[1:])
    assert any(line.startswith("--json") for line in lines)


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("argv", PAGES, ids=" ".join)
def test_pages_fit_the_terminal(argv: tuple[str, ...], columns: int) -> None:
    for line in printed(*argv, columns=columns).splitlines():
        assert len(line) <= columns, line


# list


def test_list_has_every_preset() -> None:
    rows = read("list")
    assert [row["name"] for row in rows] == list(preset_names())
    (llama,) = (row for row in rows if row["name"] == "llama-3.1-8b")
    assert llama["params"] == 8_030_261_248
    assert (llama["d_model"], llama["n_layers"]) == (4096, 32)
    assert llama["summary"] == "grouped-query, RoPE, SwiGLU, pre-LN"
    text = printed("list")
    assert all(row["name"] in text for row in rows)


def test_list_of_kinds_is_complete_and_each_says_what_it_is() -> None:
    found = read("list", "--kinds")
    assert {slot: tuple(kinds) for slot, kinds in found.items()} == slots()
    assert all(said for kinds in found.values() for said in kinds.values())
    text = printed("list", "--kinds")
    assert all(kind in text for kinds in found.values() for kind in kinds)


# show


def test_show_says_what_a_recipe_is() -> None:
    text = printed("show", "gemma3-4b")
    for part in (
        "3.88 B (3,880,263,168)",
        "every 6th layer (5, 11, 17, 23, 29; 5 of 34), global",
        "grouped-query attention, 8 query heads on 4 KV heads of 256",
        "RoPE, theta 1,000,000, linear scaling by 8",
        "sliding window of 1,024",
        "GEGLU (tanh GELU), width 10,240 (4.00x)",
        "sandwich norm (input and output), RMSNorm (eps 1e-6, gain 1+g)",
        load("gemma3-4b").digest,
        *load("gemma3-4b").sources,
    ):
        assert part in text


@pytest.mark.parametrize("name", ["gemma3-4b", "tiny/fixup", "opt-350m"])
def test_show_resolved_can_be_loaded_again(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(printed("show", name, "--toml"), encoding="utf-8")
    assert load(file).digest == load(name).digest
    assert resolve(read("show", name)).digest == load(name).digest


def test_show_layers_has_a_row_a_depth() -> None:
    rows = read("show", "gemma3-4b", "--layers")
    assert [row["depth"] for row in rows] == list(range(34))
    assert [row["depth"] for row in rows if row["name"] == "global"] == [5, 11, 17, 23, 29]
    outside = ("embedding", "head")
    in_layers = sum(t.numel for t in tensors_of(load("gemma3-4b")) if not t.name.startswith(outside))
    assert sum(row["params"] for row in rows) == in_layers
    text = printed("show", "gemma3-4b", "--layers")
    assert text.count("as layer 0") == 28
    assert text.count("as layer 5") == 4


def test_show_params_has_every_tensor() -> None:
    rows = read("show", "gpt2", "--params")
    assert sum(row["params"] for row in rows) == budget(load("gpt2")).params.total
    by_name = {row["name"]: row for row in rows}
    assert not by_name["embedding.table"]["decays"]
    assert by_name["layers.3.ffn.down.weight"]["role"] == "ffn_out"
    assert by_name["layers.3.ffn.down.weight"]["start"] == f"N(0, {0.02 / 24**0.5:.6g})"
    text = printed("show", "gpt2", "--params", columns=120)
    assert all(name in text for name in by_name)


def test_set_lays_a_value_over_the_recipe() -> None:
    text = printed("show", "llama-3.1-8b", "--set", "block.mixer.n_kv_heads=1", "--set", "d_model=2048")
    assert "multi-query attention, 32 query heads on 1 KV head of 64" in text


# budget


def test_budget_is_the_functions() -> None:
    found = read("budget", "llama-3.1-8b", "--seq-len", "8192", "--batch", "2", "--dtype", "fp32")
    want = budget(load("llama-3.1-8b"), batch=2, seq_len=8192, dtype="fp32").to_dict()
    assert found == json.loads(json.dumps(want))


def test_every_number_of_a_budget_is_printed_exactly_with_its_convention() -> None:
    found = read("budget", "gemma3-4b")
    text = printed("budget", "gemma3-4b", columns=300)
    for group in ("params", "flops", "cache", "memory"):
        for key, value in found[group].items():
            if isinstance(value, int):
                assert f"{value:,}" in text
                assert found["conventions"][f"{group}.{key}"] in text
    assert "7.23 GiB (7,760,526,336 bytes)" in text
    assert "3.88 B (3,880,263,168)" in text


def test_shares_of_the_forward_pass_add_up() -> None:
    text = printed("budget", "llama-3.1-8b", columns=100)
    table = text.partition("forward_causal by operation")[2].partition("Cache")[0]
    assert sum(map(float, re.findall(r"([\d.]+)%", table))) == pytest.approx(100, abs=0.3)


# diff


def test_diff_reads_as_sentences_and_says_the_price() -> None:
    text = printed("diff", "llama-2-7b", "llama-3.1-8b")
    assert text.startswith("llama-3.1-8b differs from llama-2-7b in 6 places.\n")
    assert "Vocabulary (vocab_size) grows from 32,000 to 128,256 (4.01x)." in text
    assert "In all 32 layers:\n" in text
    assert "What it costs, for 1 sequence of 4,096 tokens in bf16" in text
    assert re.search(r"cache a token +512.00 KiB +128.00 KiB +0.25x", text)


def test_diff_costs_both_at_one_length() -> None:
    found = read("diff", "llama-2-7b", "llama-3.1-8b", "--seq-len", "1024")
    assert found["cost"]["seq_len"] == 1024
    rows = {row["key"]: row for row in found["cost"]["rows"]}
    for side, name in (("before", "llama-2-7b"), ("after", "llama-3.1-8b")):
        want = budget(load(name), seq_len=1024)
        assert rows["params.total"][side] == want.params.total
        assert rows["flops.decode_per_token"][side] == want.flops.decode_per_token
        assert rows["cache.bytes"][side] == want.cache.bytes
    assert rows["cache.bytes_per_token"]["ratio"] == 0.25
    assert len(found["changes"]) == 6


def test_diff_of_one_recipe_and_what_is_set() -> None:
    found = read("diff", "llama-2-7b", "--set", "block.mixer.n_kv_heads=8")
    assert [change["path"] for change in found["changes"]] == ["layers.mixer.n_kv_heads"]
    assert found["after"]["name"] == "llama-2-7b as set"


def test_diff_of_the_same_recipe() -> None:
    text = printed("diff", "gpt2", "gpt2")
    assert text.startswith("the second recipe and the first are the same architecture with the same init.")
    assert read("diff", "gpt2", "gpt2")["same"] is True


# plugins

_PLUGIN = '''
from typing import Literal
from assay.plugin import CostRule, Mixer, ParamRole, Tensor, register


class Average(Mixer):
    """The mean of the last tokens."""

    kind: Literal["cli_test_average"] = "cli_test_average"


class AverageCost(CostRule[Average]):
    def tensors(self, spec, d):
        return [Tensor("weight", (d, d), ParamRole.ATTN_OUT)]
'''


def alone(*argv: str) -> subprocess.CompletedProcess[str]:
    """The verb in a process of its own: a plugin stays for as long as the process."""
    code = "import sys; from assay.cli.app import main; sys.argv[0] = 'assay'; main()"
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)


def test_a_part_of_ones_own_is_costed_by_flag(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    recipe = ("tiny/base", "--set", "block.mixer=cli_test_average", "--plugin", str(file))
    file.write_text(f"{_PLUGIN}\n\nregister(Average, cost=AverageCost())\n", encoding="utf-8")
    done = alone("diff", *recipe, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["changes"][0]["after"] == "cli_test_average"
    assert found["cost"]["rows"][0]["after"] == budget(load("tiny/base")).params.total - 4 * 3 * 64 * 64

    file.write_text(_PLUGIN, encoding="utf-8")
    done = alone("budget", *recipe)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mixer kind 'cli_test_average' has no cost rule" in done.stderr
    assert "unknown: mixer kind" in alone("show", *recipe).stdout


def test_a_plugin_that_fails_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import no_such_module_of_mine", encoding="utf-8")
    text = fault("list", "--plugin", str(file))
    assert "mine.py: ModuleNotFoundError: No module named 'no_such_module_of_mine'" in text


# faults


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (("budgte", "gpt2"), ("no such verb: 'budgte'", "nearest: budget")),
        (("budget", "lama-3.1-8b"), ("no such recipe", "nearest: llama-3.1-8b")),
        (("show", "missing.toml"), ("no such file", "missing.toml")),
        (("show", "gpt2", "--set", "d_model"), ("--set: not key.path=value", "found:   'd_model'")),
        (("show", "gpt2", "--set", "d_modle=3"), ("d_modle: unknown key", "nearest: d_model")),
        (("show", "gpt2", "--set", "block.mixer.n_heads=7"), ("block.mixer.head_dim", "not divisible by n_heads 7")),
        (("budget", "gpt2", "--seq-len", "0"), ("seq_len: not a positive integer: 0",)),
        (("budget", "gpt2", "--seq-len", "1025"), ("1025", "learned positions end at max_seq_len = 1024")),
        (("budget", "gpt2", "--seq-len", "long"), ("--seq-len", "integer")),
        (("budget", "gpt2", "--batch", "-1"), ("batch: not a positive integer: -1",)),
        (("budget", "gpt2", "--dtype", "int4"), ("no such dtype 'int4'", "fp32, bf16, fp16, fp8")),
        (("budget", "gpt2", "--plugin", "missing.py"), ("missing.py: cannot be read",)),
        (("diff", "gpt2"), ("a second recipe, or --set",)),
        (("diff", "gpt2", "gpt3-175b", "--seq-len", "2048"), ("gpt2: seq_len: 2048 tokens",)),
        (("show", "gpt2", "--toml", "--layers"), ("exclude each other",)),
    ],
)
def test_a_fault_is_told_on_one_screen(argv: tuple[str, ...], parts: tuple[str, ...]) -> None:
    text = fault(*argv)
    for part in parts:
        assert part in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 24


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for bug in (KeyError("a bug"), ValueError("a bug")):
        monkeypatch.setattr("assay.cli.show.load_recipe", _raise(bug))
        assert assay("show", "gpt2").exception is bug


def test_interrupt_leaves_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.cli.list._presets", _raise(KeyboardInterrupt()))
    assert assay("list").exit_code == 130


def _raise(error: BaseException) -> Any:
    def stop(*_: Any, **__: Any) -> Any:
        raise error

    return stop


# numbers


def test_numbers_for_people() -> None:
    assert numbers.count(8_030_261_248) == "8.03 B (8,030,261,248)"
    assert numbers.count(124_439_808) == "124 M (124,439,808)"
    assert numbers.count(2_560) == "2,560"
    assert numbers.count(999_999_999) == "1,000 M (999,999,999)"
    assert numbers.flops(45_029_548_032) == "45.0 GFLOP (45,029,548,032)"
    assert numbers.size(2**34) == "16.00 GiB (17,179,869,184 bytes)"
    assert numbers.size(131_072) == "128.00 KiB (131,072 bytes)"
    assert numbers.size(2**27) == "0.12 GiB (134,217,728 bytes)"
    assert numbers.size(0) == "0 bytes"
    assert numbers.ratio(0, 5) == "-"
    assert numbers.ratio(4, 1) == "0.25x"
    assert numbers.ratio(3, 3) == "same"
