"""14. A kill or a full disk while saving (Lightning-AI/pytorch-lightning#688, #19970; petuum/adaptdl#70).

A save at step 10, then SIGKILL at 20 random moments of the save of step 20. Right: step 10 or step 20, whole, all parts
of one step, no litter after the next save. Full disks and flipped bytes are in tests/training/test_checkpoint.py
and tests/training/test_resume.py.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from assay.training.checkpoint import latest
from tests.training.test_checkpoint import Subject, of_one_save


def test_twenty_kills_inside_the_second_save(tmp_path: Path) -> None:
    subject, draw = Subject(), random.Random(14)
    began = time.perf_counter()
    subject.save(tmp_path / "timed", 20)
    usual = time.perf_counter() - began
    found = []
    for trial in range(20):
        root = tmp_path / f"{trial}"
        subject.save(root, 10)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"!")
            subject.save(root, 20)
            os._exit(0)
        os.read(read, 1)
        time.sleep(draw.uniform(0, 1.2 * usual))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
        newest, problems = latest(root)
        assert newest is not None and not problems
        found.append(of_one_save(newest))
        subject.save(root, 30)
        assert [p.name for p in sorted(root.iterdir())][-1] == "step-00000030"
        assert not list(root.glob(".*"))
    assert set(found) <= {10, 20} and 10 in found
