"""World must catch bugs of the processes' shells, too: as in ``test_planted_bugs``.

The coordinator's loop, its supervisor and watchdogs, the worker's loop and the session are the real
ones there.
"""

from __future__ import annotations

from itertools import chain

import pytest

from mpgrad.base.handles import ENGINE_ARENA, Block
from mpgrad.coordinator.coordinator import Coordinator
from mpgrad.coordinator.supervisor import Supervisor
from mpgrad.coordinator.worker_watchdog import Deadlines, Watchdog
from mpgrad.engine import coordinator_watchdog, session
from mpgrad.engine.coordinator_watchdog import CoordinatorWatchdog
from mpgrad.engine.session import Session
from mpgrad.scheduler import events as ev
from mpgrad.scheduler import instructions as do
from mpgrad.workers.worker import Worker
from simulation import Faults, World
from tests.simulation.planting import Plants

PLANTS = Plants(lambda seed: [World.drawn(seed)], seeds=600)
#: Found where little but Ctrl-C happens; the first seeds do not show it.
INTERRUPTED = Plants(
    lambda seed: [World(220 + seed, workers=1, gpus=3, graphs=3, faults=Faults(cancel=1.0))],
    seeds=600,
)
#: Found where sessions break the protocol, in hooks above all.
REFUSED = Plants(
    lambda seed: [World(seed, workers=1, graphs=4, sessions=1, faults=Faults(breach=1.0))],
    seeds=600,
)
bug, rare_bug = PLANTS.bug, PLANTS.rare_bug


# ----------------------------------------------------------------------- the coordinator


@bug
def nobody_minds_a_coordinator_that_hangs(patch):
    patch.setattr(CoordinatorWatchdog, "_judge_silence", lambda self: None)


@bug
def a_coordinator_that_is_silent_for_a_while_is_killed(patch):
    patch.setattr(coordinator_watchdog, "KILL_AFTER", 5)


@rare_bug
def who_waits_for_its_start_does_not_ask(patch):
    right = Session._note_wait

    def wrong(self, has_come):
        right(self, has_come or not self.workers)

    patch.setattr(Session, "_note_wait", wrong)


@bug
def a_worker_is_ready_after_its_first_hello(patch):
    patch.setattr(Coordinator, "_is_ready", lambda self, peer: bool(self._greeted.get(peer)))


@bug
def a_session_that_is_gone_is_forgotten(patch):
    patch.setattr(Coordinator, "_on_unreachable", lambda self, peer: None)
    patch.setattr(Coordinator, "_close_session", lambda self, peer: None)


@bug
def who_comes_late_is_not_welcomed(patch):
    right = Coordinator._welcome

    def wrong(self):
        if self._supervisor.restarts == 0:
            right(self)

    patch.setattr(Coordinator, "_welcome", wrong)


@bug
def a_dead_worker_is_not_replaced(patch):
    right = Coordinator._start_worker

    def wrong(self, slot):
        if self._supervisor.ready_count == 0:
            right(self, slot)

    patch.setattr(Coordinator, "_start_worker", wrong)


@bug
def the_system_refuses_a_process_and_nobody_is_told(patch):
    patch.setattr(Coordinator, "_give_up", lambda self, reason: None)


@bug
def the_status_board_is_not_read(patch):
    right = Supervisor.reap

    def wrong(self, pidfd):
        outcome = right(self, pidfd)
        return outcome._replace(running=None) if isinstance(outcome, ev.WorkerDied) else outcome

    patch.setattr(Supervisor, "reap", wrong)


@bug
def every_death_is_taken_for_a_kill_from_outside(patch):
    right = Supervisor.reap

    def wrong(self, pidfd):
        outcome = right(self, pidfd)
        return outcome._replace(killed=True) if isinstance(outcome, ev.WorkerDied) else outcome

    patch.setattr(Supervisor, "reap", wrong)


