"""Postgres clusters from the embedded binaries, and the commands of an operations page run on them as printed.

Tests that run as root run the commands of the OS user `postgres` as the user of the embedded server.
"""

import asyncio
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from app.store import embedded
from tests.support.folders import data_folder

DOCS: Final = Path(__file__).parents[2] / "docs" / "operations"
SECONDS_MAX: Final = 120
_STEP: Final = re.compile(r"<!-- step: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
_ASSIGNED: Final = re.compile(r"^((?:export )?(\w+)=).+", re.MULTILINE)


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def clusters_folder() -> Iterator[Path]:
    """Yield an empty folder owned by the user that Postgres runs as; stop every Postgres in it afterwards."""
    with data_folder() as folder:
        if os.geteuid() == 0:
            embedded._make_user()
            embedded._let_traverse(folder)
            embedded._let_traverse(embedded.BINARIES)
            embedded._give_to_postgres(folder)
        try:
            yield folder
        finally:
            for data in folder.iterdir():
                kill(data)


def postmaster(data: Path) -> psutil.Process | None:
    """Return the Postgres process that runs in a folder; None if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError, psutil.NoSuchProcess):
        process = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    return None


def kill(data: Path) -> None:
    """End a Postgres as a machine failure would: `kill -9` for all of its processes."""
    found = postmaster(data)
    if found is not None:
        victims = [found, *found.children(recursive=True)]
        for victim in victims:  # so that none of them sees another one die
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGSTOP)
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        psutil.wait_procs(victims, timeout=SECONDS_MAX)


class Page:
    """The steps of an operations page, with the test's values for the variables of its first step."""

    def __init__(self, name: str, values: Mapping[str, object]) -> None:
        self._steps = dict(_STEP.findall((DOCS / name).read_text(encoding="utf-8")))
        defined = {variable for _, variable in _ASSIGNED.findall(self._steps["variables"])}
        assert set(values) == defined, set(values) ^ defined
        self._variables = _ASSIGNED.sub(lambda found: f"{found[1]}'{values[found[2]]}'", self._steps["variables"])
        self.left = {name for name in self._steps if name != "variables"}
        """The steps that have not been run yet."""

    async def run(self, step: str, *replaced: tuple[str, str], as_current_user: bool = False) -> str:
        """Run a step as Postgres' OS user and return its output, with each old text replaced by the new."""
        self.left.discard(step)
        script = self._steps[step]
        for old, new in replaced:
            assert old in script
            script = script.replace(old, new)
        return await shell(f"{self._variables}\n{script}", as_current_user=as_current_user)


async def shell(script: str, *, as_current_user: bool = False) -> str:
    """Run a shell script that stops at the first failing command, and return its output."""
    path = f"{embedded.BINARIES}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}
    identity: dict[str, object] = {}
    if os.geteuid() == 0 and not as_current_user:
        user = pwd.getpwnam(embedded.ROOTS_USER)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    done = await asyncio.to_thread(
        subprocess.run,
        ("bash", "-ceuo", "pipefail", script),
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        **identity,
    )
    assert done.returncode == 0, (script, done.returncode, done.stdout, done.stderr)
    return str(done.stdout)


async def make_cluster(data: Path, port: int) -> None:
    """Create and start a plain Postgres cluster that listens on loopback and on a socket in the folder above."""
    await shell(
        f"initdb -D {data} -U postgres --auth=trust --encoding=UTF8 --locale=C >/dev/null\n"
        f"printf '%s\\n' \"listen_addresses = '127.0.0.1'\" \"unix_socket_directories = '{data.parent}'\" "
        f"'port = {port}' 'max_connections = 50' 'shared_buffers = 32MB' >> {data}/postgresql.conf\n"
        f"pg_ctl -D {data} -l {data}/log -w start >/dev/null"
    )
