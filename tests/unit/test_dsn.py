"""A database's address is read and written as SQLAlchemy does."""

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
def test_it_is_read_as_sqlalchemy_reads_it(user: str, host: str, port: str, database: str, query: list[str]) -> None:
    url = f"postgresql://{user}{host}{port}{database}?{'&'.join(query)}"
    ours, theirs = make_url(dsn.for_sqlalchemy(url)), make_url(url)
    assert ours.drivername == "postgresql+asyncpg"
    assert spelled(ours.set(drivername="", query={})) == spelled(theirs.set(drivername="", query={}))
    assert {*ours.query} == {"ssl" if name == "sslmode" else name for name in theirs.query}
    for_driver = make_url(dsn.for_asyncpg(dsn.for_sqlalchemy(url)))
    assert for_driver.drivername == "postgresql"
    assert spelled(for_driver.set(drivername="", query={})) == spelled(theirs.set(drivername="", query={}))
    assert {*for_driver.query} == {"sslmode" if name == "ssl" else name for name in theirs.query}


def spelled(url: URL) -> str:
    return url.render_as_string(hide_password=False)
