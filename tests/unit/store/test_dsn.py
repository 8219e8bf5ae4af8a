"""Database addresses are parsed and formatted like SQLAlchemy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import URL, make_url

from app.store import dsn

words = st.text(alphabet="aZ09:/?#[]%+ &=é._-", max_size=6)
values = st.text(alphabet="aZ09:/?#[]%+ é._-", max_size=6)
users = st.one_of(
    st.just(""),
    st.builds("{}@".format, st.text(alphabet="aZ09?#[]%+ &=é._-", max_size=6)),
    st.builds("{}:{}@".format, st.text(alphabet="aZ09?#[]%+ &=é._-", max_size=6), words),
)
hosts = st.sampled_from(["", "localhost", "127.0.0.1", "[::1]", "a.b-c", "one,two"])
ports = st.one_of(st.just(""), st.builds(":{}".format, st.integers(0, 65535)))
databases = st.one_of(st.just(""), st.builds("/{}".format, st.text(alphabet="aZ09#%+ &=é._-/", max_size=6)))
asked = st.lists(st.builds("{}={}".format, st.sampled_from(["host", "port", "sslmode", "ssl"]), values), max_size=3)


@given(users, hosts, ports, databases, asked)
def test_it_is_parsed_as_by_sqlalchemy(user: str, host: str, port: str, database: str, query: list[str]) -> None:
    url = f"postgresql://{user}{host}{port}{database}?{'&'.join(query)}"
    ours, theirs = make_url(dsn.normalize(url)), make_url(url)
    assert ours.drivername == "postgresql+asyncpg"
    assert spell(ours.set(drivername="", query={})) == spell(theirs.set(drivername="", query={}))
    assert {*ours.query} == {"ssl" if name == "sslmode" else name for name in theirs.query}
    for_driver = make_url(dsn.for_asyncpg(dsn.normalize(url)))
    assert for_driver.drivername == "postgresql"
    assert spell(for_driver.set(drivername="", query={})) == spell(theirs.set(drivername="", query={}))
    assert {*for_driver.query} == {"sslmode" if name == "ssl" else name for name in theirs.query}


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("one:1,two:2", ["one:1", "two:2"]),
        ("one,two:2", ["one", "two:2"]),
        ("one:1,two", ["one:1", "two"]),
        ("one,two", ["one", "two"]),
        ("[::1]:1,[::2]:2", ["[::1]:1", "[::2]:2"]),
        ("one:1,[::2]:2,10.0.0.3", ["one:1", "[::2]:2", "10.0.0.3"]),
    ],
)
def test_each_of_several_hosts_is_tried_and_must_accept_writes(listed: str, found: list[str]) -> None:
    url = dsn.normalize(f"postgresql://me:a#b@{listed}/name?sslmode=require")
    asked = "sslmode=require&target_session_attrs=read-write"
    assert dsn.hosts(url) == tuple(f"postgresql://me:a%23b@{host}/name?{asked}" for host in found)
    assert all("=any" in one for one in dsn.hosts(f"{url}&target_session_attrs=any"))


def test_a_single_host_is_used_unchanged() -> None:
    for url in ("postgresql://one:1/name", "postgresql:///name?host=/a/folder&port=5432"):
        assert dsn.hosts(url) == (dsn.for_asyncpg(url),)


@pytest.mark.parametrize(
    "url", ["one:1,two:x/name", "one:1,,two/name", "one:1,two:2:3/name", "one/name?target_session_attrs=standby"]
)
def test_addresses_without_hosts_or_with_read_only_ones_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no URL|must be one of"):
        dsn.normalize(f"postgresql://{url}")


def spell(url: URL) -> str:
    return url.render_as_string(hide_password=False)
