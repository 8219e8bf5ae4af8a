"""Named parameters: the text and values that the driver receives."""

import re
from pathlib import Path

import pytest

import app.store
from app.store.driver import bind, numbered
from migrations.tables import metadata

COMPARED = re.compile(r"(\w+) (?:=|<>|IS NOT DISTINCT FROM) :(\w+)")
SEQ = "seq"
"""A key that is compared with values of many names: a head, a span's ends, a cursor."""


@pytest.mark.parametrize(
    ("sql", "text", "names"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("WHERE a = :one AND b > :two", "WHERE a = $1 AND b > $2", ("one", "two")),
        ("WHERE (:at::timestamptz IS NULL OR x < :at)", "WHERE ($1::timestamptz IS NULL OR x < $1)", ("at",)),
        ("VALUES (:b, :a, :b)", "VALUES ($1, $2, $1)", ("b", "a")),
        ("seq=:seq_2,x=ANY(:ids::uuid[])", "seq=$1,x=ANY($2::uuid[])", ("seq_2", "ids")),
        (":seq < :seqs", "$1 < $2", ("seq", "seqs")),
        ("body::text, now()::date, ARRAY[]::bigint[]", "body::text, now()::date, ARRAY[]::bigint[]", ()),
        ("to_char(at, 'HH24:MI:SS') || :said", "to_char(at, 'HH24:MI:SS') || $1", ("said",)),
        ("ids[2:n], ids[1:2] = :ids", "ids[2:n], ids[1:2] = $1", ("ids",)),
        ("'compact:' || :id", "'compact:' || $1", ("id",)),
        ("body -> 'a' ->> :key", "body -> 'a' ->> $1", ("key",)),
        ("body @> '{\"a\": 1}' AND body ? :key", "body @> '{\"a\": 1}' AND body ? $1", ("key",)),
        ("make_interval(secs => :seconds * 2)", "make_interval(secs => $1 * 2)", ("seconds",)),
        ("BEGIN n := 1; END", "BEGIN n := 1; END", ()),
    ],
)
def test_named_parameters_become_numbered_ones(sql: str, text: str, names: tuple[str, ...]) -> None:
    assert numbered(sql) == (text, names)


def test_values_are_in_the_order_of_their_numbers() -> None:
    statement = bind("SELECT :b, :a, :b", {"a": 1, "b": None})
    assert statement == ("SELECT $1, $2, $1", None, 1)


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_values_are_those_of_the_statement_and_no_others(values: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"has the parameters \['a', 'b'\]"):
        bind("SELECT :a, :b", values)


def test_a_literal_that_looks_like_a_parameter_is_loud() -> None:
    with pytest.raises(TypeError, match="now"):
        bind("SELECT ':now'", {})


def test_a_key_is_compared_with_a_parameter_of_its_own_name() -> None:
    """`epoch` is compared with `:epoch`, or in a statement with two of them with `:held_epoch`."""
    keys = {column.name for table in metadata.sorted_tables for column in table.primary_key} - {SEQ}
    sources = Path(*app.store.__path__).glob("*.py")
    compared = [pair for source in sources for pair in COMPARED.findall(source.read_text(encoding="utf-8"))]
    assert len(compared) > 300
    strangers = [pair for pair in compared if pair[0] in keys and not f"_{pair[1]}".endswith(f"_{pair[0]}")]
    assert strangers == []
