"""All settings: environment variables PALIMPSEST_<NAME>, read once and passed down."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.core.errors import InvalidPolicy
from app.core.policy.policy import RETAIN_DAYS_MAX
from app.core.tokens.cache_profiles import parse_table
from app.store import dsn


def _data_dir() -> Path:
    shared = Path("/var/lib/palimpsest")
    try:
        return shared if os.geteuid() == 0 else Path.home() / ".palimpsest"
    except RuntimeError:  # a user without a home
        return shared


class Settings(BaseSettings):
    """The server's settings."""

    model_config = SettingsConfigDict(env_prefix="PALIMPSEST_", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on; anything but loopback needs a key.")
    port: int = Field(8700, ge=0, le=65535, description="Port to listen on.")
    data_dir: Path = Field(
        default_factory=_data_dir,
        description="Folder of the embedded Postgres; default `~/.palimpsest`, for root `/var/lib/palimpsest`.",
    )
    database_url: str | None = Field(
        None, description="A Postgres of your own (15 or newer), `postgresql://…`, instead of the embedded one."
    )
    database_pooler_url: str | None = Field(
        None,
        description="Where a transaction pooler (PgBouncer) takes the statements for that Postgres; migrations, queue"
        " and notifications go to `DATABASE_URL` itself.",
    )
    api_key: str | None = Field(
        None, min_length=16, description="A key with all scopes for the default tenant, beside those in the database."
    )
    pool_size: int = Field(10, ge=1, le=1000, description="Database connections of one API process.")
    streams_max: int = Field(
        500,
        ge=0,
        description="Streams that one API process serves at once, well below the files it may open; more get 503.",
    )
    requests_max: int = Field(
        1_000,
        ge=1,
        description="Requests that one API process answers at once, streams aside; more get 503. Probes and metrics are"
        " always answered.",
    )
    tenant_requests_max: int = Field(
        500, ge=1, description="Requests of one tenant that one API process answers at once; more get 429."
    )
    tenant_events_per_second: int = Field(
        0,
        ge=0,
        description="Events that one tenant may append through one API process, in the long run; what was not used of"
        " ten seconds may come at once, a whole request in any case; more get 429. 0: any number.",
    )
    tenant_sessions_max: int = Field(
        0, ge=0, description="Sessions that one tenant may have; whoever makes another one gets 409. 0: any number."
    )
    body_bytes_max: int = Field(
        32 * 1024 * 1024, ge=1024, description="Largest request body in bytes; larger ones get 413."
    )
    body_unread_bytes_max: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Most bytes taken, and thrown away, of a body that nobody reads, since its key does not work or it"
        " is too large: most clients look for an answer only when they have sent all; then the connection is closed.",
    )
    body_seconds: float = Field(
        60.0, gt=0, description="How long a request's body may take to arrive; later ones get 408."
    )
    head_bytes_max: int = Field(
        64 * 1024, ge=1024, description="Most bytes of a request's line and header fields; more get 431."
    )
    head_fields_max: int = Field(100, ge=10, description="Most header fields of a request; more get 431.")
    head_seconds: float = Field(
        10.0, gt=0, description="How long a request's line and header fields may take to arrive; later ones get 408."
    )
    json_elements_max: int = Field(
        200_000, ge=1_000, description="Most values that a request's JSON may hold; more get 413."
    )
    json_depth_max: int = Field(
        100, ge=70, le=500, description="How deep a request's JSON may be nested; deeper ones get 422."
    )
    open_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Names, separated by commas, that a server without keys answers to, and whose pages it answers,"
        " beside those of loopback.",
    )
    tiktoken_cache_dir: Path = Field(
        Path(sys.prefix) / "share" / "palimpsest" / "tiktoken",
        description="Where the tokenizer vocabularies are; `make setup` puts them there.",
    )
    summarizer: Literal["extractive", "anthropic", "openai"] = Field(
        "extractive", description="Who writes summaries; `extractive` needs no model and no key."
    )
    summarizer_model: str | None = Field(None, description="The model that writes summaries.")
    anthropic_api_key: SecretStr | None = Field(None, description="Key for the `anthropic` summarizer.")
    anthropic_base_url: str | None = Field(None, description="Where it is, if not at the vendor's.")
    openai_api_key: SecretStr | None = Field(None, description="Key for the `openai` summarizer.")
    openai_base_url: str | None = Field(
        None, description="Where it is, if not at the vendor's: any server that speaks chat completions."
    )
    summarizer_timeout_seconds: float = Field(120.0, gt=0, description="How long a summary is waited for.")
    summarizer_window_tokens: int = Field(100_000, ge=2_000, description="The most a summarizer is given at once.")
    summarizer_tokens_per_hour: int = Field(
        5_000_000, ge=0, description="What one worker may spend on each provider: tokens in and out."
    )
    summarizer_tokens_per_day: int = Field(
        50_000_000,
        ge=0,
        description="What all workers together may spend for one tenant in a day (UTC), on all providers: tokens in and"
        " out. Beyond that, its summaries are written without a model until the next day.",
    )
    worker_heartbeat_seconds: float = Field(
        30.0, gt=0, description="After so long without a sign of life a worker's job goes to another one."
    )
    webhook_timeout_seconds: float = Field(10.0, gt=0, description="How long a webhook's receiver is waited for.")
    webhook_private_targets: bool | None = Field(
        None,
        description="Whether webhooks may call loopback and private addresses; by default those may that were made"
        " while no key was needed, that is, by this machine.",
    )
    calls_retention_days: int = Field(
        90,
        ge=0,
        le=RETAIN_DAYS_MAX,
        description="Records of calls are kept so long, or longer where a policy says so; 0: for ever.",
    )
    cache_table: Annotated[dict[str, Any], NoDecode] = Field(
        default_factory=dict,
        description="What providers' caches do where the built-in table is wrong, as JSON by model prefix:"
        ' `{"claude": {"write_price": 2, "ttl_seconds": 3600}}`.',
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_json: bool = Field(False, description="Log JSON lines instead of text.")

    @field_validator("database_url", "database_pooler_url")
    @classmethod
    def _with_driver(cls, url: str | None) -> str | None:
        return dsn.for_sqlalchemy(url) if url else None

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
    def _in_a_home(cls, path: Path) -> Path:
        """Where no shell reads the value, as in a unit file or behind `--data-dir=`, nobody else expands a `~`."""
        try:
            return path.expanduser()
        except RuntimeError:
            raise ValueError("names the home of a user that has none") from None


def settings_table() -> str:
    """The settings as a Markdown table, for the README."""
    rows = ["| variable | default | what |", "|---|---|---|"]
    for name, info in Settings.model_fields.items():
        default = "" if info.default in (None, ()) or info.default_factory else f"`{str(info.default).lower()}`"
        if name == "tiktoken_cache_dir":
            default = "in the virtual environment"
        rows.append(f"| `PALIMPSEST_{name.upper()}` | {default} | {info.description} |")
    return "\n".join(rows)
