"""The composition root: every service, built once from the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app import tokenizers
from app.core.tokens.models import parse_table
from app.core.tokens.scales import Tokenizer
from app.providers import load_prompts
from app.resources.contexts.recordings import Recordings
from app.resources.contexts.service import Assembly
from app.resources.contexts.steps import Steps
from app.resources.contexts.view_cache import ViewCache
from app.resources.events.appends import SessionSnapshots
from app.resources.events.reading import Reading, Redaction
from app.resources.events.service import Ingest
from app.resources.feedback.service import Feedback
from app.resources.layers.service import Layers
from app.resources.lines.service import Forks, Lines
from app.resources.policies.service import Policies
from app.resources.reconcile.service import Reconcile
from app.resources.sessions.service import EventRates, SessionQuota, Sessions
from app.resources.summaries.requests import Coverage, SessionCompactions
from app.resources.summaries.service import Compaction
from app.resources.summaries.summarizing import Summarizing
from app.resources.turns import Turns
from app.resources.visibility import Visibility
from app.runtime.settings import Settings
from app.runtime.wing import ForwardedCalls, Observers, ciphers, find_placement, installed, observers
from app.store.engine import Database
from app.store.texts import ContentCiphers
from app.tenants import Tenants
from app.tokenizers import Counting

if TYPE_CHECKING:
    from app.worker import Work


@dataclass(frozen=True)
class Services:
    """The services that the routes call."""

    database: Database
    counting: Counting
    ingest: Ingest
    assembly: Assembly
    policies: Policies
    tenants: Tenants
    recordings: Recordings
    feedback: Feedback
    lines: Lines
    reconcile: Reconcile
    steps: Steps
    event_rates: EventRates
    ciphers: ContentCiphers
    forwarded_calls: ForwardedCalls
    observers: Observers
    others: Sequence[object] = ()
    """Services that no other service needs, among them those of wings; routes request them by class."""

    @cached_property
    def by_class(self) -> Mapping[type, Any]:
        """The services by class."""
        return {type(service): service for service in (*vars(self).values(), *self.others)}


def build(settings: Settings, database: Database, tokenizers: Mapping[str, Tokenizer]) -> Services:
    """Build all services on one connection pool."""
    observe = observers()
    counting = Counting(tokenizers)
    policies = Policies(database)
    view_cache = ViewCache()
    quota = SessionQuota(settings.tenant_sessions_max)
    forks = Forks(database, policies, quota)
    lines = Lines(database, forks, settings.session_lines_max)
    recordings = Recordings(database, policies)
    ingest = Ingest(database, counting, policies, view_cache, quota, SessionSnapshots(database, counting), lines)
    caches = parse_table(settings.cache_table)
    compact, kept_days = compaction(settings, database, counting, policies), settings.calls_retention_days
    assembly = Assembly(
        database, counting, policies, view_cache, caches, compact, lines, kept_days, on_outcome=observe.context
    )
    rates = EventRates(settings.tenant_events_per_second)
    feedback = Feedback(database, counting, policies, view_cache, caches, observe.report)
    kernel = Services(
        database=database,
        counting=counting,
        ingest=ingest,
        assembly=assembly,
        policies=policies,
        tenants=Tenants(database, settings.api_key),
        lines=lines,
        reconcile=Reconcile(database, counting, policies, ingest, assembly, lines, quota, rates),
        feedback=feedback,
        steps=Steps(database, ingest, assembly, feedback, lines),
        recordings=recordings,
        event_rates=rates,
        ciphers=ciphers(settings, database),
        forwarded_calls=ForwardedCalls(),
        observers=observe,
        others=(
            Sessions(database, counting, policies, quota),
            Reading(database),
            SessionCompactions(database),
            Coverage(database, counting, policies),
            Redaction(database, view_cache),
            Turns(database, counting, policies, view_cache, ingest),
            Layers(database, counting, view_cache),
            Visibility(database, assembly),
            forks,
        ),
    )
    of_wings = [one for wing in installed() for one in wing.services(settings, kernel)]
    return replace(kernel, others=(*kernel.others, *of_wings))


def compaction(
    settings: Settings, database: Database, counting: Counting, policies: Policies | None = None
) -> Compaction:
    """Build the service that writes summaries, for the worker and for contexts that wait for them."""
    tokens = settings.summarizer_tokens_per_day
    return Compaction(database, counting, policies or Policies(database), summarizing(settings), tokens)


def worker_work(settings: Settings) -> "Work":
    """Build the work of a worker with these settings."""
    from app.worker import Work

    counting = Counting(tokenizers.load(settings.tiktoken_cache_dir))
    return Work(
        compaction=lambda database: compaction(settings, database, counting),
        heartbeat_seconds=settings.worker_heartbeat_seconds,
        pooler_url=settings.database_pooler_url,
        find_placement=find_placement,
        ciphers=lambda database: ciphers(settings, database),
        jobs=[make for wing in installed() for make in wing.jobs(settings)],
        after_compaction=[make for wing in installed() for make in wing.after_compaction(settings)],
    )


def summarizing(settings: Settings) -> Summarizing:
    """Build the service that writes one summary, with the models of wings."""
    return Summarizing(
        dict(found for wing in installed() for found in wing.summarizers(settings)),
        load_prompts(),
        default=settings.summarizer,
        window_tokens=settings.summarizer_window_tokens,
        timeout=settings.summarizer_timeout_seconds,
    )
