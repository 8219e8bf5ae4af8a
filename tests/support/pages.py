"""Documentation pages run from the top as a reader would: commands in one shell, programs in one Python.

Every block of `sh` and `python` runs, unless `<!-- not run: reason -->` precedes it. The shell has a clone of the
repository, an empty home, and no environment but the one the page creates.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import psutil

ROOT: Final = Path(__file__).parents[2]
RUN_AS: Final = ("sh", "python")
SECONDS_MAX: Final = 600
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_RUN: Final = re.compile(r"<!-- not run: ([^>]+) -->\n\Z")
_SERVER: Final = re.compile(r"^(?:\w+=\S+ )*(?:make run|(?:\S*/)?palimpsest serve)(?=\s*(?:#.*)?$)", re.MULTILINE)
_PROBLEM: Final = '"type":"/problems/'
_DRIVER: Final = """
import ast, asyncio, inspect, sys, traceback
runner = asyncio.Runner()
for line in sys.stdin:
    path, mark = line.split()
    status = 0
    try:
        code = compile(open(path).read(), path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, globals()))
        else:
            exec(code, globals())
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        status = 1
    print(f"\\n{mark} {status}", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, its first line, and the reason for not running it, if any."""

    language: str
    text: str
    line: int
    reason: str | None


def blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page's text."""
    found = []
    for fence in _FENCE.finditer(page):
        before = page[: fence.start()]
        reason = _NOT_RUN.search(before)
        found.append(Block(fence[1], fence[2], before.count("\n") + 1, reason[1] if reason else None))
    return found


def clone(folder: Path) -> Path:
    """Copy the files of the working tree that git tracks or would add into an empty folder."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return folder


def reader_environment(home: Path) -> dict[str, str]:
    """Return the environment without the project's variables and the virtual environment that the tests run in."""
    ours = Path(sys.prefix) / "bin"
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if Path(one) != ours)
    dropped = ("PALIMPSEST_", "PYTEST", "PYTHON", "VIRTUAL_ENV", "SSL_CERT_", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    cache = {"PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}  # reuses earlier downloads
    return cache | kept | {"PATH": path, "HOME": str(home), "COLUMNS": "200", "PIP_REQUIRE_VIRTUALENV": "1"}


class Reader:
    """A runner of a page's blocks in order: commands in one bash, programs in one Python of that bash's environment."""

    def __init__(self, folder: Path, scratch: Path, variables: Mapping[str, str], instead: Mapping[str, str]) -> None:
        self._folder, self._scratch, self._variables, self._instead = folder, scratch, variables, instead
        self._python: asyncio.subprocess.Process | None = None
        self._number = 0

    async def __aenter__(self) -> Self:
        self._bash = await self._start("bash", "--noprofile", "--norc", variables=self._variables)
        await self._source('set -o pipefail; set -E; trap \'echo "failed: $BASH_COMMAND" >>"$FAILED"\' ERR')
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the server, then every other process that was started."""
        left = psutil.Process(self._bash.pid).children(recursive=True)
        servers = [one for one in left if "serve" in _arguments(one)]
        for one in servers:
            with suppress(psutil.NoSuchProcess):
                if one.parent() not in servers:
                    one.terminate()
        await asyncio.to_thread(psutil.wait_procs, left, timeout=60)
        for process in filter(None, (self._python, self._bash)):
            process.kill()
            await process.wait()

    async def run(self, block: Block) -> str:
        """Run a block and return its output; raise AssertionError if a command or a request fails."""
        text = block.text
        for old, new in self._instead.items():
            text = text.replace(old, new)
        if block.language == "python":
            return await self._program(text)
        served = _SERVER.search(text)
        printed = await self._source(_SERVER.sub(f'{served[0]} >"$SERVED" 2>&1 &', text) if served else text)
        if served:
            printed += await self._source(
                'until grep -q "serving on" "$SERVED"; do sleep 0.1; kill -0 $! || break; done\n'
                'cat "$SERVED"\nkill -0 $!'
            )
        return printed

    async def _program(self, text: str) -> str:
        if self._python is None:
            dump = self._scratch / "environment"
            executable = (await self._source(f"command -v python3; env -0 >{dump}")).strip()
            variables = dict(one.split("=", 1) for one in dump.read_text().split("\0") if "=" in one)
            self._python = await self._start(executable, "-u", "-c", _DRIVER, variables=variables)
        path, mark = self._file(text, "py")
        return await self._answer(self._python, f"{path} {mark}\n", mark)

    async def _source(self, text: str) -> str:
        path, mark = self._file(text, "sh")
        failed = self._scratch / "failed"
        sent = f'FAILED={failed}; SERVED={self._scratch}/served; . {path} </dev/null; printf "\\n{mark} $?\\n"\n'
        printed = await self._answer(self._bash, sent, mark)
        assert not failed.exists(), f"{failed.read_text()}\n{printed}"
        return printed

    def _file(self, text: str, suffix: str) -> tuple[Path, str]:
        self._number += 1
        path = self._scratch / f"block{self._number}.{suffix}"
        path.write_text(text, encoding="utf-8")
        return path, uuid4().hex

    async def _answer(self, process: asyncio.subprocess.Process, sent: str, mark: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(sent.encode())
        lines: list[str] = []
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                line = (await process.stdout.readline()).decode()
                assert line, "".join(lines)
                if line.startswith(mark):
                    break
                lines.append(line)
        printed = "".join(lines)
        assert line.split()[1] == "0", printed
        assert _PROBLEM not in printed, printed
        return printed

    async def _start(self, *command: str, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self._folder,
            env=dict(variables),
            limit=LINE_BYTES_MAX,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )


def _arguments(process: psutil.Process) -> list[str]:
    """Return the arguments of a process; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
