"""09. First update at zero, last not at the minimum, zero-length phases (pytorch/torchtitan PR#1261, PR#1010).

The values of the report, used and logged, whether the run goes straight or stops after every update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.training import train
from tests.training.test_run import config_for, own_cache, text  # noqa: F401 - fixtures

COSINE = [0.25, 0.5, 0.75, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1]
WSD = [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
CASES: list[tuple[dict[str, Any], list[float]]] = [
    ({"kind": "cosine", "warmup": 4, "floor": 0.1}, COSINE),
    ({"kind": "wsd", "warmup": 2, "decay": 4}, WSD),
    ({"kind": "wsd", "warmup": 0, "decay": 0}, [1.0] * 10),
    ({"kind": "cosine", "warmup": 10, "floor": 0.1}, [(i + 1) / 10 for i in range(10)]),
]


@pytest.mark.parametrize(("schedule", "values"), CASES, ids=lambda x: str(x)[:40])
def test_used_is_logged_and_resumed(
    schedule: dict[str, Any],
    values: list[float],
    text: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peak = 1e-3
    used: list[float] = []
    changes = {"schedule": {"lr": peak, **schedule}, "steps": 10, "eval_every": 0, "telemetry_every": 0}
    config = config_for(text, optimizer={"kind": "sgd"}, **changes)

    import torch

    step = torch.optim.SGD.step

    def spy(self: Any, closure: Any = None) -> Any:
        used.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", spy)
    for _ in range(9):
        assert train(config, tmp_path / "r", should_stop=lambda: True).status == "interrupted"
    record = train(config, tmp_path / "r")
    logged = [row["lr"] for row in record.metrics]
    assert used == logged
    assert logged == pytest.approx([v * peak for v in values], abs=1e-6 * peak)
    assert logged[0] > 0
    assert logged[-1] == values[-1] * peak
