"""A real PgBouncer in front of the tests' Postgres, for its own tests and, with `--pooler`, for all tests."""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy.engine import URL, make_url

from app.runtime.settings import Settings
from app.store import embedded

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
ABSENT: Final = "there is no pgbouncer here; on Debian and Ubuntu: apt-get install pgbouncer"
COMMITTED: Final = Path(__file__).parents[2] / "deploy" / "pgbouncer" / "pgbouncer.ini"
POSTGRES_LINE: Final = "* = host=postgres port=5432"
NOT_POOLED: Final[dict[str, str]] = {}
"""Tests, or modules of tests, that cannot run through a pooler, with the reason."""

needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason=ABSENT)
_running: list["Pooler"] = []


class Pooler:
    """A running PgBouncer; `sockets` is the folder of its Unix socket."""

    def __init__(self, postgres: URL, sockets: str) -> None:
        self._postgres, self._sockets = postgres, sockets

    def url(self, database_url: str) -> str | None:
        """Return its URL for a database; None for a database of another Postgres."""
        url = make_url(database_url)
        if url.query != self._postgres.query:
            return None
        pooled_url = url.set(host=None, port=None).update_query_dict({"host": self._sockets, "port": "6432"})
        return pooled_url.render_as_string(hide_password=False)


@contextmanager
def pgbouncer(postgres_url: str, **options: object) -> Iterator[Pooler]:
    """Run a PgBouncer with the committed configuration, changed addresses and these options."""
    assert PROGRAM is not None, ABSENT
    postgres = make_url(postgres_url)
    with tempfile.TemporaryDirectory(prefix="palimpsest-pooler-") as folder:
        ours = {"listen_addr": "", "unix_socket_dir": folder, "auth_type": "trust", "auth_file": f"{folder}/users"}
        settings = "\n".join(f"{name} = {value}" for name, value in {**ours, **options}.items())
        host, port = (postgres.query.get(name) or getattr(postgres, name) for name in ("host", "port"))
        postgres_line = f"* = host={host} port={port}"
        ini = Path(folder, "pgbouncer.ini")
        committed = COMMITTED.read_text()
        assert POSTGRES_LINE in committed
        # Appended to the committed section: a second section of that name would reset all options to their defaults.
        ini.write_text(f"{committed.replace(POSTGRES_LINE, postgres_line)}\n{settings}\n")
        Path(folder, "users").write_text(f'"{postgres.username}" ""\n')
        command = [PROGRAM, str(ini)]
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            os.chown(folder, pwd.getpwnam(embedded.ROOTS_USER).pw_uid, -1)
            command[1:1] = ["-u", embedded.ROOTS_USER]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                reading = _wait_until_up(process)
                yield Pooler(postgres, folder)
            finally:
                process.kill()
            reading.join()


@contextmanager
def pooler_for_all(postgres_url: str) -> Iterator[None]:
    """Route every server and worker of the block's tests through one PgBouncer."""
    with pgbouncer(postgres_url) as pooler:
        _running.append(pooler)
        yield
        _running.remove(pooler)


def address(database_url: str) -> str | None:
    """Return the pooler's URL for a database; None without `--pooler`."""
    return _running[0].url(database_url) if _running else None


def pooled(settings: Settings, database_url: str) -> Settings:
    """Return settings with the pooler's URL, if `--pooler` is given and they name none."""
    if not _running or settings.database_pooler_url is not None:
        return settings
    return settings.model_copy(update={"database_pooler_url": address(database_url)})


def _wait_until_up(process: subprocess.Popen[str]) -> threading.Thread:
    """Wait until PgBouncer serves; return the thread that drains its log, since a full pipe would block it."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "process up" in line:
            reading = threading.Thread(target=process.stderr.read)
            reading.start()
            return reading
    raise AssertionError(f"PgBouncer does not start: {''.join(said)}")
