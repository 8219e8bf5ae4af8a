"""Fuzzed requests, generated from the OpenAPI document by Schemathesis or composed of hostile values.

Every response must be no server error and have a documented status, and the media type and schema of that status.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

WAIT_SECONDS: Final = 30
TALK: Final = "post_context"
"""The operation that takes whole conversations."""
MODES: Final = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


class Fuzz:
    """A fuzzer of one server.

    `counts` are the statuses returned, `done` the operations that succeeded, and `reconciled` the formats of
    conversations that were accepted with a request for a context.
    """

    def __init__(self, url: str, document: Mapping[str, Any], key: str | None, known: Mapping[str, Any]) -> None:
        self._url, self._document, self._known = url, document, known
        self._schema = schemathesis.openapi.from_dict(dict(document))
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = requests.Session()
        self._http.trust_env = False
        self.counts: Counter[int] = Counter()
        self.done: Counter[str] = Counter()
        self._aimed = self._spoken = 0
        self.reconciled: Counter[str] = Counter()

    @property
    def cases(self) -> int:
        """The number of responses."""
        return sum(self.counts.values())

    def close(self) -> None:
        self._http.close()

    def send_generated(self, each: int) -> None:
        """Send `each` valid and `each` invalid requests for every operation."""
        for result in self._schema.get_all_operations():
            operation = result.ok()
            for mode in MODES:
                try:
                    strategy = operation.as_strategy(generation_mode=mode)
                    self._run(strategy, each)
                except schemathesis.errors.InvalidSchema:
                    raise
                except Exception as error:
                    if "Unsatisfiable" not in type(error).__name__:  # such an operation has no invalid request
                        raise

    def _run(self, strategy: Any, each: int) -> None:
        @settings(
            max_examples=each,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one(case: Any) -> None:
            self._aim(case)
            sent = case.as_transport_kwargs(base_url=self._url)
            made = {name: value for name, value in dict(sent.get("headers") or {}).items() if name != "Authorization"}
            sent["headers"] = {**made, **self._headers}
            self._judge(case.operation.path, sent)

        one()

    def _aim(self, case: Any) -> None:
        """Aim every other request at existing resources, unless it deletes them, and disable waiting."""
        for place in (case.body, case.query):
            if isinstance(place, dict) and "wait_ms" in place:
                place["wait_ms"] = 0
        if self.cases % 2 and case.path_parameters and case.operation.method.upper() != "DELETE":
            for name in case.path_parameters:
                if name in self._known:
                    case.path_parameters[name] = self._known[name]
            if isinstance(case.body, dict) and case.operation.definition.raw["operationId"] == TALK:
                self._aimed += 1
                if self._aimed % 2:
                    self._speak(case)

    def _speak(self, case: Any) -> None:
        """Give the request valid messages that continue or branch a conversation.

        The formats alternate; every other round keeps some of the generated fields.
        """
        round, turn = divmod(self._spoken, len(CONVERSATIONS))
        self._spoken += 1
        form, whole = list(CONVERSATIONS.items())[turn]
        names = ("view", "recall", "force", "now", "wait_ms") if round % 2 else ()
        kept = {name: one for name, one in case.body.items() if name in names}
        case.body = {**kept, "format": form, "messages": whole[: 1 + round // 2 % len(whole)]}
        if case.headers is not None:
            case.headers.pop("Idempotency-Key", None)

    def send_hostile(self, number: int, seed: int) -> None:
        """Send `number` requests with hostile values in every parameter and body."""
        chance = random.Random(seed)
        operations = [
            (method.upper(), path, operation)
            for path, found in self._document["paths"].items()
            for method, operation in found.items()
        ]
        for _ in range(number):
            method, path, operation = chance.choice(operations)
            self._judge(path, _hostile(chance, self._url, method, path, operation, self._known, self._headers))

    def _judge(self, path: str, sent: dict[str, Any]) -> None:
        method = str(sent["method"]).lower()
        try:
            with self._http.request(**sent, stream=True, timeout=WAIT_SECONDS, allow_redirects=False) as answer:
                status = answer.status_code
                media = answer.headers.get("content-type", "").partition(";")[0]
                streaming = media == "text/event-stream"
                text = "" if streaming else answer.text[:500]
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # the client refuses to send such a request
        self.counts[status] += 1
        operation = self._document["paths"][path].get(method)
        shown = {name: value for name, value in sent.items() if name != "headers"}
        details = (status, text, method, path, repr(shown)[:1000])
        assert status < 500, details
        elsewhere = operation is None or unquote(urlsplit(sent["url"]).path).count("/") != path.count("/")
        allowed = {404, 405} if elsewhere else {int(code) for code in operation["responses"]}
        assert status in allowed, details
        if status >= 400 and method != "head":
            assert media == "application/problem+json", (media, *details)
        if elsewhere or method == "head":
            return
        assert not text or media in operation["responses"][str(status)]["content"], (media, *details)
        if not streaming:
            self._schema[path][method].validate_response(answer)
        if status < 400:
            self.done[operation["operationId"]] += 1
            body = sent.get("json")
            if operation["operationId"] == TALK and isinstance(body, dict) and body.get("messages"):
                self.reconciled[body.get("format", "openai")] += 1


def _look(form: str) -> list[dict[str, Any]]:
    """Return a question, a tool call and its result in a format."""
    asked = {"role": "user", "content": "Where?"}
    if form == "openai":
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at":"a"}'}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [asked, said, {"role": "tool", "tool_call_id": "c", "content": "here"}]
    if form == "openai-responses":
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at":"a"}'}
        return [asked, call, {"type": "function_call_output", "call_id": "c", "output": "here"}]
    if form == "anthropic":
        call = {"type": "tool_use", "id": "c", "name": "look", "input": {"at": "a"}}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "here"}
        return [asked, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    call = {"functionCall": {"id": "c", "name": "look", "args": {"at": "a"}}}
    result = {"functionResponse": {"id": "c", "name": "look", "response": {"output": "here"}}}
    return [
        {"role": "user", "parts": [{"text": "Where?"}]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [result]},
    ]


CONVERSATIONS: Final = {form: _look(form) for form in ("openai", "openai-responses", "anthropic", "gemini")}
TEXTS: Final = [
    "",
    " ",
    "s",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff x",
    "💩",
    "é" * 300,
    "x" * 5000,
    "../..",
    "%00",
    "%",
    "'; DROP TABLE sessions; --",
    "\r\nX: y",
    "null",
    "true",
    "NaN",
    "1e999",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-14:00",
    "2026-11-22",
    "-1",
    "0",
    "9223372036854775808",
    "9" * 400,
    "W10",
    "bnVsbA",
    "dHJ1ZQ",
    "MA",
    "LTE",
    "019373a1-0000-7000-8000-000000000000",
    "main",
    "openai",
    "\u202e",
    "\ufeff",
    "\u0085",
    "{}",
    "[]",
    "{{7*7}}",
    "\\",
    '"',
    "-",
    "appended,epoch",
    "gpt-4o",
    "claude-sonnet-4-5",
    "default",
    "s:@-._",
]
NUMBERS: Final[list[Any]] = [
    0,
    -1,
    1,
    True,
    False,
    1.5,
    2**31,
    2**53,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
]
BODIES: Final = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"{",
    b'"\xff"',
    b"\x00",
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
    b"[" * 100_000,
    b'{"a":' * 3000,
    b"NaN",
    b"1e999",
    b'{"a":1e999}',
    b'{"a":1,"a":2}',
    b"[]" * 10,
    b'{"\\ud800":1}',
    b'{"events":"x"}',
    b'{"events":[null]}',
    b"9" * 6000,
    b"a=b&c=d",
    b"--x\r\nContent-Disposition: form-data\r\n\r\n",
    b"[" + b"[]," * 250_000 + b"[]]",
]
TYPES: Final = [
    "application/json",
    "application/json; charset=utf-16",
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    "multipart/form-data; boundary=x",
    "application/problem+json",
    "json",
]
HEADERS: Final = [
    "Idempotency-Key",
    "Last-Event-ID",
    "Accept",
    "Content-Encoding",
    "X-HTTP-Method-Override",
    "Origin",
    "Host",
    "Authorization",
    "Sec-Fetch-Site",
    "Range",
    "Expect",
]


def _hostile(
    chance: random.Random,
    url: str,
    method: str,
    path: str,
    operation: Mapping[str, Any],
    known: Mapping[str, Any],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    parameters: Sequence[Mapping[str, Any]] = operation.get("parameters", ())
    place = path
    for parameter in parameters:
        if parameter["in"] == "path":
            name = parameter["name"]
            value = (
                known[name]
                if name in known and method != "DELETE" and chance.random() < 0.7
                else chance.choice(TEXTS) or "-"
            )
            place = place.replace(
                "{" + name + "}", requests.utils.quote(str(value).encode("utf-8", "replace"), safe="")
            )
    query = {
        parameter["name"]: chance.choice(TEXTS).encode("utf-8", "replace")
        for parameter in parameters
        if parameter["in"] == "query" and parameter["name"] != "wait_ms" and chance.random() < 0.4
    }
    sent = dict(headers)
    if chance.random() < 0.2:
        sent[chance.choice(HEADERS)] = chance.choice(TEXTS).encode("utf-8", "replace").decode("latin-1")
    body = None
    if "requestBody" in operation or chance.random() < 0.05:
        sent["Content-Type"] = "application/json" if chance.random() < 0.8 else chance.choice(TYPES)
        body = chance.choice(BODIES) if chance.random() < 0.3 else json.dumps(_value(chance, 0)).encode()
    return {"method": method, "url": url + place, "params": query, "headers": sent, "data": body}


NAMES: Final = [
    "events",
    "type",
    "content",
    "messages",
    "format",
    "expected_head",
    "model",
    "policy",
    "metadata",
    "outside_tokens",
    "at",
    "id",
    "view",
    "max_tokens",
    "now",
    "force",
    "injections",
    "retry_of",
    "seqs",
    "paths",
    "query",
    "limit",
    "offset",
    "call_id",
    "focus",
    "turn_id",
    "hide",
    "show",
    "pin",
    "unpin",
    "usage",
    "latency_ms",
    "error",
    "message",
    "status",
    "url",
    "secret",
    "retention",
    "trigger",
    "tool",
    "arguments",
    "occurred_at",
    "ttl_turns",
    "role",
    "name",
    "text",
    "replacement",
    "seq",
    "path",
    "recall",
]
EVENTS: Final = [
    "user.message",
    "assistant.message",
    "tool.call",
    "tool.result",
    "tools",
    "system.prompt",
    "turn.start",
    "turn.end",
    "announce",
]


def _value(chance: random.Random, depth: int) -> Any:
    """Return a random value; near the root it is usually an object with field names of the API."""
    kind = chance.random()
    if depth == 0 or (depth < 4 and kind < 0.3):
        made = {chance.choice(NAMES): _value(chance, depth + 1) for _ in range(chance.randint(1, 4))}
        if chance.random() < 0.4:
            made["type" if depth else "events"] = chance.choice(EVENTS) if depth else list(_events(chance))
        return made
    if depth < 4 and kind < 0.5:
        return [_value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    return chance.choice(TEXTS) if kind < 0.8 else chance.choice([*NUMBERS, None])


def _events(chance: random.Random) -> Iterator[Any]:
    for _ in range(chance.randint(0, 3)):
        event = {"type": chance.choice(EVENTS), "content": chance.choice(TEXTS)}
        for name in ("call_id", "tool", "arguments", "occurred_at", "turn_id", "path", "metadata", "ttl_seconds"):
            if chance.random() < 0.2:
                event[name] = _value(chance, 3)
        yield event
