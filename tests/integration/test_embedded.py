"""The embedded Postgres starts anywhere, has its folder to itself, and recovers after any kill."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from app.store import embedded
from tests.support.folders import data_folder
from tests.support.processes import is_running

pytestmark = pytest.mark.embedded("it is started, killed and found again")

HOLDER = """
import sys
from pathlib import Path
from typing import Any
from app.store import embedded

server = embedded.start(Path(sys.argv[1]))
print("started", flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as place:
        yield place / "data"


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Return another process that serves the folder until its standard input is closed."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process


@pytest.fixture
def zombie() -> Iterator[int]:
    """Return the pid of a process that has ended and is not reaped before the end of the test."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


async def ask(url: str, statement: str) -> object:
    connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def is_there(path: Path) -> bool:
    return path.exists()


def move(folder: Path) -> Path:
    return folder.rename(folder.with_name("moved"))


def postmaster(folder: Path) -> psutil.Process:
    return psutil.Process(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]))


def kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # some end when others are gone
            process.kill()
    assert not psutil.wait_procs(processes, timeout=30)[1]


async def test_starts_from_nothing_and_stops(folder: Path) -> None:
    server = embedded.start(folder)
    process = postmaster(folder)
    try:
        assert str(await ask(server.url, "SHOW server_version")).startswith(f"{embedded.MAJOR}.")
        assert await ask(server.url, "SHOW listen_addresses") == ""
        assert await ask(server.url, "SHOW fsync") == "on"
        assert await ask(server.url, "SHOW synchronous_commit") == "on"
        assert await ask(server.url, "SHOW server_encoding") == "UTF8"
        assert process.username() != "root"
    finally:
        server.stop()
    assert not is_running(process)
    server.stop()  # a second call does nothing


async def test_its_log_is_bounded_and_has_no_statements_or_values(folder: Path) -> None:
    server = embedded.start(folder)
    try:
        await ask(server.url, "CREATE TABLE facts AS SELECT 'a-secret-key' AS fact")
        await ask(server.url, "CREATE UNIQUE INDEX ON facts (fact)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await ask(server.url, "INSERT INTO facts VALUES ('a-secret-key')")
    finally:
        server.stop()
    log = folder / "postgres" / "log"
    told = log.read_text()
    assert "ready to accept connections" in told
    assert "a-secret-key" not in told
    assert "ERROR" not in told
    log.write_text("x" * (embedded.LOG_BYTES_MAX + 1))
    embedded.start(folder).stop()
    assert log.stat().st_size < embedded.LOG_BYTES_MAX
    assert log.with_name("log.1").stat().st_size == embedded.LOG_BYTES_MAX + 1


async def test_commits_survive_a_restart(folder: Path) -> None:
    server = embedded.start(folder)
    await ask(server.url, "CREATE TABLE facts AS SELECT 42 AS fact")
    server.stop()
    server = embedded.start(folder)
    try:
        assert await ask(server.url, "SELECT fact FROM facts") == 42
    finally:
        server.stop()


def test_a_second_server_on_the_folder_is_refused(folder: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(embedded.DataDirInUse, match=str(folder)):
        embedded.start(folder)
    assert is_running(postmaster(folder))
    holder.communicate()
    embedded.start(folder).stop()


async def test_takes_over_from_a_program_that_was_killed(folder: Path, holder: subprocess.Popen[str]) -> None:
    orphan = postmaster(folder)
    await ask(embedded.url(folder), "CREATE TABLE facts AS SELECT 42 AS fact")
    holder.kill()
    holder.wait()
    assert is_running(orphan)
    server = embedded.start(folder)
    try:
        assert await ask(server.url, "SELECT fact FROM facts") == 42
    finally:
        server.stop()


async def test_takes_over_in_a_folder_that_was_moved_meanwhile(folder: Path, holder: subprocess.Popen[str]) -> None:
    orphan = postmaster(folder)
    try:
        orphan.cwd()
    except psutil.AccessDenied:
        pytest.skip("root without CAP_SYS_PTRACE cannot tell whose folder it is")
    await ask(embedded.url(folder), "CREATE TABLE facts AS SELECT 42 AS fact")
    holder.kill()
    holder.wait()
    server = embedded.start(move(folder))
    try:
        assert not is_running(orphan)
        assert await ask(server.url, "SELECT fact FROM facts") == 42
    finally:
        server.stop()


async def test_a_copy_of_a_running_folder_leaves_the_original_alone(
    folder: Path, holder: subprocess.Popen[str]
) -> None:
    copied = folder.with_name("copied")
    embedded.start(copied).stop()
    (copied / "postgres" / "postmaster.pid").write_text((folder / "postgres" / "postmaster.pid").read_text())
    embedded.start(copied).stop()
    assert is_running(postmaster(folder))
    assert await ask(embedded.url(folder), "SELECT 1") == 1


async def test_recovers_when_everything_was_killed(folder: Path, holder: subprocess.Popen[str]) -> None:
    await ask(embedded.url(folder), "CREATE TABLE facts AS SELECT 42 AS fact")
    server = postmaster(folder)
    kill_all([psutil.Process(holder.pid), server, *server.children(recursive=True)])
    again = embedded.start(folder)
    try:
        assert await ask(again.url, "SELECT fact FROM facts") == 42
    finally:
        again.stop()


async def test_a_dead_postmaster_that_nobody_reaped_is_not_taken_for_alive(folder: Path, zombie: int) -> None:
    embedded.start(folder).stop()
    lines = [str(zombie), str(folder / "postgres"), "1", "5432", str(folder / "run"), "", "0 0", "ready"]
    (folder / "postgres" / "postmaster.pid").write_text("\n".join(lines) + "\n")
    server = embedded.start(folder)
    try:
        assert await ask(server.url, "SELECT 1") == 1
    finally:
        server.stop()


def test_a_process_that_got_the_pid_of_a_dead_postmaster_is_left_alone(folder: Path) -> None:
    embedded.start(folder).stop()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "-D", "elsewhere"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as bystander:
        (folder / "postgres" / "postmaster.pid").write_text(f"{bystander.pid}\n")
        embedded.start(folder).stop()
        assert bystander.poll() is None
        bystander.communicate()
        assert bystander.returncode == 0


def test_an_incomplete_cluster_is_created_again(folder: Path) -> None:
    half = folder / f"{embedded.UNFINISHED}killed"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text(f"{embedded.MAJOR}\n")
    embedded.start(folder).stop()
    assert not half.exists()


def test_a_folder_of_another_release_is_refused(folder: Path) -> None:
    (folder / "postgres").mkdir(parents=True)
    (folder / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(embedded.CannotStart, match="but of 9"):
        embedded.start(folder)


async def test_a_long_path_gets_a_short_socket(folder: Path) -> None:
    deep = folder / ("long" * 25)
    server = embedded.start(deep)
    sockets = Path(str(make_url(server.url).query["host"]))
    try:
        assert len(str(sockets)) < 90
        assert await ask(server.url, "SELECT 1") == 1
    finally:
        server.stop()
    assert not is_there(sockets)


def test_starts_without_a_home_and_without_warnings(folder: Path) -> None:
    environment = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-W", "error", "-c", HOLDER, str(folder)]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2], check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


def test_an_interrupt_of_the_terminal_does_not_reach_postgres(folder: Path) -> None:
    server = embedded.start(folder)
    try:
        assert os.getsid(postmaster(folder).pid) != os.getsid(0)
    finally:
        server.stop()


def test_while_another_process_makes_the_user_of_postgres_this_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(embedded.utils, "ensure_user_exists", lambda name: happened.append(f"made {name}"))
    second = threading.Thread(target=embedded._make_user)
    with embedded.USERS.open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        second.start()
        second.join(0.1)
        happened.append("first is done")
    second.join()
    assert happened == ["first is done", "made pgserver"]


@contextmanager
def watching(watch: embedded.Watch) -> Iterator[None]:
    """Poll as often as requested while the block lasts, like the process that started the server."""
    ending = threading.Event()

    def look() -> None:
        while not ending.wait(watch.check()):
            pass

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.mark.slow
def test_a_failing_start_is_retried_and_logged_once(folder: Path) -> None:
    server = embedded.start(folder)
    control = folder / "postgres" / "global" / "pg_control"
    aside = control.with_name("aside")
    heard = {change: threading.Event() for change in ("does not stay up", "is back")}

    def listen(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for change, event in heard.items():
            if change in line["event"]:
                event.set()
        return line

    try:
        with capture_logs([listen]) as lines, watching(server.watch()):
            control.rename(aside)
            postmaster(folder).kill()
            assert heard["does not stay up"].wait(60)
            aside.rename(control)
            mended = time.monotonic()
            assert heard["is back"].wait(60)
            assert time.monotonic() - mended < 10 + embedded.STABLE_SECONDS
        assert [line["event"].split(";")[0] for line in lines] == [
            "the embedded PostgreSQL has ended",
            "the embedded PostgreSQL does not stay up",
            "the embedded PostgreSQL is back",
        ]
    finally:
        server.stop()
