"""Running a study: what is due goes to whoever is free, until nothing is due. Nothing that has ended is done again.

What is due is computed from what has ended and from nothing else, so a study that is killed at any moment and started
again comes to the same numbers, in whatever order its runs end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.study.design import Design, Due, Use
from assay.study.errors import StudyError, StudyInterrupted, fault
from assay.study.executors import Executor, Job, News
from assay.study.folder import StudyFolder
from assay.study.outcome import Outcome

_POLL = 0.5  # seconds
_TRIES = 2  # a process may be killed from outside once; a run that brings it down twice is reported


@dataclass(frozen=True)
class StudyEvent:
    """Something to show. ``planned`` comes first, then ``started``, ``step`` and ``finished`` of runs, ``crashed``.

    ``total`` counts distinct runs and includes those that may still be asked for; ``alive`` counts ended runs that
    live; ``eta_s`` is wall time, None until a run has ended.
    """

    kind: Literal["planned", "started", "step", "finished", "crashed"]
    done: int
    total: int
    alive: int
    running: int
    eta_s: float | None
    use: Use | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    cls: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        use = None if self.use is None else dict(vars(self.use))
        return {**vars(self), "use": use}


OnEvent = Callable[[StudyEvent], None]
Costs = Callable[[str], float]


@dataclass
class Runner:
    """The state of a study in progress. ``cost`` says how much work a run is, in any unit."""

    design: Design
    folder: StudyFolder
    executor: Executor
    unigram_entropy: float
    cost: Costs
    on_event: OnEvent | None = None
    known: dict[str, Outcome] = field(default_factory=dict)
    _flying: dict[str, Use] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)
    _paid: float = 0.0
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> dict[str, Outcome]:
        """Every outcome of the study, by digest.

        Raises:
            StudyInterrupted: Ctrl-C; runs in progress are saved.
            StudyError: a run failed with an error, or brought its process down twice.
        """
        due = self._recall()
        self._tell("planned", due)
        try:
            while True:
                waiting = self._waiting(due)
                for use in waiting[: self.executor.free]:
                    self._start(use, due)
                if not self._flying:
                    return self.known
                for news in self.executor.wait(_POLL):
                    due = self._heard(news, due)
        except KeyboardInterrupt:
            self.executor.stop()
            due = self._recall()
            raise StudyInterrupted(self.folder.root, len(self.known), self._total(due)) from None

    def _recall(self) -> Due:
        """Take in what earlier sessions left, stage by stage."""
        while True:
            due = self.design.due(self.known)
            new = {
                use.digest: outcome
                for use in due.uses
                if use.digest not in self.known
                and (outcome := self.folder.outcome(use.digest, self.unigram_entropy)) is not None
            }
            if not new:
                return due
            self.known.update(new)

    def _waiting(self, due: Due) -> list[Use]:
        out: dict[str, Use] = {}
        for use in due.uses:
            if use.digest not in self.known and use.digest not in self._flying:
                out.setdefault(use.digest, use)
        return list(out.values())

    def _start(self, use: Use, due: Due) -> None:
        self._flying[use.digest] = use
        self._tries[use.digest] = self._tries.get(use.digest, 0) + 1
        self.executor.submit(Job(use.digest, self.design.configs[use.digest], self.folder.run(use.digest)))
        self._tell("started", due, use)

    def _heard(self, news: News, due: Due) -> Due:
        use = self._flying.get(news.digest)
        if use is None:
            return due
        if news.kind == "step":
            self._tell("step", due, use, step=news.step, loss=news.loss)
            return due
        del self._flying[news.digest]
        if news.kind == "failed" or (news.kind == "crashed" and self._tries[news.digest] >= _TRIES):
            raise self._broken(use, news)
        if news.kind == "crashed":
            self._tell("crashed", due, use)
            return due
        outcome = self.folder.outcome(news.digest, self.unigram_entropy)
        if outcome is None:
            raise self._broken(use, News("failed", news.digest, error=f"ended as {news.status!r} without a record"))
        self.known[news.digest] = outcome
        self._paid += self.cost(news.digest)
        due = self._recall()
        self._tell("finished", due, use, loss=outcome.loss, cls=outcome.cls)
        return due

    def _broken(self, use: Use, news: News) -> StudyError:
        place = f"{use.part}/{use.arm}, lr {use.lr:g}, seed {use.seed}"
        hint = "mend it and run the same command: what has ended is kept"
        message = f"run {news.digest[:12]} {news.kind}: {news.error}"
        return StudyError([fault(place, message, allowed=hint)], str(self.folder.root))

    def _total(self, due: Due) -> int:
        return len({use.digest for use in due.uses}) + due.open

    def _eta(self, due: Due) -> float | None:
        if not self._paid:
            return None
        left = {use.digest for use in due.uses} - self.known.keys()
        work = sum(map(self.cost, left))
        if due.open and due.uses:  # runs not yet known are taken to be like the others
            work += due.open * sum(self.cost(use.digest) for use in due.uses) / len(due.uses)
        return work * (time.monotonic() - self._began) / self._paid

    def _tell(
        self,
        kind: Literal["planned", "started", "step", "finished", "crashed"],
        due: Due,
        use: Use | None = None,
        *,
        step: int = 0,
        loss: float | None = None,
        cls: str = "",
    ) -> None:
        if self.on_event is None:
            return
        event = StudyEvent(
            kind,
            done=len(self.known),
            total=self._total(due),
            alive=sum(outcome.alive for outcome in self.known.values()),
            running=len(self._flying),
            eta_s=self._eta(due),
            use=use,
            step=step,
            steps=0 if use is None else self.design.configs[use.digest].steps,
            loss=loss,
            cls=cls,
        )
        self.on_event(event)


def runs_root(out: str | Path) -> Path:
    """The output folder as an absolute path, so that workers mean the same one."""
    return Path(out).expanduser().resolve()
