"""All commands find their server in the same way, and fail in one line if they do not."""

from pathlib import Path

import httpx
import pytest

from app.runtime.settings import Settings
from app.version import VERSION
from tests.acceptance.transfers import SAMPLES, command
from tests.conftest import serving

KEY = "pal_a_key_of_our_own_0123456789"


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_one_way_to_name_the_server_and_the_key(database_url: str) -> None:
    chat = SAMPLES / "anthropic_messages.json"
    async with serving(Settings(api_key=KEY), database_url) as url:
        address = httpx.URL(url)
        for number, (arguments, settings) in enumerate(
            [
                (("--server", url, "--key", KEY), {}),
                (("--url", url), {"API_KEY": KEY}),
                ((), {"URL": url, "API_KEY": KEY}),
                ((), {"HOST": address.host, "PORT": str(address.port), "API_KEY": KEY}),
                (("--server", url), {"URL": "http://127.0.0.1:1", "PORT": "1", "API_KEY": KEY}),
            ]
        ):
            session = f"s{number}"
            for words in (
                ("import", chat, "--session", session),
                ("export", session),
                ("explain", session, "3"),
                ("sessions",),
                ("context", session),
                ("calls", session),
                ("events", session),
                ("verify",),
                ("replay", chat, "--max-tokens", "100000", "--json"),
            ):
                done = await command(*words, *arguments, settings=settings)
                assert done.returncode == 0, (words, done.stderr)
        for words in (("import", chat), ("export", "s0"), ("explain", "s0", "3"), ("sessions",), ("verify",)):
            done = await command(*words, settings={"URL": url})
            assert done.returncode == 1
            assert "key" in done.stderr


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_an_explanation_names_its_line_and_how_to_read_the_others(database_url: str) -> None:
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=f"{url}/v1/sessions") as http:
        events = [{"type": "user.message", "content": f"event {number}"} for number in range(1, 6)]
        await http.post("/s/events", json={"events": events})
        await http.get("/s/context")
        assert (await http.post("/s/rewind", json={"to": 2})).status_code == 200
        done = await command("explain", "s", "2", settings={"URL": url})
        assert done.returncode == 0
        assert done.stdout.splitlines()[1:] == [
            "No recorded call has been made since.",
            "Read on s@line.2 (events 1 to 2), the current line of s. Other lines of the session:",
            "  s@line.1 (events 1 to 5): the same event; its calls: palimpsest explain s@line.1 2",
        ]
        gone = await command("explain", "s", "4", settings={"URL": url})
        assert (gone.returncode, gone.stderr) == (1, "palimpsest: session 's@line.2' has no event 4\n")
        assert gone.stdout.splitlines()[1].endswith("its own event 4: palimpsest explain s@line.1 4")
        before = await command("explain", "s@line.1", "4", settings={"URL": url})
        assert "event 4" in before.stdout and "shown whole" in before.stdout


@pytest.mark.parametrize("words", [("import", SAMPLES), ("export", "s"), ("explain", "s", "1"), ("verify",)])
async def test_a_missing_server_is_one_clear_line(words: tuple[str | Path, ...]) -> None:
    done = await command(*words, settings={"PORT": "1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "palimpsest: http://127.0.0.1:1 does not answer /healthz as Palimpsest;"
        " start it with `palimpsest serve`, or name it with --server or PALIMPSEST_URL\n"
    )
    done = await command(*words, settings={"URL": "http://127.0.0.1:1"})
    assert done.stderr == "palimpsest: http://127.0.0.1:1 does not answer /healthz as Palimpsest\n"


async def test_it_says_its_version() -> None:
    done = await command("--version", settings={})
    assert (done.returncode, done.stdout) == (0, f"palimpsest {VERSION}\n")
