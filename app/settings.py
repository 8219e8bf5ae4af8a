"""All settings: environment variables PALIMPSEST_<NAME>, read once and passed down."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from app.core.errors import InvalidPolicy
from app.core.policy.policy import RETAIN_DAYS_MAX
from app.core.tokens.cache_profiles import parse_table
from app.store import dsn

PREFIX: Final = "PALIMPSEST_"
HOLDING_SECRETS: Final = frozenset({"api_key", "database_url", "database_pooler_url", "read_database_url"})
"""The settings that are, or may hold, a secret, and are plain strings."""


class InvalidSetting(Exception):
    """A setting has a value that it cannot have; the message names its variable."""


class SecretFiles(PydanticBaseSettingsSource):
    """The settings whose variable with `_FILE` behind its name names a file that holds the value."""

    def __call__(self) -> dict[str, str]:
        """What the files hold, without the newline at the end. Raises InvalidSetting."""
        named = {name: os.environ.get(f"{variable(name)}_FILE") for name in secret_settings()}
        return {name: _content(variable(name), Path(path)) for name, path in named.items() if path}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: all files are read at once."""
        raise NotImplementedError


def variable(name: str) -> str:
    """The environment variable of a setting."""
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


class Settings(BaseSettings):
    """The server's settings."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Any but loopback needs a key.")
    port: int = Field(8700, ge=0, le=65535, description="Port to listen on.")
    url: str | None = Field(
        None,
        description="Address of the running server that the examples and `replay`, `explain`, `verify`, `import` and"
        " `export` (`--server`) ask. Commands without it ask the one of `HOST` and `PORT`.",
    )
    data_dir: Path = Field(
        default_factory=_data_dir,
        description="Folder of the embedded Postgres; default `~/.palimpsest`, for root `/var/lib/palimpsest`.",
    )
    database_password: SecretStr | None = Field(
        None,
        description="Password for `DATABASE_URL`, `DATABASE_POOLER_URL` and `READ_DATABASE_URL` where they name none.",
    )
    database_url: str | None = Field(
        None,
        description="Address of a Postgres of your own (15 or newer), `postgresql://…`; else the embedded one. It may"
        " list several hosts, of which the one that takes writes is used.",
    )
    database_pooler_url: str | None = Field(
        None,
        description="Address of a transaction pooler (PgBouncer) in front of that Postgres. Migrations, queue and"
        " notifications still go to `DATABASE_URL`.",
    )
    read_database_url: str | None = Field(
        None,
        description="Address of a replica (hot standby) of that Postgres, which then answers audits and ledgers. One"
        " host. Unset: the primary answers them.",
    )
    read_behind_seconds_max: float = Field(
        30.0,
        gt=0,
        description="Seconds by which the replica may be behind. While it is further behind, the primary answers.",
    )
    api_key: str | None = Field(
        None,
        min_length=16,
        description="Key with all scopes for the default tenant, beside those in the database. Commands that ask a"
        " running server send it (`--key`).",
    )
    encryption_key: SecretStr | None = Field(
        None,
        description="Key that wraps each tenant's content key, with which contents are sealed in the database from then"
        " on; `palimpsest contents new-key` prints one. Several, with commas between: the first wraps, each unwraps.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="API processes of `palimpsest api` and `serve`, for more cores. What is said of one API process"
        " holds for each.",
    )
    pool_size: int = Field(10, ge=1, le=1000, description="Database connections of one API process.")
    streams_max: int = Field(
        500,
        ge=0,
        description="Streams that one API process serves at once. Keep it well below the limit of open files. More"
        " get 503.",
    )
    requests_max: int = Field(
        1_000,
        ge=1,
        description="Requests, without streams, that one API process answers at once. More get 503. Probes and metrics"
        " are always answered.",
    )
    tenant_requests_max: int = Field(
        500, ge=1, description="Requests of one tenant that one API process answers at once. More get 429."
    )
    tenant_events_per_second: int = Field(
        0,
        ge=0,
        description="Events a second that one tenant may append through one API process, on average. What was not used"
        " in ten seconds may come at once. One whole request is always taken. More get 429. 0: any number.",
    )
    tenant_sessions_max: int = Field(
        0, ge=0, description="Sessions that one tenant may have. Making one more gets 409. 0: any number."
    )
    session_lines_max: int = Field(
        10_000, ge=0, description="Lines that one session may have. Making one more gets 409. 0: any number."
    )
    body_bytes_max: int = Field(
        32 * 1024 * 1024, ge=1024, description="Size of the largest request body, in bytes. Larger ones get 413."
    )
    body_unread_bytes_max: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Bytes of a refused body (wrong key, too large) that are still received and thrown away, since most"
        " clients look for an answer only when they have sent everything. Then the connection is closed.",
    )
    body_seconds: float = Field(
        60.0, gt=0, description="Time in which a request's body must arrive. Later ones get 408."
    )
    head_bytes_max: int = Field(
        64 * 1024, ge=1024, description="Size of a request's line and header fields together, in bytes. More gets 431."
    )
    head_fields_max: int = Field(100, ge=10, description="Number of a request's header fields. More get 431.")
    head_seconds: float = Field(
        10.0, gt=0, description="Time in which a request's line and header fields must arrive. Later ones get 408."
    )
    json_elements_max: int = Field(
        200_000, ge=1_000, description="Number of values that a request's JSON may hold. More get 413."
    )
    json_depth_max: int = Field(
        100, ge=70, le=500, description="Depth to which a request's JSON may be nested. Deeper ones get 422."
    )
    open_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names, separated by commas, that a server without keys accepts beside those of loopback, in"
        " `Host` and in `Origin`.",
    )
    tiktoken_cache_dir: Path = Field(
        Path(sys.prefix) / "share" / "palimpsest" / "tiktoken",
        description="Folder of the tokenizer vocabularies. `make run` and `make setup` put them there.",
    )
    summarizer: Literal["extractive", "anthropic", "openai"] = Field(
        "extractive", description="Summarizer that writes summaries. `extractive` needs no model and no key."
    )
    summarizer_model: str | None = Field(None, description="Model that writes summaries.")
    anthropic_api_key: SecretStr | None = Field(None, description="Key for the `anthropic` summarizer.")
    anthropic_base_url: str | None = Field(None, description="Address of its API, if not the vendor's.")
    openai_api_key: SecretStr | None = Field(None, description="Key for the `openai` summarizer.")
    openai_base_url: str | None = Field(
        None, description="Address of its API, if not the vendor's: any server that speaks chat completions."
    )
    summarizer_timeout_seconds: float = Field(120.0, gt=0, description="Time that a summarizer has for one answer.")
    summarizer_window_tokens: int = Field(
        100_000, ge=2_000, description="Tokens that a summarizer is given at once, at most."
    )
    summarizer_tokens_per_hour: int = Field(
        5_000_000, ge=0, description="Tokens in and out that one worker may spend on each provider in an hour."
    )
    summarizer_tokens_per_day: int = Field(
        50_000_000,
        ge=0,
        description="Tokens in and out that all workers together may spend for one tenant in a day (UTC), on all"
        " providers. After that, its summaries are written without a model until the next day.",
    )
    worker_heartbeat_seconds: float = Field(
        30.0, gt=0, description="Time without a sign of life after which a worker's job goes to another worker."
    )
    webhook_timeout_seconds: float = Field(10.0, gt=0, description="Time that a webhook's receiver has for its answer.")
    webhook_private_targets: bool | None = Field(
        None,
        description="Whether webhooks may call loopback and private addresses. By default only those may that were made"
        " while no key was needed, and so by this machine.",
    )
    gateway_anthropic_url: str | None = Field(
        None,
        description="Address of Anthropic's API, or of one like it, behind `/gateway/anthropic`, such as"
        " `https://api.anthropic.com`. Unset: off.",
    )
    gateway_openai_url: str | None = Field(
        None,
        description="Address of OpenAI's API, or of one like it, behind `/gateway/openai`, such as"
        " `https://api.openai.com/v1`. Unset: off.",
    )
    gateway_context_seconds: float = Field(
        5.0, gt=0, description="Time that a context has in the gateway. After that the request goes on as it came."
    )
    gateway_silence_seconds: float = Field(
        600.0, gt=0, description="Time for which a provider behind the gateway may send nothing. Then 504."
    )
    gateway_requests_max: int = Field(
        500,
        ge=1,
        description="Requests that one API process has under way through the gateway, which do not count as"
        " `REQUESTS_MAX`. More get 503.",
    )
    calls_retention_days: int = Field(
        90,
        ge=0,
        le=RETAIN_DAYS_MAX,
        description="Days for which records of calls are kept; a policy may say longer. 0: for ever.",
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
        """Flags, then files, then variables."""
        return init_settings, SecretFiles(settings_cls), env_settings

    @property
    def gateway_on(self) -> bool:
        """Whether any provider is named for the gateway."""
        return bool(self.gateway_anthropic_url or self.gateway_openai_url)

    @field_validator("database_url", "database_pooler_url", "read_database_url")
    @classmethod
    def _with_driver(cls, url: str | None, info: ValidationInfo) -> str | None:
        password: SecretStr | None = info.data.get("database_password")
        return dsn.checked(url, password.get_secret_value() if password else None) if url else None

    @field_validator("read_database_url")
    @classmethod
    def _of_one_host(cls, url: str | None) -> str | None:
        if url and len(dsn.hosts(url)) > 1:
            raise ValueError("lists several hosts: how late a replica is, is known of one")
        return url

    @field_validator("gateway_anthropic_url", "gateway_openai_url")
    @classmethod
    def _an_address(cls, url: str | None) -> str | None:
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError("must begin with http:// or https:// and name a host")
        return url or None

    @field_validator("encryption_key")
    @classmethod
    def _keys(cls, given: SecretStr | None) -> SecretStr | None:
        if given is not None:
            from app.services.keyring import wrapping

            try:
                wrapping(given.get_secret_value())
            except ValueError:
                raise ValueError("must be a key as `palimpsest contents new-key` prints it, or several") from None
        return given

    @field_validator("cache_table", mode="before")
    @classmethod
    def _a_cache_table(cls, given: Any) -> Any:
        try:
            table = json.loads(given or "{}") if isinstance(given, str) else given
            parse_table(table)
        except json.JSONDecodeError as error:
            raise ValueError(f"is no JSON: {error}") from None
        except InvalidPolicy as error:
            raise ValueError(error.detail) from None
        return table

    @field_validator("open_hosts", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        return tuple(filter(None, map(str.strip, given.split(",")))) if isinstance(given, str) else given

    @field_validator("data_dir", "tiktoken_cache_dir")
    @classmethod
    def _expand_home(cls, path: Path) -> Path:
        """Expand `~`, because no shell does in a unit file or behind `--data-dir=`."""
        try:
            return path.expanduser()
        except RuntimeError:
            raise ValueError("names the home of a user that has none") from None


def load(**flags: object) -> Settings:
    """The settings, from flags that are not None and then the environment. Raises InvalidSetting."""
    try:
        given = {name: value for name, value in flags.items() if value is not None}
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidSetting(f"{variable(str(first['loc'][0]))} {first['msg'].removeprefix('Value error, ')}") from None


def secret_settings() -> list[str]:
    """The names of the settings that may also be given as a file."""
    fields = Settings.model_fields.items()
    return [name for name, info in fields if name in HOLDING_SECRETS or SecretStr in get_args(info.annotation)]
