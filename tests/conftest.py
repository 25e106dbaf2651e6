"""Settings of every test: Hypothesis profiles, one torch thread, no network.

``ASSAY_HYPOTHESIS_PROFILE`` picks the profile: ``dev`` (default), ``ci`` (default where ``CI`` is set; the same
examples each run) or ``thorough`` (many examples).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# before anything imports a library that would look at a hub
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

_MODEST = 25
_SLOW_OK = [HealthCheck.too_slow]  # a drawn recipe is built as a model: slow by nature

settings.register_profile("dev", deadline=None, max_examples=_MODEST, suppress_health_check=_SLOW_OK)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=_MODEST,
    suppress_health_check=_SLOW_OK,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile("thorough", deadline=None, max_examples=500, suppress_health_check=_SLOW_OK)
settings.load_profile(os.environ.get("ASSAY_HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """One intra-op thread: sums in a fixed order, and no fight between test processes. Never imports torch itself."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anything but this machine is a failure of the test."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and host not in ("127.0.0.1", "::1", "localhost"):
            raise RuntimeError(f"a test tried to reach the network: {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(scope="module", autouse=True)
def _own_plugins() -> Iterator[None]:
    """A plugin that another file's tests loaded is no part of the identity of this file's runs."""
    from assay.recipe import extension

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "_IN_USE", {})
        yield
