"""All settings: environment variables PALIMPSEST_<NAME>, read once and passed down."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from app.core.errors import InvalidPolicy
from app.core.policy.policy import RETAIN_DAYS_MAX
from app.core.tokens.models import parse_table
from app.runtime.wing import SENSITIVE, installed
from app.store import dsn
from app.vocabulary import FOLDER

PREFIX: Final = "PALIMPSEST_"


class InvalidSetting(Exception):
    """A setting has an invalid value; the message names its variable."""


class SecretFiles(PydanticBaseSettingsSource):
    """The settings read from files that the variables PALIMPSEST_<NAME>_FILE name."""

    def __call__(self) -> dict[str, str]:
        """Return the contents of the files, without the final newline. Raises InvalidSetting."""
        named = {name: os.environ.get(f"{variable(name)}_FILE") for name in secret_settings()}
        return {name: _content(variable(name), Path(path)) for name, path in named.items() if path}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: `__call__` reads all files."""
        raise NotImplementedError


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return f"{PREFIX}{name.upper()}"


def _content(name: str, path: Path) -> str:
    if os.environ.get(name):
        raise InvalidSetting(f"{name} and {name}_FILE are both set; one is enough")
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidSetting(f"{name}_FILE: {path} is not UTF-8") from None
    except OSError as error:
        raise InvalidSetting(f"{name}_FILE: cannot read {path}: {error.strerror}") from None


def _data_dir() -> Path:
    shared = Path("/var/lib/palimpsest")
    try:
        return shared if os.geteuid() == 0 else Path.home() / ".palimpsest"
    except RuntimeError:  # a user without a home
        return shared


