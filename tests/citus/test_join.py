"""The one-shot of `docker-compose.citus.yml` that registers the nodes with a coordinator."""

import asyncio
import os
import subprocess
from pathlib import Path

import asyncpg
import pytest

from tests.citus import nodes

JOIN = Path(__file__).parents[2] / "deploy" / "citus" / "join.sh"
NAME = "to_join"

pytestmark = pytest.mark.citus


async def join(cluster: nodes.Cluster) -> list[int]:
    """Run it; return the ports of the workers that the coordinator then knows."""
    variables = {"PATH": f"{nodes.BINARIES}:{os.environ['PATH']}", "PGUSER": nodes.OWNER, "PGDATABASE": NAME}
    hosts = [f"127.0.0.1:{port}" for port in cluster.ports]
    await asyncio.to_thread(subprocess.run, ["sh", str(JOIN), *hosts], env=variables, check=True, timeout=60)
    connection = await asyncpg.connect(cluster.url(NAME))
    try:
        return [row["node_port"] for row in await connection.fetch("SELECT * FROM citus_get_active_worker_nodes()")]
    finally:
        await connection.close()


async def test_registering_nodes_is_idempotent(cluster: nodes.Cluster) -> None:
    for node in range(len(cluster.ports)):
        connection = await asyncpg.connect(cluster.url("postgres", node))
        await connection.execute(f"CREATE DATABASE {NAME}")
        await connection.close()
    try:
        for _ in range(2):
            assert sorted(await join(cluster)) == sorted(cluster.ports[1:])
    finally:
        await cluster.drop(NAME)
