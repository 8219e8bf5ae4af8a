"""Check a running server for the image check: keys, the three main calls, the tokenizer.

    probe.py BASE_URL [API_KEY]

Exits with a non-zero code and the response at fault if a check fails.
"""

import json
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

SESSION = "/v1/sessions/image-check"
EVENTS = [
    {"type": "system.prompt", "content": "You keep an eye on one oven."},
    {"type": "user.message", "content": "How hot is it?"},
    {"type": "tool.call", "call_id": "c1", "tool": "thermometer", "arguments": {}},
    {"type": "tool.result", "call_id": "c1", "tool": "thermometer", "content": "182 degrees"},
    {"type": "assistant.message", "content": "182 degrees."},
]


def main(base: str, key: str | None = None) -> None:
    """Run all checks in order; without a key, on a server that has none."""
    if key is not None:
        status, _ = ask(base, "GET", SESSION)
        expect(status == 401, "a request without a key is refused", status)

    status, answer = ask(base, "PUT", SESSION, key, {"model": "gpt-4o"})
    expect(status == 201, "PUT makes the session", answer)

    status, answer = ask(base, "POST", f"{SESSION}/events", key, {"events": EVENTS})
    expect(status == 201 and answer["head"] == len(EVENTS), "POST appends the events", answer)

    status, answer = ask(base, "GET", f"{SESSION}/context?format=openai&model=gpt-4o&max_tokens=8000", key)
    expect(status == 200, "GET gives a context", answer)
    expect([m["role"] for m in answer["request"]["messages"]][:2] == ["system", "user"], "the context is whole", answer)
    estimator = answer["tokens"]["estimator"]
    expect("tiktoken" in json.dumps(estimator), "the vocabulary is inside: tiktoken counts", estimator)

    status, answer = ask(base, "POST", "/mcp", key, {"jsonrpc": "2.0", "id": 1, "method": "ping"})
    expect(status == 200 and answer["result"] == {}, "the Model Context Protocol is answered", answer)


def ask(base: str, method: str, path: str, key: str | None = None, body: object = None) -> tuple[int, Any]:
    """Send a request; return the status and the parsed response, whatever the status."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(base + path, data=data, headers=headers, method=method), timeout=30) as response:
            return response.status, json.load(response)
    except HTTPError as problem:
        return problem.code, json.load(problem)


def expect(holds: bool, what: str, answer: object) -> None:
    """Print the fact, or exit with the response at fault."""
    if not holds:
        sys.exit(f"FAILED: {what}: {json.dumps(answer)}")
    print(f"ok: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
