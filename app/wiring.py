"""The composition root: every service, built once from the settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.cache import parse_table
from app.core.tokens import Tokenizer
from app.services.assembly import Assembly
from app.services.counting import Counting
from app.services.ingest import Ingest
from app.services.policies import Policies
from app.services.reading import Reading
from app.services.sessions import Sessions
from app.services.tails import Tails
from app.services.tenants import Tenants
from app.settings import Settings
from app.store.engine import Database


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes call."""

    database: Database
    sessions: Sessions
    ingest: Ingest
    reading: Reading
    assembly: Assembly
    policies: Policies
    tenants: Tenants


def build(settings: Settings, database: Database, tokenizers: Mapping[str, Tokenizer]) -> Services:
    """All services over one pool."""
    counting = Counting(tokenizers)
    policies = Policies(database)
    tails = Tails()
    ingest = Ingest(database, counting, policies, tails)
    return Services(
        database=database,
        sessions=Sessions(database, counting, policies, ingest),
        ingest=ingest,
        reading=Reading(database),
        assembly=Assembly(database, counting, policies, tails, parse_table(settings.cache_table)),
        policies=policies,
        tenants=Tenants(database, settings.api_key),
    )
