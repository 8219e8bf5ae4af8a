"""The peers' benchmark: its conversation, its tables, and the pipe to a peer's process."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from xml.etree import ElementTree

from app.core.render.formats import FORMATS
from app.core.tokens.counter import MESSAGE_TOKENS
from app.runtime.settings import Settings
from app.tokenizers import load
from bench.peers.conversation import BUDGET_TOKENS, NEWEST, message
from bench.peers.picture import svg
from bench.peers.sides import PEERS, InProcess
from bench.peers.tables import Line, messages_table, times_table

ROOT = Path(__file__).parents[3]

# It returns the number of messages it was given, and prints a line that is no response.
PEER = """
from contextlib import asynccontextmanager
from bench.peers.process import serve

class Kept(list):
    def native(self, given): return given["role"]
    async def fill(self, natives): print("filling"); self.extend(natives)
    async def append(self, native): super().append(native)
    async def context(self): return [role for role in self if role == "user"]

@asynccontextmanager
async def opened(url):
    yield Kept(url.split(","))

serve(opened, "pytest")
"""


def test_a_round_is_a_message_a_call_its_result_and_an_answer_in_every_session_alike() -> None:
    drafts = FORMATS["openai"].read([message(number) for number in range(8)])
    assert [draft["type"] for draft in drafts[:4]] == ["user.message", "tool.call", "tool.result", "assistant.message"]
    assert [draft["call_id"] for draft in drafts if "call_id" in draft] == ["call_0", "call_0", "call_1", "call_1"]
    assert [message(number) for number in range(8)] == [message(number) for number in range(8)]
    assert message(0) != message(4)


def test_the_newest_events_requested_of_a_peer_just_fit_the_budget() -> None:
    tokenizer = load(Settings().tiktoken_cache_dir)["o200k_base"]
    for first in (0, 50_001, 99_902):
        drafts = FORMATS["openai"].read([message(number) for number in range(first, first + NEWEST)])
        texts = [str(draft.get("content") or draft["arguments"]) for draft in drafts]
        tokens = sum(tokenizer.count(text) + MESSAGE_TOKENS for text in texts)
        assert 0.95 * BUDGET_TOKENS < tokens <= BUDGET_TOKENS


def test_every_peer_has_its_pins_and_its_module() -> None:
    assert {peer.environment for peer in PEERS} == {path.stem for path in ROOT.glob("requirements/peers/*.lock")}
    assert all((ROOT / "bench" / "peers" / f"{peer.module}.py").exists() for peer in PEERS)


def a_line(seconds: dict[int, list[float]], messages: int) -> Line:
    line = Line()
    for size, every in seconds.items():
        for one in every:
            line.add(size, one, messages)
    return line


OURS = a_line({100: [0.001, 0.002, 0.009], 1_000: [0.002, 0.002, 0.004]}, 90)
PEERS_OWN = a_line({100: [0.01, 0.01, 0.02], 1_000: [4.0, 5.0]}, 100)
LEFT_OUT = a_line({100: [0.01, 0.01, 0.02]}, 80)


def test_a_table_has_median_and_longest_and_marks_fewer_calls_and_none() -> None:
    lines = {"ours": OURS, "peer": PEERS_OWN, "slow": LEFT_OUT}
    times = {"append": {"ours": OURS}, "context": lines}
    assert times_table(times, (100, 1_000), 3).splitlines() == [
        "| call | side | 100 | 1,000 |",
        "|---|---|---:|---:|",
        "| append | ours | 2.0 / 9.0 | 2.0 / 4.0 |",
        "| context | ours | 2.0 / 9.0 | 2.0 / 4.0 |",
        "| context | peer | 10.0 / 20.0 | 4,500 / 5,000 (2) |",
        "| context | slow | 10.0 / 20.0 | not filled in time |",
        "| context | ours, against the fastest other | 0.20 × | 0.00 × |",
    ]
    assert messages_table(lines).splitlines()[2:] == ["| ours | 90 | 90 |", "| peer | 100 | 100 |", "| slow | 80 |  |"]


def test_a_side_has_one_colour_in_the_logarithmic_picture() -> None:
    tenfold = a_line({100: [0.001], 1_000: [0.01], 10_000: [0.1]}, 1)
    drawn = ElementTree.fromstring(svg({"ours": OURS, "tenfold": tenfold}, {"ours": OURS, "tenfold": tenfold}))
    dots = [dot for dot in drawn.iter() if dot.tag.endswith("circle")]
    colours = {dot.get("class") for dot in dots}
    assert len(colours) == 2
    x, y = ([float(dot.get(name, "")) for dot in dots if dot.get("class") == "d1"][:3] for name in ("cx", "cy"))
    assert abs((x[1] - x[0]) - (x[2] - x[1])) < 0.2
    assert abs((y[1] - y[0]) - (y[2] - y[1])) < 0.2
    assert x[1] > x[0]
    assert y[1] < y[0]


async def test_a_peer_in_a_process_runs_its_commands(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), "user,user"), stdin=PIPE, stdout=PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    peer = InProcess("kept", "", process, {})
    assert (await process.stdout.readline()).startswith(b'{"pytest": ')
    await peer.fill(9)
    await peer.fill(5)
    assert await peer.append() > 0
    seconds, messages = await peer.context()
    assert seconds > 0
    assert messages == 2 + 3  # of the ten now stored, the first, fifth and ninth are the user's
    process.stdin.close()
    assert await process.wait() == 0
