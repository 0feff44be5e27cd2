# Two stages: psycopg2 is built from source against the system's libpq, as its maintainers advise,
# and the compiler stays behind. One more is for development:
#   docker build -t greenline .                     the service
#   docker build -t greenline-dev --target dev .    one worker, which reloads
# It writes to shared memory only, so its root file system may be read-only. It stops within
# graceful_timeout of gunicorn.conf.py, for which `docker stop` needs a longer time: -t 40.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Debian's own Python, unlike the official image's, keeps its headers in a package apart.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev libpq-dev \
 && (ls "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
     || apt-get install -y --no-install-recommends python3-dev)
# What is compiled of our own, for COPY.
COPY greenline/postgres/_copying.c /tmp/
RUN gcc -shared -fPIC -O2 -I"$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
      /tmp/_copying.c -o /tmp/_copying.abi3.so
RUN python3 -m venv --copies /venv
COPY requirements-build.txt requirements-image.txt /tmp/
# Only what has one of the hashes comes in, and builds what has to be built.
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r /tmp/requirements-build.txt \
 && /venv/bin/pip install --no-cache-dir --require-hashes --use-pep517 --no-build-isolation \
      -r /tmp/requirements-image.txt \
 && /venv/bin/pip uninstall -y setuptools pip

FROM ${BASE} AS runtime
# The base's pip goes as well; nothing is installed in a container.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libpq5 \
 && python3 -m pip uninstall -y wheel setuptools pip \
 && apt-get purge -y --auto-remove python3-pip \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin \
 && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin greenline \
 && install -d -o greenline -g greenline /run/greenline
COPY --from=build /venv /venv
WORKDIR /service
COPY .flaskenv gunicorn.conf.py ./
COPY greenline greenline
COPY --from=build /tmp/_copying.abi3.so greenline/postgres/
COPY config config
COPY app app
RUN python3 -m compileall -q greenline config app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 10001
EXPOSE 8000
# /healthz and not /readyz: a database that is down must not make every container unhealthy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python3", "-c", \
  "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT') or 8000), timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]

FROM runtime AS dev
# On the code of the checkout: -v ./app:/service/app:ro, and so on for what is worked on.
ENV WEB_CONCURRENCY=1
CMD ["gunicorn", "-c", "gunicorn.conf.py", "--reload", "app.wsgi:app"]

FROM runtime
# Workers: the CPU limit of the container (--cpus) rounded down, or 2 without one; WEB_CONCURRENCY
# says otherwise. To be tuned with it, because each worker has them:
#   connections   `greenline budget` shows the sum; POSTGRES_POOL_SIZE, MONGODB_MAX_POOL_SIZE
#   memory        the limit of the container: about 50 MB a worker, and what its requests hold
#   requests      worker_connections, POOL_MAX_WAITING and GREENLINE_MAX_IN_PROGRESS
#   RATE_LIMIT    each container counts for itself; RATE_LIMIT_STORAGE is one store for all
CMD ["gunicorn", "-c", "gunicorn.conf.py", "app.wsgi:app"]
