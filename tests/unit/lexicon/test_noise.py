"""Names that are useless to an agent."""

import pytest

from app.core.lexicon.identifiers import identifiers, is_noise, unnumbered
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.digest.names import weigh


@pytest.mark.parametrize(
    "name", ["fmt.Errorf", "os.Stderr", "encoding/json", "e.g", "./", "t.Fatal", "__init__", "tool_use_error"]
)
def test_names_of_languages_and_abbreviations_are_noise(name: str) -> None:
    assert is_noise(name)
    assert name not in identifiers(f"see {name} and tide.rows.load")


@pytest.mark.parametrize("name", ["tide.rows.load", "log.py", "src/os.py", "store.Save", "net/tide.go", "json.md"])
def test_a_projects_names_are_no_noise(name: str) -> None:
    assert not is_noise(name)


def test_words_with_a_slash_are_a_path_only_where_something_shows_it() -> None:
    said = "Read and/or write the input/output of cmd/server, see cmd/server/main.go and 'feature/tides'."
    names = identifiers(said)
    assert {"cmd/server", "cmd/server/main.go", "feature/tides"} <= names.keys()
    assert not {"and/or", "input/output"} & names.keys()


def test_numbers_of_lines_are_not_names() -> None:
    listing = (
        "   812\tdef load_rows():\n   813\t    return rows\ntide.go:1042:7: undefined: height\n1043-  x = load_rows()"
    )
    assert not {"812", "813", "1042", "1043"} & identifiers(listing).keys()
    assert "load_rows" in identifiers(listing)
    assert unnumbered("no numbers here") == "no numbers here"


def test_an_id_is_named_whole() -> None:
    whole = "550e8400-e29b-41d4-a716-446655440000"
    events = [
        Event(seq, EventType.USER_MESSAGE, 1, 9, body={"content": text})
        for seq, text in enumerate((f"session {whole}", "it begins with 550e8400-e29b-41d4 or 550e8400"), 1)
    ]
    names = weigh(events)
    assert whole in names and not [name for name in names if name != whole and name in whole]
