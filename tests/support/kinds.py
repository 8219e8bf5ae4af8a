"""Sample text of the kinds found in agents' contexts, and published ratios of Claude's token counts for each kind."""

import base64
import difflib
import hashlib
import json
import random
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SENTENCES: Final[Mapping[str, str]] = {
    "german": "Wer ein großes System baut, muss zuerst verstehen, welche Aufgaben es hat und welche Fehler vorkommen. ",
    "french": "Chaque décision entraîne des conséquences que personne n'avait prévues, même après de longues études. ",
    "russian": "Разработка программы всегда начинается с простого вопроса: чего хочет её пользователь? ",
    "chinese": "软件开发总是从一个简单的问题开始：用户想要做什么？答案往往比想象的复杂得多。",
    "korean": "소프트웨어 개발은 항상 간단한 질문에서 시작됩니다. 사용자는 무엇을 하고 싶은가? ",
}
FACTORS: Final[Mapping[str, tuple[float, float]]] = {
    "prose": (1.16, 1.16 * 1.45),
    "code": (1.30, 1.30 * 1.20),
    "markdown": (1.18, 1.53),
    "diff": (1.26, 1.57),
    "json": (1.23, 1.44),
    "json_compact": (1.17, 1.69),
    "records": (1.05, 1.14),
    "logs": (1.08, 1.21),
    "minified": (1.30, 1.34),
    "hex": (1.02, 1.13),
    "base64": (1.26, 1.39),
    "uuids": (1.07, 1.15),
    "numbers": (1.00, 1.00),
    "german": (1.80, 2.30),
    "french": (1.79, 1.84),
    "russian": (1.94, 1.94),
    "chinese": (1.45, 1.44),
    "korean": (2.27, 2.27),
}
"""Tokens of Claude 3 to 4.6, and of Opus 4.7 and later, per token of o200k.

Prose and code are as published ("Hidden costs in AI deployment", times sol.ava.dev's ratio between the two tokenizers),
files as in sammcj/ingest, and all others as the published reconstruction `ctok` 1.3.0 counts these texts
(docs/decisions/0019).
"""


def text(kind: str, size: int, seed: int) -> str:
    """Return about `size` characters of a kind; the same seed gives the same text."""
    dice = random.Random(f"{kind} {seed}")
    if kind in SENTENCES:
        return (SENTENCES[kind] * (size // len(SENTENCES[kind]) + 1))[:size]
    return _MADE[kind](dice, size)[:size]


def _piece(whole: str, dice: random.Random, size: int) -> str:
    start = dice.randrange(max(1, len(whole) - size))
    return whole[start : start + size]


def _read(pattern: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))


def _prose(dice: random.Random, size: int) -> str:
    lines = (
        line for line in _read("docs/decisions/*.md").splitlines() if line and line[0].isalpha() and "`" not in line
    )
    return _piece(" ".join(lines), dice, size)


def _code(dice: random.Random, size: int) -> str:
    return _piece(_read("app/core/plan/*.py"), dice, size)


def _markdown(dice: random.Random, size: int) -> str:
    return _piece(_read("README.md"), dice, size)


def _diff(dice: random.Random, size: int) -> str:
    before = _code(dice, 2 * size).splitlines()
    after = [line for line in before if dice.random() > 0.1]
    return "\n".join(difflib.unified_diff(before, after, "a/app.py", "b/app.py", lineterm=""))


def _json(dice: random.Random, size: int) -> str:
    return _piece(_read("openapi/*.json"), dice, size)


def _json_compact(dice: random.Random, size: int) -> str:
    document = json.loads((ROOT / "openapi/palimpsest.json").read_text(encoding="utf-8"))
    return _piece(json.dumps(document["components"], separators=(",", ":")), dice, size)


def _records(dice: random.Random, size: int) -> str:
    def record() -> dict[str, object]:
        at = f"2026-0{dice.randrange(1, 9)}-1{dice.randrange(9)}T12:{dice.randrange(10, 59)}:00Z"
        name = dice.choice(["Ada", "Grace", "Linus"])
        score = round(dice.random() * 100, 2)
        return {"id": dice.randrange(10**6), "user_id": dice.randrange(999), "name": name, "score": score, "at": at}

    return json.dumps([record() for _ in range(size // 60)])


def _logs(dice: random.Random, size: int) -> str:
    def line() -> str:
        at = f"2026-11-{dice.randrange(10, 28)}T{dice.randrange(10, 24)}:{dice.randrange(10, 60)}:00Z"
        level, status = dice.choice(["INFO", "WARN", "ERROR"]), dice.choice([200, 404, 500])
        return f"{at} {level} [worker-{dice.randrange(9)}] app.plan request={_uuid(dice)} status={status} ip=10.0.1.7"

    return "\n".join(line() for _ in range(size // 90))


def _minified(dice: random.Random, size: int) -> str:
    def function() -> str:
        a, b, c, f = (dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(4))
        what = dice.choice(["length", "push", "getAttribute", "nodeType", "slice", "call"])
        return (
            f"function {f}({a},{b}){{var {c}={a}[{b}]||{{}};return null==={c}?!1:{c}.{what}({a},{dice.randrange(9)})}}"
        )

    return ";".join(function() for _ in range(size // 60))


def _hex(dice: random.Random, size: int) -> str:
    return "\n".join(hashlib.sha256(dice.randbytes(8)).hexdigest() for _ in range(size // 60))


def _base64(dice: random.Random, size: int) -> str:
    return base64.b64encode(dice.randbytes(size)).decode()


def _uuid(dice: random.Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128)))


def _uuids(dice: random.Random, size: int) -> str:
    return "\n".join(_uuid(dice) for _ in range(size // 36))


def _numbers(dice: random.Random, size: int) -> str:
    return "\n".join(",".join(f"{dice.random() * 100:.4f}" for _ in range(8)) for _ in range(size // 50))


_MADE: Final[Mapping[str, Callable[[random.Random, int], str]]] = {
    "prose": _prose,
    "code": _code,
    "markdown": _markdown,
    "diff": _diff,
    "json": _json,
    "json_compact": _json_compact,
    "records": _records,
    "logs": _logs,
    "minified": _minified,
    "hex": _hex,
    "base64": _base64,
    "uuids": _uuids,
    "numbers": _numbers,
}