@bug
def an_incarnation_has_the_name_of_the_one_before(patch):
    right = Supervisor.start

    def wrong(self, slot):
        if self._incarnations.get(slot, 0) > 1:
            self._incarnations[slot] -= 1
        return right(self, slot)

    patch.setattr(Supervisor, "start", wrong)


@bug
def the_watchdog_sleeps(patch):
    patch.setattr(Watchdog, "wake", lambda self, now_s: None)


@bug
def the_watchdog_forgets_what_it_saw(patch):
    right = Watchdog.look

    def wrong(self, now_s, sights):
        self._seen.clear()
        return right(self, now_s, sights)

    patch.setattr(Watchdog, "look", wrong)


@bug
def slow_tasks_are_taken_for_hung(patch):
    right = Watchdog.__init__
    patch.setattr(Watchdog, "__init__", lambda self, timeout_s: right(self, 0.002))


@bug
def a_deadline_is_not_waited_for(patch):
    patch.setattr(Deadlines, "take_passed", lambda self, now_s: [])


# ----------------------------------------------------------------------- the worker


@bug
def a_reply_is_held_back_for_ever(patch):
    right = Worker._flush
    patch.setattr(Worker, "_flush", lambda self: right(self) if len(self._held) > 1 else None)


@bug
def a_finished_task_stays_on_the_board(patch):
    patch.setattr(Worker, "end", lambda self, released: None)


@bug
def what_comes_during_a_task_is_lost(patch):
    right = Worker.turn

    def wrong(self, finished):
        if finished is not None:
            self._dealer.receive()
        return right(self, finished)

    patch.setattr(Worker, "turn", wrong)


# ----------------------------------------------------------------------- the session


@bug
def a_session_ends_with_the_first_graph_that_does(patch):
    right = Session.run

    def wrong(self, messages, run_task):
        outcomes, submission = self._state.outcomes, next(messages)
        try:
            return right(self, chain([submission], messages), run_task)
        finally:
            outcomes.update(dict.fromkeys(range(submission.graph + 1, 9)))

    patch.setattr(Session, "run", wrong)


@INTERRUPTED.bug
def results_that_ctrl_c_met_are_kept(patch):
    """On a host they were given back, and on a GPU they were not: World found this one."""

    def wrong(self, graph):
        outcome = self._state.outcomes.pop(graph, None)
        if isinstance(outcome, do.CompleteGraph):
            blocks = [ref for ref in outcome.captures if isinstance(ref, Block)]
            self.to_release += [block for block in blocks if block.arena == ENGINE_ARENA]

    patch.setattr(Session, "_discard", wrong)


@bug
def the_end_of_one_graph_forgets_the_others_that_were_submitted(patch):
    right = Session.take_outcome

    def wrong(self, graph):
        found = right(self, graph)
        if found is not None:
            self._run_task.clear()
        return found

    patch.setattr(Session, "take_outcome", wrong)


@REFUSED.bug
def a_refusal_is_told_to_the_innermost_backward_only(patch):
    """World found this one: the backward around it waited for ever."""
    right = Session._require_welcome

    def wrong(self):
        try:
            right(self)
        finally:
            self._refusal = None

    patch.setattr(Session, "_require_welcome", wrong)


@REFUSED.rare_bug
def a_task_runs_before_what_has_come_with_it(patch):
    """World found this one: a backward inside the task waited for what had been received."""
    patch.setattr(session, "_is_task", lambda message: False)


@bug
def views_are_not_given_back(patch):
    patch.setattr(Session, "_releases", lambda self: [])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS.names())
def test_world_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS.check_caught(name, monkeypatch)


@pytest.mark.parametrize("name", REFUSED.names())
def test_world_catches_what_a_refusal_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    REFUSED.check_caught(name, monkeypatch)


@pytest.mark.parametrize("name", INTERRUPTED.names())
def test_world_catches_what_ctrl_c_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    INTERRUPTED.check_caught(name, monkeypatch)