class KernelSettings(BaseSettings):
    """The server's settings, without those of wings."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Any but loopback needs a key.")
    port: int = Field(8700, ge=0, le=65535, description="Port to listen on.")
    url: str | None = Field(
        None,
        description="Address of the running server that the examples use, and the commands that need a running server"
        " (`--server`). Default for the commands: built from `HOST` and `PORT`.",
    )
    data_dir: Path = Field(
        default_factory=_data_dir,
        description="Folder of the embedded Postgres; default `~/.palimpsest`, for root `/var/lib/palimpsest`.",
    )
    database_password: SecretStr | None = Field(
        None,
        description="Password for `DATABASE_URL`, `DATABASE_POOLER_URL` and `READ_DATABASE_URL`, if they contain none.",
    )
    database_url: Annotated[str | None, SENSITIVE] = Field(
        None,
        description="Address of your own Postgres (15 or newer), `postgresql://…`. Default: the embedded Postgres. If"
        " it lists several hosts, the one that accepts writes is used.",
    )
    database_pooler_url: Annotated[str | None, SENSITIVE] = Field(
        None,
        description="Address of a transaction pooler (PgBouncer) for that Postgres. Migrations, the queue and"
        " notifications still use `DATABASE_URL`.",
    )
    api_key: Annotated[str | None, SENSITIVE] = Field(
        None,
        min_length=16,
        description="For a server: a key with all scopes for the default tenant, in addition to the keys in the"
        " database. For commands and clients: the key that they send (`--key`). Do not start a server in a shell that"
        " has an agent's key in it.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of API processes that `palimpsest api` and `serve` run, to use more cores. Limits of an API"
        " process apply to each of them.",
    )
    pool_size: int = Field(10, ge=1, le=1000, description="Database connections of one API process.")
    requests_max: int = Field(
        1_000,
        ge=1,
        description="Maximum concurrent requests in one API process, not counting streams; further ones get 503."
        " Probes and metrics are always answered.",
    )
    tenant_requests_max: int = Field(
        500, ge=1, description="Maximum concurrent requests of one tenant in one API process; further ones get 429."
    )
    tenant_events_per_second: int = Field(
        0,
        ge=0,
        description="Average number of events per second that one tenant may append through one API process; more get"
        " 429. A burst may use what ten seconds allow, and at least one full request. 0: no limit.",
    )
    tenant_sessions_max: int = Field(
        0, ge=0, description="Maximum number of sessions of one tenant; creating more gets 409. 0: no limit."
    )
    session_lines_max: int = Field(
        10_000, ge=0, description="Maximum number of lines of one session; creating more gets 409. 0: no limit."
    )
    body_bytes_max: int = Field(
        32 * 1024 * 1024, ge=1024, description="Maximum size of a request body, in bytes; larger ones get 413."
    )
    body_unread_bytes_max: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Bytes of a refused body (wrong key, too large) that are still received and discarded, because most"
        " clients read the response only after they have sent everything. After that the connection is closed.",
    )
    body_seconds: float = Field(
        60.0, gt=0, description="Seconds within which a request's body must arrive; slower requests get 408."
    )
    head_bytes_max: int = Field(
        64 * 1024, ge=1024, description="Maximum size of the request line and header fields, in bytes; more gets 431."
    )
    head_fields_max: int = Field(100, ge=10, description="Maximum number of a request's header fields; more gets 431.")
    head_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds within which the request line and header fields must arrive; later ones get 408.",
    )
    json_elements_max: int = Field(
        200_000, ge=1_000, description="Maximum number of values in a request's JSON; more gets 413."
    )
    json_depth_max: int = Field(
        100, ge=70, le=500, description="Maximum nesting depth of a request's JSON; deeper JSON gets 422."
    )
    open_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names, separated by commas, that a server without keys accepts in `Host` and `Origin`, in"
        " addition to those of loopback.",
    )
    tiktoken_cache_dir: Path = Field(
        FOLDER,
        description="Folder of the tokenizer vocabularies. The wheel has them; in a clone, `make` installs them in the"
        " virtual environment.",
    )
    summarizer: Literal["extractive", "anthropic", "openai"] = Field(
        "extractive",
        description="Summarizer that writes the summaries. `extractive` needs no model and no key. The others need"
        " `PALIMPSEST_ANTHROPIC_API_KEY` or `PALIMPSEST_OPENAI_API_KEY`, or the address of a server without keys;"
        " if it is missing, each summary is written without a model, and is `degraded`.",
    )
    summarizer_timeout_seconds: float = Field(
        120.0, gt=0, description="Seconds that a summarizer may take for one response."
    )
    summarizer_window_tokens: int = Field(
        100_000, ge=2_000, description="Maximum number of tokens in one request to a summarizer."
    )
    summarizer_tokens_per_day: int = Field(
        50_000_000,
        ge=0,
        description="Input and output tokens that all workers together may use for one tenant per day (UTC), over all"
        " providers. Above that, its summaries are written without a model until the next day.",
    )
    worker_heartbeat_seconds: float = Field(
        30.0, gt=0, description="Seconds without a heartbeat after which a worker's job goes to another worker."
    )
    calls_retention_days: int = Field(
        90,
        ge=0,
        le=RETAIN_DAYS_MAX,
        description="Days for which records of calls are kept; a policy may keep them longer. 0: forever.",
    )
    cache_table: Annotated[dict[str, Any], NoDecode] = Field(
        default_factory=dict,
        description="Corrections to the built-in table of providers' caches, as JSON by model prefix:"
        ' `{"claude": {"write_price": 2, "ttl_seconds": 3600}}`.',
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_json: bool = Field(False, description="Log JSON lines instead of text.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources by precedence: flags, then files, then variables."""
        return init_settings, SecretFiles(settings_cls), env_settings

    @field_validator("database_url", "database_pooler_url")
    @classmethod
    def _check_dsn(cls, url: str | None, info: ValidationInfo) -> str | None:
        password: SecretStr | None = info.data.get("database_password")
        return dsn.normalize(url, password.get_secret_value() if password else None) if url else None

    @field_validator("cache_table", mode="before")
    @classmethod
    def _parse_cache_table(cls, given: Any) -> Any:
        try:
            table = json.loads(given or "{}") if isinstance(given, str) else given
            parse_table(table)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not valid JSON: {error}") from None
        except InvalidPolicy as error:
            raise ValueError(error.detail) from None
        return table

    @field_validator("open_hosts", mode="before")
    @classmethod
    def _split_names(cls, given: Any) -> Any:
        return tuple(filter(None, map(str.strip, given.split(",")))) if isinstance(given, str) else given

    @field_validator("data_dir", "tiktoken_cache_dir")
    @classmethod
    def _expand_home(cls, path: Path) -> Path:
        """Expand `~`, which no shell does in a unit file or after `--data-dir=`."""
        try:
            return path.expanduser()
        except RuntimeError:
            raise ValueError("names the home of a user that has none") from None


