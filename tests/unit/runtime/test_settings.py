"""Settings come from PALIMPSEST_* variables; their page lists every one, and `palimpsest config` prints them."""

import os
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from app.runtime.settings import (
    MASK,
    InvalidSetting,
    KernelSettings,
    Settings,
    current_settings,
    data_dir_line,
    load,
    origin,
    secret_settings,
    settings_lines,
    variable,
)
from app.runtime.wing import installed

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
NOBODYS_ID = 2_000_000_011


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PALIMPSEST_")]:
        monkeypatch.delenv(name)


def test_the_defaults_serve_this_machine_only() -> None:
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8700)
    assert settings.database_url is None
    assert settings.api_key is None
    assert settings.data_dir.is_absolute()


def test_variables_are_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_PORT", "1234")
    monkeypatch.setenv("PALIMPSEST_DATA_DIR", "/somewhere")
    assert Settings().port == 1234
    assert Settings().data_dir == Path("/somewhere")
    assert Settings(port=4321).port == 4321


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("postgres://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgresql://u:p%40@h:1/d", "postgresql+asyncpg://u:p%40@h:1/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u@h/d?sslmode=require", "postgresql+asyncpg://u@h/d?ssl=require"),
        ("postgresql://u@/d?host=/run/postgresql", "postgresql+asyncpg://u@/d?host=%2Frun%2Fpostgresql"),
        ("", None),
    ],
)
def test_a_database_url_of_any_spelling(monkeypatch: pytest.MonkeyPatch, given: str, read: str | None) -> None:
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", given)
    assert Settings().database_url == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", "mysql://h/d"),
        ("database_url", "postgresql://h:port/d"),
        ("database_url", "postgresql://h/d?channel_binding=require"),
        ("data_dir", "~no-such-user-here/data"),
        ("port", "65536"),
        pytest.param("gateway_openai_url", "api.openai.com/v1", marks=pytest.mark.wing("gateway")),
        pytest.param("gateway_anthropic_url", "ftp://api.anthropic.com", marks=pytest.mark.wing("gateway")),
        ("body_bytes_max", "0"),
        ("pool_size", "0"),
        ("api_key", "guessable"),
        ("log_level", "chatty"),
        ("cache_table", "{no json"),
        ("cache_table", "[]"),
        ("cache_table", '{"claude": {"ttl": 300}}'),
    ],
)
def test_nonsense_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"PALIMPSEST_{name.upper()}", value)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert [error["loc"] for error in refused.value.errors()] == [(name,)]


@pytest.mark.parametrize(
    ("given", "read"),
    [("", {}), ("{}", {}), ('{"claude": {"ttl_seconds": 3600}}', {"claude": {"ttl_seconds": 3600}})],
)
def test_a_cache_table_is_json(monkeypatch: pytest.MonkeyPatch, given: str, read: object) -> None:
    monkeypatch.setenv("PALIMPSEST_CACHE_TABLE", given)
    assert Settings().cache_table == read


def test_a_bad_cache_table_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_CACHE_TABLE", '{"claude": {"ttl_seconds": "long"}}')
    with pytest.raises(ValidationError) as refused:
        Settings()
    said = refused.value.errors()[0]["msg"]
    assert said == "Value error, claude.ttl_seconds: must be a whole number of 0 or more"


@pytest.mark.skipif(os.geteuid() == 0, reason="root has a folder of its own")
def test_the_data_folder_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert Settings().data_dir == Path("/home/someone/.palimpsest")


def test_a_user_without_a_home_gets_a_folder_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODYS_ID)
    monkeypatch.setattr(os, "getuid", lambda: NOBODYS_ID)
    assert Settings().data_dir == Path("/var/lib/palimpsest")


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("PALIMPSEST_DATA_DIR", "~/data")
    monkeypatch.setenv("PALIMPSEST_TIKTOKEN_CACHE_DIR", "~/vocabularies")
    assert Settings().data_dir == Path("/home/someone/data")
    assert Settings().tiktoken_cache_dir == Path("/home/someone/vocabularies")


def test_every_setting_says_what_it_is_for() -> None:
    for name, info in Settings.model_fields.items():
        assert info.description, name


_ALL = {
    "api_key": "a-key-of-more-than-sixteen-bytes",
    "database_password": "p%40ss w\u00f6rd",
    "database_url": "postgresql+asyncpg://u@h/d",
    "database_pooler_url": "postgresql+asyncpg://u@p/d",
    "read_database_url": "postgresql+asyncpg://u@r/d",
    "encryption_key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "pages_secret": "pages-secret",
    "anthropic_api_key": "sk-ant",
    "openai_api_key": "sk-open",
}
SECRETS = {name: secret for name, secret in _ALL.items() if name in Settings.model_fields}
"""Secret settings, without those of wings that have been removed."""


def test_every_secret_may_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(secret_settings()) == set(SECRETS)
    for name, secret in SECRETS.items():
        file = tmp_path / name
        file.write_text(f"{secret}\n", encoding="utf-8")
        with monkeypatch.context() as only:
            only.setenv(f"{variable(name)}_FILE", str(file))
            read = getattr(load(), name)
            assert (read.get_secret_value() if isinstance(read, SecretStr) else read) == secret
        assert f"`{variable(name)}_FILE`" in PAGE.read_text(encoding="utf-8")


