"""A worker killed during a delivery: another one makes it, under the same id."""

import signal
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from app.store.engine import Database
from tests.acceptance.conftest import Commands
from tests.contract.webhooks.test_webhooks import put, request_skipped_run, wait_for_deliveries
from tests.support.receiver import SECRET, receiving

pytestmark = pytest.mark.wing("webhooks")


@pytest.mark.slow
async def test_a_delivery_of_a_killed_worker_is_made_by_another(
    commands: Commands, database_url: str, database: Database
) -> None:
    settings = {"DATABASE_URL": database_url, "WORKER_HEARTBEAT_SECONDS": "1"}
    async with receiving() as receiver:
        receiver.statuses.extend([0])
        api = await commands.start("api", **settings)
        async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
            assert (await put(http, receiver.url, secret=SECRET)).status_code == 201
            await request_skipped_run(http)
            first = await commands.start("worker", **settings)
            await first.expect_line("starting")
            await first.expect_line("working")
            await receiver.called(1)
            port = urlsplit(receiver.url).port
            peers = psutil.Process(first.process.pid).net_connections(kind="tcp")
            assert port in {peer.raddr.port for peer in peers if peer.raddr}
            first.process.send_signal(signal.SIGKILL)
            assert (await first.wait())[0] == -signal.SIGKILL
            second = await commands.start("worker", **settings)
            await second.expect_line("starting")
            await second.expect_line("working")
            [item] = await wait_for_deliveries(http)
            assert (item["state"], item["attempts"]) == ("delivered", 1)
            assert [call.id for call in receiver.calls] == [item["id"]] * 2
            assert all(call.is_signed_with(SECRET) for call in receiver.calls)
            assert (await second.stop())[0] == 0
        await commands.kill_all()
    rows = await database.fetch("SELECT id FROM deliveries")
    assert [str(row["id"]) for row in rows] == [item["id"]]