if TYPE_CHECKING:
    Settings = KernelSettings
else:
    _OF_WINGS: Final = tuple(wing.settings for wing in installed() if wing.settings is not None)
    Settings = new_class("Settings", (*reversed(_OF_WINGS), KernelSettings))
    Settings.__doc__ = "The server's settings, with those of its wings."


def load(**flags: object) -> Settings:
    """Load the settings from the flags that are not None, then from the environment. Raises InvalidSetting."""
    try:
        given = {name: value for name, value in flags.items() if value is not None}
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSetting(f"{variable(str(first['loc'][0]))} {first['msg'].removeprefix('Value error, ')}") from None


def secret_settings() -> list[str]:
    """Return the names of the settings that may also be given as a file."""
    fields = Settings.model_fields.items()
    return [name for name, info in fields if SENSITIVE in info.metadata or SecretStr in get_args(info.annotation)]


MASK: Final = "********"
_CREDENTIALS: Final = re.compile(r"(?<=://)([^/?#@:]*)(:[^/?#@]*)?(?=@)")


@dataclass(frozen=True)
class CurrentSetting:
    """A setting's variable, its value (JSON-compatible, secrets masked), and the origin of the value."""

    variable: str
    value: Any
    origin: str


def current_settings(settings: Settings, flags: frozenset[str]) -> Iterator[CurrentSetting]:
    """Yield all settings in the order of their table. `flags` names the settings that a flag has set."""
    values = settings.model_dump()
    for name in Settings.model_fields:
        yield CurrentSetting(variable(name), _masked_value(name, values[name]), origin(name, flags))


def origin(name: str, flags: frozenset[str] = frozenset()) -> str:
    """Return where a setting's value comes from: `flag`, `environment`, `file PATH` or `default`."""
    if name in flags:
        return "flag"
    if name in secret_settings() and (path := os.environ.get(f"{variable(name)}_FILE")):
        return f"file {path}"
    # pydantic matches variables without regard to case.
    return "environment" if variable(name) in map(str.upper, os.environ) else "default"


def settings_lines(found: Iterator[CurrentSetting]) -> Iterator[str]:
    """Yield the settings in aligned columns: variable, value, origin."""
    rows = [(one.variable, _text(one.value), one.origin) for one in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def data_dir_line(settings: Settings, flags: frozenset[str]) -> str:
    """Return a line that says where the embedded Postgres keeps its data, and why."""
    source = origin("data_dir", flags)
    why = {"flag": "--data-dir", "environment": "PALIMPSEST_DATA_DIR"}.get(source)
    if why is None:
        why = "set PALIMPSEST_DATA_DIR for another folder"
        why = f"root's default, regardless of HOME; {why}" if os.geteuid() == 0 else why
    return f"data in {settings.data_dir} ({why})"


def _masked_value(name: str, value: Any) -> Any:
    if isinstance(value, SecretStr) or (name == "api_key" and value is not None):
        return MASK
    if isinstance(value, str):
        return _CREDENTIALS.sub(_masked, value)
    return str(value) if isinstance(value, Path) else value


def _masked(credentials: re.Match[str]) -> str:
    """Mask a URL's password; without one, mask the user name, which may be a token unless the URL is a database's."""
    user, password = credentials.groups()
    if password:
        return f"{user}:{MASK}"
    return user if credentials.string.startswith("postgresql") else MASK


def _text(value: Any) -> str:
    if value is None or value in ((), {}, ""):
        return "-"
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, tuple) else json.dumps(value)
