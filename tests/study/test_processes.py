"""Studies in processes: real training, kills at random moments, workers that die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from assay.study import StudyError, StudyEvent, load_result, run_study
from assay.study.executors import InlineExecutor, PoolExecutor
from assay.training import RunConfig, RunRecord, open_corpus, train

from .fakes import CURVE, leave, plan_on, plan_table, write_corpus

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
import sys
from assay.study import run_study
run_study(sys.argv[1], sys.argv[2], on_event=lambda e: print(e.kind, e.done, flush=True))
"""
_PATIENCE = 300.0


def crash_once(config: RunConfig, folder: Path, *, corpus: Any, **_: Any) -> RunRecord:
    """Training that brings its process down the first time that it sees seed 1."""
    mark = folder.parent.parent / "crashed"
    if config.seed == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return leave(config, folder, corpus.sha256, 2.5)


def crash_always(config: RunConfig, folder: Path, *, corpus: Any, **_: Any) -> RunRecord:
    """Training that cannot stand seed 1."""
    if config.seed == 1:
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(9)
    return leave(config, folder, corpus.sha256, 2.5)


def chatty(config: RunConfig, folder: Path, *, corpus: Any, on_step: Any, **_: Any) -> RunRecord:
    """Training that prints where messages go."""
    print('{"type": "ended", "digest": "not me"}', flush=True)
    os.write(1, b"raw bytes too\n")
    on_step({"step": 1, "loss": 3.0})
    return leave(config, folder, corpus.sha256, 2.5)


def naps(config: RunConfig, folder: Path, *, corpus: Any, should_stop: Any, **_: Any) -> RunRecord:
    """Training that lasts until it is told to stop."""
    while not should_stop():
        time.sleep(0.02)
    return leave(config, folder, corpus.sha256, 2.5)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny real study: two layers, sixty updates, so that no kill comes after the end on a fast machine."""
    folder = tmp_path_factory.mktemp("study")
    write_corpus(folder)
    table = plan_table(reporting_seeds=[10, 11], lrs=[1e-3, 3e-3])
    table["data"]["corpus"] = "corpus.txt"
    table["run"]["steps"] = 60
    path = folder / "tiny.toml"
    path.write_text(tomli_w.dumps(table))
    return path


@pytest.fixture(scope="module")
def straight(plan_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The study without a break, in this process."""
    corpus = open_corpus(str(plan_file.parent / "corpus.txt"), 4096)

    def here(config: RunConfig, folder: Path) -> RunRecord:
        return train(config, folder, corpus=corpus)

    out = tmp_path_factory.mktemp("straight") / "out"
    return run_study(plan_file, out, executor=lambda _: InlineExecutor(here)).numbers()


def start(plan_file: Path, out: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(plan_file), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )


def test_killed_three_times_and_rerun_it_says_the_same(
    plan_file: Path, straight: dict[str, Any], tmp_path: Path
) -> None:
    rng, out = random.Random(7), tmp_path / "out"
    for _ in range(3):
        process = start(plan_file, out)
        assert process.stdout is not None
        to_end = rng.randint(1, 2)  # runs that this attempt may end before it is killed
        for line in process.stdout:
            assert line.split()[0] in ("planned", "started", "step", "finished"), line + process.stdout.read()
            to_end -= line.startswith("finished")
            if to_end == 0:
                break
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.wait()
        process.stdout.close()
        assert not (out / "result.json").exists()
    last = start(plan_file, out)
    said, _ = last.communicate(timeout=_PATIENCE)
    assert last.returncode == 0, said
    assert int(said.splitlines()[0].split()[1]) > 0  # something was kept
    assert load_result(out).numbers() == straight


def test_workers_know_the_parts_of_a_plugin(tmp_path: Path) -> None:
    table = plan_table(lrs=[1e-3, 3e-3], reporting_seeds=[10, 11])
    glu = table["parts"][0]["arms"][1]
    glu.update(changes=["layers.mixer"], overrides=['block.mixer={kind = "average", width = 127}'])
    write_corpus(tmp_path)
    table["data"]["corpus"] = "corpus.txt"
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(table))
    command = [sys.executable, "-m", "assay", "study", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]
    plugin = ["--plugin", str(ROOT / "examples" / "average_mixer.py")]
    bare = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bare.returncode == 2
    assert "no such mixer kind" in bare.stderr
    done = subprocess.run([*command, "--json", *plugin], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--plugin" in json.loads(done.stdout)["study"]["command"]


@pytest.mark.slow
def test_ctrl_c_saves_and_goes_on(plan_file: Path, straight: dict[str, Any], tmp_path: Path) -> None:
    process = start(plan_file, tmp_path / "out")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("finished"):
            break
    process.send_signal(signal.SIGINT)
    said = process.stdout.read()
    assert process.wait(timeout=_PATIENCE) != 0
    assert "the same command goes on" in said
    assert run_study(plan_file, tmp_path / "out").numbers() == straight


def pool(entry: str, made: list[PoolExecutor]) -> Any:
    def make(folder: Any) -> PoolExecutor:
        made.append(PoolExecutor(2, entry=f"tests.study.test_processes:{entry}", hold=(folder.lock,)))
        return made[-1]

    return make


@pytest.fixture
def curve(tmp_path: Path) -> Any:
    table = plan_table()
    table["parts"] = [{**CURVE, "lrs": [1e-3, 3e-3], "survivor_lrs": []}]
    return plan_on(write_corpus(tmp_path), table)


def test_a_worker_that_dies_is_replaced_once(curve: Any, tmp_path: Path) -> None:
    told: list[StudyEvent] = []
    result = run_study(curve, tmp_path / "out", executor=pool("crash_once", []), on_event=told.append)
    crashed = [event for event in told if event.kind == "crashed"]
    assert [event.use.seed for event in crashed if event.use] == [1]
    assert len(result.to_dict()["runs"]) == 12


def test_a_run_that_brings_its_worker_down_is_named(curve: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"seed 1(.|\n)*exit code 9(.|\n)*out of luck"):
        run_study(curve, tmp_path / "out", executor=pool("crash_always", []))


def test_what_training_prints_is_no_message(curve: Any, tmp_path: Path) -> None:
    told: list[StudyEvent] = []
    made: list[PoolExecutor] = []
    run_study(curve, tmp_path / "out", executor=pool("chatty", made), on_event=told.append)
    assert any(event.kind == "step" and event.loss == 3.0 for event in told)
    assert made[0].pids == []


def test_two_processes_serve_all_runs_and_leave_with_the_study(curve: Any, tmp_path: Path) -> None:
    made: list[PoolExecutor] = []
    pids: set[int] = set()

    def watch(event: StudyEvent) -> None:
        pids.update(made[0].pids if made else ())
        if event.kind == "started" and event.running == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(curve, tmp_path / "out", executor=pool("naps", made), on_event=watch)
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
