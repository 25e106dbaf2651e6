"""Where numbers are made: versions, processor, threads, command, commit. Read without importing what it names."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from assay.recipe.extension import plugin_sources

_PACKAGES = ("torch", "numpy", "scipy", "pydantic", "tokenizers", "safetensors")


def version() -> str:
    """assay's own version."""
    return _version("assay-lm") or "unknown"


def environment(device: str = "cpu", threads: int = 1) -> dict[str, Any]:
    """Versions, processor and threads."""
    return {
        "assay": version(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads_per_process": threads,
        "device": device,
    }


def provenance() -> dict[str, Any]:
    """What a run's manifest adds: the command, the commit of the working folder, the plugins in use."""
    return {"argv": [Path(sys.argv[0]).name, *sys.argv[1:]], "git": _commit(), "plugins": plugin_sources()}


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        out = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None if out.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
