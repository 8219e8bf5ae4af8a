"""A server that several agents of a user share: started by the first that needs it, stopped by the last that ends."""

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

from palimpsest_tools.server import Address, NoServer, is_palimpsest

_READY_SECONDS_MAX: Final = 120.0
_STOP_SECONDS_MAX: Final = 20.0
_PROBE_INTERVAL_SECONDS: Final = 0.1
_OUTPUT_CHARS: Final = 2_000


@asynccontextmanager
async def shared_server(address: Address, upstreams: Mapping[str, str]) -> AsyncIterator[bool]:
    """Find the server at an address, or start one with a gateway to `upstreams`; yield whether it was started.

    A server that was started runs until the last agent of this user that shares it has ended. Raises NoServer.
    """
    if address.named:
        if not await is_palimpsest(address.url):
            raise NoServer(f"{address.url} does not answer /healthz as Palimpsest")
        yield False
        return
    path = Path(tempfile.gettempdir()) / f"palimpsest-wrap-{os.getuid()}-{address.url.rpartition(':')[2]}"
    lock = await asyncio.to_thread(_share, path)
    try:
        started = not await is_palimpsest(address.url)
        if started:
            await _start(lock, upstreams, address)
        yield started
    finally:
        await asyncio.to_thread(_release, lock, path)


def _share(path: Path) -> int:
    """Open and share the lock file; wait while an agent that has ended stops the server."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # it was removed meanwhile


async def _start(lock: int, upstreams: Mapping[str, str], address: Address) -> None:
    """Start the server, and write its process id into the lock file. Raises NoServer."""
    ours = {f"PALIMPSEST_GATEWAY_{name.upper()}_URL": url for name, url in upstreams.items()}
    with tempfile.TemporaryFile() as output:
        process = await asyncio.to_thread(_serve, {**ours, **os.environ}, output)
        os.pwrite(lock, f"{process.pid}\n".encode(), 0)
        try:
            async with asyncio.timeout(_READY_SECONDS_MAX):
                while not await is_palimpsest(address.url):
                    if process.poll() is not None:
                        output.seek(0)
                        said = output.read().decode(errors="replace").strip()[-_OUTPUT_CHARS:]
                        raise NoServer(f"the server ended with status {process.returncode} while starting:\n{said}")
                    await asyncio.sleep(_PROBE_INTERVAL_SECONDS)
        except TimeoutError:
            raise NoServer(f"the server was not ready within {_READY_SECONDS_MAX:.0f} s") from None


def _serve(environment: Mapping[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a server in a session of its own, since Ctrl-C is for the agent."""
    return subprocess.Popen(
        (sys.executable, "-m", "app.cli", "serve"),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _release(lock: int, path: Path) -> None:
    """Give up the share of the server; the last one stops it, and removes the lock file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # others share it
        os.close(lock)
        return
    try:
        pid = os.pread(lock, 32, 0).strip()
        if pid:
            _stop(int(pid))
        with suppress(FileNotFoundError):
            path.unlink()
    finally:
        os.close(lock)


def _stop(pid: int) -> None:
    """Stop a server and wait for its end, whoever started it."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it has ended
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], _STOP_SECONDS_MAX)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    finally:
        os.close(descriptor)
