"""The wait for a database at startup, run in a separate process because signals end it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 60
SIGNALED_DURING_A_PROBE = """
import asyncio, os, signal, socket, threading, urllib.error, urllib.request
from app.runtime import serve, supervise

answer = supervise._answer
listener = socket.create_server(("127.0.0.1", 0))
url = "http://127.0.0.1:%d/readyz" % listener.getsockname()[1]

async def signaled(scope, receive, send):
    os.kill(os.getpid(), signal.SIGTERM)
    await answer(scope, receive, send)

def probe(status):
    def ask():
        try:
            urllib.request.urlopen(url)
        except urllib.error.HTTPError as response:
            print(response.status, flush=True)
    threading.Thread(target=ask, daemon=True).start()

async def unreachable():
    raise supervise.DatabaseUnreachable("refused")

supervise._answer = signaled
serve.exit_on_signals()
try:
    asyncio.run(supervise.wait_for_database(unreachable, listener, probe))
finally:
    print("ended", flush=True)
"""


def test_a_signal_during_a_probe_ends_the_wait() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALED_DURING_A_PROBE], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "ended"
