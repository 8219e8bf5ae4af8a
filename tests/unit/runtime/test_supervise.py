"""The supervisor of processes, run in a separate process because it forks and handles signals."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 60
BEFORE = '''
import multiprocessing, os, signal, sys, time
import structlog
from app.runtime import supervise
from app.runtime.supervise import Role, Supervisor
structlog.configure(
    processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
    logger_factory=structlog.PrintLoggerFactory(sys.stderr),
)

def limited(starts):
    """Return a role's work that stops the supervisor when it has been started so often."""
    left = multiprocessing.Value("i", starts)
    def run():
        print("begun", flush=True)
        left.value -= 1
        if not left.value:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it ends by itself
            os.kill(os.getppid(), signal.SIGTERM)
    return run
'''


def run(script: str) -> tuple[list[str], list[dict[str, object]]]:
    """Run a script that supervises processes; return their output and their log lines."""
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    return done.stdout.splitlines(), list(map(json.loads, done.stderr.splitlines()))


def test_a_process_that_keeps_ending_is_started_after_ever_longer_pauses() -> None:
    printed, logged = run("""
supervise.PAUSE_SECONDS, supervise.PAUSE_SECONDS_MAX = 0.001, 0.004
Supervisor([Role("short", limited(6))], patience=60).run()
""")
    assert printed == ["begun"] * 6
    pauses = [line["after_seconds"] for line in logged]
    assert pauses == [0.001, 0.002, 0.004, 0.004, 0.004]
    assert {(line["process"], line["ended"]) for line in logged} == {("short", "status 0")}


def test_one_that_ran_for_long_is_started_again_soon() -> None:
    _, logged = run("""
supervise.PAUSE_SECONDS, supervise.STEADY_SECONDS = 0.001, 0.0
Supervisor([Role("long", limited(4))], patience=60).run()
""")
    assert [line["after_seconds"] for line in logged] == [0.001] * 3


def test_processes_stop_by_name_in_order_and_stuck_ones_are_killed() -> None:
    printed, logged = run("""
waiting, begun = os.pipe()
def waits(name, deaf=False):
    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        os.write(begun, b".")
        if deaf:
            time.sleep(600)  # until it is killed
        os.write(1, f"ended {name} {signal.sigwait({signal.SIGTERM, signal.SIGINT}).name}\\n".encode())
    return Role(name, run)
looks = []
def look():
    looks.append(None)
    if len(looks) != 2:  # the first look is before anything is started
        return 600 if len(looks) > 2 else 0
    for _ in range(4):
        os.read(waiting, 1)
    os.kill(os.getpid(), signal.SIGINT)
    return 600
roles = [waits("first"), waits("first"), waits("deaf", deaf=True), waits("last")]
Supervisor(roles, patience=0.1, periodic=look, on_stop=lambda: print("stopping", flush=True)).run()
print("all have ended")
""")
    assert printed == ["stopping", *["ended first SIGINT"] * 2, "ended last SIGTERM", "all have ended"]
    assert logged == []


def test_an_error_in_a_process_does_not_reach_its_supervisors_caller() -> None:
    printed, logged = run("""
def fail():
    limited(1)()
    raise RuntimeError("broken")
try:
    Supervisor([Role("bad", fail)], patience=60).run()
finally:
    print("cleaned up", flush=True)
""")
    assert printed == ["begun", "cleaned up"]
    assert "RuntimeError: broken" in str(logged[0]["exception"])
