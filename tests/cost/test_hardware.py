"""The hardware table, and hardware of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.cost import budget, find_hardware, hardware_names
from assay.recipe import load

WANTED = (
    "h100-sxm", "h100-pcie", "h200-sxm", "a100-40gb", "a100-80gb", "b200", "mi300x", "tpu-v4", "tpu-v5e", "tpu-v5p",
    "rtx-4090", "l40s", "cpu-desktop",
)  # fmt: skip


def test_the_table_has_what_people_train_on() -> None:
    assert set(WANTED) <= set(hardware_names())


@pytest.mark.parametrize("name", hardware_names())
def test_every_entry_is_whole_and_plausible(name: str) -> None:
    device = find_hardware(name)
    assert device.name == name
    assert len(device.source) > 20
    assert device.bandwidth < device.peak(next(iter(device.peaks)))
    rates = [device.peaks[d] for d in ("fp8", "bf16", "tf32", "fp32") if d in device.peaks]
    assert rates == sorted(rates, reverse=True)
    assert 2**30 * 8 <= device.memory <= 2**40
    assert device.link is None or device.link < device.bandwidth
    assert device.is_cpu == name.startswith("cpu")


@pytest.mark.parametrize(
    ("name", "peak", "bandwidth"),
    [
        ("h100", 989.4e12, 3.35e12),
        ("H100 SXM", 989.4e12, 3.35e12),
        ("h100_pcie", 756e12, 2.0e12),
        ("h200", 989.4e12, 4.8e12),
        ("a100", 312e12, 2.039e12),
        ("A100-40GB", 312e12, 1.555e12),
        ("mi300x", 1307.4e12, 5.3e12),
        ("tpu-v5e", 197e12, 0.819e12),
        ("tpu v5p", 459e12, 2.765e12),
        ("4090", 165.2e12, 1.008e12),
        ("l40s", 362.05e12, 0.864e12),
        ("b200", 2250e12, 8e12),
    ],
)
def test_known_figures(name: str, peak: float, bandwidth: float) -> None:
    """Dense bf16, decimal bandwidth, by name or alias however it is written."""
    device = find_hardware(name)
    assert device.peak("bf16") == pytest.approx(peak)
    assert device.bandwidth == pytest.approx(bandwidth)


def test_an_unknown_device_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"no such device 'h10' \(nearest: h100.*\); known: h100-sxm, .*\.toml file"
    ) as e:
        budget(load("gpt2"), hardware="h10")
    assert all(name in str(e.value) for name in hardware_names())


def test_a_dtype_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype: a100-80gb has no fp8 peak; it has bf16, fp16, tf32, fp32"):
        budget(load("gpt2"), dtype="fp8", hardware="a100")
    with pytest.raises(ValueError, match="tpu-v4 has no fp32 peak"):
        budget(load("gpt2"), dtype="fp32", hardware="tpu-v4")


def written(folder: Path, text: str) -> Path:
    path = folder / "box.toml"
    path.write_text(text, encoding="utf-8")
    return path


GOOD = 'name = "box"\nmemory_gib = 96\nbandwidth_gb_s = 1800\npeak_tflops = {bf16 = 500, fp32 = 100}\n'


def test_hardware_of_ones_own(tmp_path: Path) -> None:
    told = budget(load("gpt2"), hardware=written(tmp_path, GOOD))
    assert told.hardware == {
        "name": "box",
        "peak_flops_per_s": 500e12,
        "peak_dtype": "bf16",
        "vector_flops_per_s": 100e12,
        "memory_bytes": 96 * 2**30,
        "bytes_per_s": 1.8e12,
        "link_bytes_per_s": None,
        "ridge_flops_per_byte": 500 / 1.8,
        "source": "given by you",
    }
    assert "seconds_at_link_peak" not in told.parallel["communication"]
    assert find_hardware(written(tmp_path, GOOD.replace("memory_gib = 96", "memory_gb = 96"))).memory == 96e9


BAD = [
    ("memory_gib = 96", "memory_gib = 0", "memory_gib: must be a positive number, not 0"),
    ("memory_gib = 96", "memory_gib = 96\nmemory_gb = 96", "memory_gib: must be given, or memory_gb, once"),
    ("memory_gib = 96\n", "", "memory_gib: must be given"),
    ("bandwidth_gb_s = 1800", "bandwidth_gb_s = -1", "bandwidth_gb_s: must be a positive number, not -1"),
    ("bandwidth_gb_s = 1800", 'bandwidth_gb_s = "fast"', "bandwidth_gb_s: must be a positive number, not 'fast'"),
    ("bandwidth_gb_s = 1800", "bandwith_gb_s = 1800", r"bandwith_gb_s: unknown key \(nearest: bandwidth_gb_s\)"),
    ("bf16 = 500", "bf61 = 500", "peak_tflops.bf61: no such dtype; allowed: fp8, bf16"),
    ("{bf16 = 500, fp32 = 100}", "{}", "peak_tflops: must name at least one"),
    ("{bf16 = 500, fp32 = 100}", "500", "peak_tflops: must name at least one"),
    ("name =", "name", "not TOML"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_faults_in_a_file_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ValueError, match=message) as e:
        find_hardware(path)
    assert str(path) in str(e.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.toml: cannot be read: No such file"):
        find_hardware(tmp_path / "nowhere.toml")


def test_whether_it_fits_is_told() -> None:
    large = budget(load("llama-3.1-8b"), 1, 8192, hardware="rtx-4090")
    assert large.memory.train["fits"] is False
    assert large.memory.inference["fits"] is True
    (finding,) = [f for f in large.findings if f["place"] == "memory.train"]
    assert "rtx-4090 has" in finding["message"]
    assert "zero" in finding["fix"]
    assert budget(load("gpt2"), 1, 1024, hardware="rtx-4090").memory.train["fits"] is True


def test_an_accelerators_kernels_keep_less() -> None:
    """A fused RMSNorm keeps no normed copy, a dropout mask is a byte; a CPU is counted as torch runs there."""
    recipe: dict[str, Any] = {"recipe": load("llama-3.1-8b"), "batch": 1, "seq_len": 1024}
    gpu, cpu = budget(**recipe, hardware="h100"), budget(**recipe, hardware="cpu-server")
    plain = budget(**recipe)
    assert gpu.memory.activations["kernels"] == "accelerator"
    assert cpu.memory.activations["bytes"] == plain.memory.activations["bytes"] > gpu.memory.activations["bytes"]