def test_no_wing_replaces_a_setting_or_a_check_of_another() -> None:
    parts = [KernelSettings, *(wing.settings for wing in installed() if wing.settings is not None)]
    checks = [name for part in parts for name in part.__pydantic_decorators__.field_validators]
    names = [name for part in parts for name in part.model_fields]
    assert len(set(checks)) == len(checks) and len(set(names)) == len(names)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_is_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRETS[name])
    monkeypatch.setenv(f"{variable(name)}_FILE", str(file))
    monkeypatch.setenv(variable(name), SECRETS[name])
    with pytest.raises(InvalidSetting, match=f"{variable(name)} and {variable(name)}_FILE are both set"):
        load()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"\xff", "is not UTF-8"), ("folder", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | str | None, said: str
) -> None:
    file = tmp_path / "secret"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        file.mkdir()
    monkeypatch.setenv("PALIMPSEST_API_KEY_FILE", str(file))
    with pytest.raises(InvalidSetting, match=f"PALIMPSEST_API_KEY_FILE: .*{said}"):
        load()


def test_a_files_value_is_checked_like_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short\n")
    monkeypatch.setenv("PALIMPSEST_API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(InvalidSetting, match=r"PALIMPSEST_API_KEY .*at least 16"):
        load()


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("postgresql://u@h/d", "postgresql+asyncpg://u:a%40%2F%25%3A+b@h/d"),
        ("postgresql://u:own@h/d", "postgresql+asyncpg://u:own@h/d"),
    ],
)
def test_the_password_can_be_given_separately_from_the_addresses(url: str, read: str) -> None:
    password = SecretStr("a@/%:+b")
    settings = Settings(database_password=password, database_url=url, database_pooler_url=url)
    assert (settings.database_url, settings.database_pooler_url) == (read, read)


def test_a_password_needs_a_user() -> None:
    with pytest.raises(InvalidSetting, match="PALIMPSEST_DATABASE_URL has no user name"):
        load(database_password="secret", database_url="postgresql://h/d")


def test_every_setting_in_force_has_its_value_and_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-key-of-more-than-sixteen-bytes\n")
    monkeypatch.setenv("PALIMPSEST_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("PALIMPSEST_OPEN_HOSTS", "one, two")
    monkeypatch.setenv("palimpsest_log_level", "error")
    found = {one.variable: one for one in current_settings(load(port=99), frozenset({"port"}))}
    assert list(found) == [variable(name) for name in Settings.model_fields]
    assert (found["PALIMPSEST_PORT"].value, found["PALIMPSEST_PORT"].origin) == (99, "flag")
    assert (found["PALIMPSEST_HOST"].value, found["PALIMPSEST_HOST"].origin) == ("127.0.0.1", "default")
    assert found["PALIMPSEST_API_KEY"].origin == f"file {tmp_path / 'key'}"
    assert (found["PALIMPSEST_OPEN_HOSTS"].value, found["PALIMPSEST_OPEN_HOSTS"].origin) == (
        ("one", "two"),
        "environment",
    )
    assert (found["PALIMPSEST_LOG_LEVEL"].value, found["PALIMPSEST_LOG_LEVEL"].origin) == ("error", "environment")
    printed = {line.split()[0]: line.split()[1:] for line in settings_lines(iter(found.values()))}
    assert printed["PALIMPSEST_PORT"] == ["99", "flag"]
    assert printed["PALIMPSEST_OPEN_HOSTS"] == ["one,two", "environment"]
    assert printed["PALIMPSEST_LOG_JSON"] == ["false", "default"]
    assert printed["PALIMPSEST_DATABASE_URL"] == ["-", "default"]


def test_no_secret_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(variable(name), secret)
    for name in ("openai_base_url", "anthropic_base_url", "gateway_openai_url", "gateway_anthropic_url", "url"):
        monkeypatch.setenv(variable(name), "https://sk-token@models.example/v1")
    monkeypatch.setenv("PALIMPSEST_DATABASE_URL", "postgresql://user:sk-in-the-address@h/d")
    found = list(current_settings(load(), frozenset()))
    printed = "\n".join(settings_lines(iter(found)))
    for secret in (_ALL["api_key"], "p%40ss", _ALL["encryption_key"], "sk-ant", "sk-open", "sk-token", "sk-in"):
        assert secret not in printed, secret
    assert f"postgresql+asyncpg://user:{MASK}@h/d" in printed
    assert f"https://{MASK}@models.example/v1" in printed


def test_the_start_names_the_data_folder_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    as_root = data_dir_line(Settings(), frozenset())
    assert as_root.startswith(
        "data in /var/lib/palimpsest (root's default, regardless of HOME; set PALIMPSEST_DATA_DIR"
    )
    assert data_dir_line(Settings(data_dir=Path("/x")), frozenset({"data_dir"})) == "data in /x (--data-dir)"
    monkeypatch.setenv("PALIMPSEST_DATA_DIR", "/y")
    assert data_dir_line(Settings(), frozenset()) == "data in /y (PALIMPSEST_DATA_DIR)"
    assert origin("data_dir") == "environment"
