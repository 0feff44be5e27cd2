# Two stages: psycopg2 is built from source against the system's libpq, as its maintainers
# advise, and the compiler stays behind.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Debian's own Python, unlike the official image's, keeps its headers in a package apart.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev libpq-dev \
 && (ls "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
     || (apt-get upgrade -y && apt-get install -y --no-install-recommends python3-dev))
RUN python3 -m venv --copies /venv
COPY requirements-common.txt requirements-image.txt /tmp/
RUN /venv/bin/pip install --no-cache-dir -r /tmp/requirements-image.txt \
 && /venv/bin/pip uninstall -y pip setuptools

FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends libpq5 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --no-create-home --shell /usr/sbin/nologin greenline
COPY --from=build /venv /venv
WORKDIR /service
COPY .flaskenv gunicorn.conf.py ./
COPY greenline greenline
COPY config config
COPY app app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER greenline
EXPOSE 8000
# /healthz and not /readyz: a database that is down must not make every container unhealthy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["python3", "-c", \
  "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PORT', 8000)), timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
CMD ["gunicorn", "-c", "gunicorn.conf.py", "app.wsgi:app"]
