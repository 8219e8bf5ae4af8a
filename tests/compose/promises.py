"""Compare containers with their services in docker-compose.yml: a line for each promise that the engine did not keep.

    promises.py CONFIG CONTAINERS STATUSES

CONFIG is the output of `docker compose config --format json`, CONTAINERS that of `docker inspect`, STATUSES lines of
`/proc/*/status` in the engine's namespace, each after the name of its file. Exits with 1 if a promise was not kept.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

UNITS: Final = {"h": 3600, "m": 60, "s": 1}
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
LIMITS: Final = ("memory.limit_in_bytes", "memory.max")
"""Files of a limit, in the first and the second version of control groups."""


def seconds(text: str | None) -> float | None:
    """Return the seconds of a duration such as `1m30s`."""
    return None if text is None else sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+)([hms])", text))


def promised(service: Mapping[str, Any]) -> dict[str, object]:
    """Return the promises of a service in the file, each by its name there."""
    limits = service["deploy"]["resources"]["limits"]
    health = service.get("healthcheck", {})
    return {
        "read_only": service.get("read_only", False),
        "tmpfs": sorted(service.get("tmpfs", [])),
        "cap_drop": sorted(service.get("cap_drop", [])),
        "cap_add": sorted(service.get("cap_add", [])),
        "security_opt": sorted(service.get("security_opt", [])),
        "shm_size": int(service.get("shm_size", 64 << 20)),
        "restart": service["restart"],
        "stop_grace_period": seconds(service.get("stop_grace_period")),
        "limits.cpus": float(limits["cpus"]),
        "limits.memory": int(limits["memory"]),
        "healthcheck.test": None if health.get("disable") else health.get("test"),
        "healthcheck.start_interval": seconds(health.get("start_interval")),
    }


def kept(container: Mapping[str, Any], own_check: bool) -> dict[str, object]:
    """Return the same of a container in the engine; without the health check of the image if the file has none."""
    host, config = container["HostConfig"], container["Config"]
    health = config.get("Healthcheck") or {}
    interval = health.get("StartInterval")
    return {
        "read_only": host["ReadonlyRootfs"],
        "tmpfs": sorted(host.get("Tmpfs") or {}),
        "cap_drop": sorted(host.get("CapDrop") or []),
        "cap_add": sorted(host.get("CapAdd") or []),
        "security_opt": sorted(host.get("SecurityOpt") or []),
        "shm_size": host["ShmSize"],
        "restart": host["RestartPolicy"]["Name"],
        "stop_grace_period": config.get("StopTimeout"),
        "limits.cpus": host["NanoCpus"] / 1e9,
        "limits.memory": host["Memory"],
        "healthcheck.test": health.get("Test") if own_check and health.get("Test") != ["NONE"] else None,
        "healthcheck.start_interval": interval / 1e9 if interval else None,
    }


def in_the_kernel(container: Mapping[str, Any], status: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield each fact that the kernel should show for a running container, with the answer."""
    host = container["HostConfig"]
    if host.get("CapDrop"):
        added = len(host.get("CapAdd") or [])
        yield "no capability but those that were added", int(status["CapBnd"], 16).bit_count() == added
        yield "no new privileges", status["NoNewPrivs"] == "1"
    files = [file for name in LIMITS for file in CONTROL_GROUPS.rglob(f"{container['Id']}/{name}")]
    yield "a limit of memory", [int(file.read_text()) for file in files] == [host["Memory"]]


def statuses(lines: str) -> dict[int, dict[str, str]]:
    """Return the lines of each process by their names."""
    found: dict[int, dict[str, str]] = {}
    for pid, name, value in re.findall(r"^/proc/(\d+)/status:(\w+):\s*(\S+)", lines, re.MULTILINE):
        found.setdefault(int(pid), {})[name] = value
    return found


def main(config: str, containers: str, processes: str) -> None:
    """Compare, print, and exit with 1 if something differs."""
    services = json.loads(Path(config).read_text())["services"]
    running = statuses(Path(processes).read_text())
    broken, checked = [], 0
    for container in json.loads(Path(containers).read_text()):
        name = container["Config"]["Labels"]["com.docker.compose.service"]
        said, done = promised(services[name]), kept(container, "test" in services[name].get("healthcheck", {}))
        broken += [f"{name}: {key} is {done[key]}, not {value}" for key, value in said.items() if done[key] != value]
        facts = []
        if container["State"]["Running"]:
            facts = list(in_the_kernel(container, running[container["State"]["Pid"]]))
        broken += [f"{name}: not so in the kernel: {fact}" for fact, holds in facts if not holds]
        checked += len(said) + len(facts)
    for line in broken:
        print(f"not honoured: {line}")
    print(f"ok: {checked - len(broken)} of {checked} promises are kept: {', '.join(promised(services['api']))}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main(*sys.argv[1:])
