"""Configurations of nginx and gunicorn that are in order, for tests to break one thing of."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ONE_HOST = """\
worker_processes 4;
worker_rlimit_nofile 65536;
events {
    worker_connections 16384;
}
http {
    upstream app {
        server unix:/run/app/http.sock max_fails=0;
        server unix:/run/app/http.sock max_fails=0 weight=1;
        keepalive 64;
        keepalive_timeout 4s;
    }
    server {
        listen 80;
        client_max_body_size 1m;
        location /static/ {
            root /srv;
        }
        location /legacy/ {
            uwsgi_pass 127.0.0.1:3031;
        }
        location / {
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Request-Id $request_id;
            proxy_set_header X-Request-Start t=$msec;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_request_buffering on;
            proxy_buffering on;
            proxy_connect_timeout 2s;
            proxy_read_timeout 35s;
            proxy_next_upstream error timeout;
            proxy_intercept_errors off;
            error_page 502 503 504 /down.html;
        }
    }
}
"""
ONE_HOST_GUNICORN = """\
bind = "unix:/run/app/http.sock"
workers = 4
worker_class = "greenline.worker.GreenWorker"
worker_connections = 2000
keepalive = 5
graceful_timeout = 35
timeout = 30
preload_app = False
forwarded_allow_ips = "127.0.0.1"
worker_tmp_dir = "/dev/shm"
umask = 0o007
"""

# Two hosts over TCP, TLS at nginx, headers at the server's level, other applications beside it.
TWO_HOSTS = """\
worker_processes auto;
worker_rlimit_nofile 40000;
events { worker_connections 20000; }
http {
    proxy_http_version 1.1;
    proxy_connect_timeout 1500ms;
    upstream app {
        least_conn;
        server 10.0.0.1:8000 max_fails=2 fail_timeout=5s;
        server 10.0.0.2:8000 max_fails=2 fail_timeout=5s;
        server 10.0.0.3:8000 down;
        keepalive 32 local;
        keepalive_timeout 900ms;
    }
    upstream grafana {
        server 127.0.0.1:3000;
    }
    server {
        listen 80;
        return 301 https://$host$request_uri;
    }
    server {
        listen 443 ssl;
        http2 on;
        client_max_body_size 20M;
        proxy_set_header Connection "";
        proxy_set_header Host $host;
        proxy_set_header X-Request-ID $request_id;
        proxy_set_header X-Request-Start t=$msec;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Forwarded-Proto https;
        proxy_read_timeout 1m5s;
        location /api/ {
            proxy_pass http://app/;
            location /api/export {
                proxy_pass http://app;
                proxy_read_timeout 2m;
            }
        }
        location /metrics {
            proxy_pass http://grafana;
        }
    }
}
"""
TWO_HOSTS_GUNICORN = """\
from greenline.worker import GreenWorker


class Worker(GreenWorker):
    pass


bind = ["0.0.0.0:8000", "[::]:8000"]
workers = 8
worker_class = Worker
worker_connections = 2000
keepalive = 2
graceful_timeout = 90
forwarded_allow_ips = "10.0.0.0/24"
worker_tmp_dir = "/dev/shm"
"""

# A main file, a site, and headers that several locations include; behind a balancer of its own.
IN_PIECES = {
    "nginx.conf": """\
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
    include conf.d/*.conf;
    include nothing.d/*.conf;
}
""",
    "conf.d/app.conf": """\
set_real_ip_from 10.0.0.0/8;
real_ip_header X-Forwarded-For;
upstream app {
    server 127.0.0.1:8000 max_fails=0;
    server localhost:8000 max_fails=0;
    keepalive 16;
    keepalive_timeout 4;
}
server {
    listen 8080; client_max_body_size 1m;
    location / {
        include proxy.conf;
        proxy_pass http://app;
    }
    location /slow/ {
        include proxy.conf;
        proxy_read_timeout 50s;
        if ($request_method = POST) {
            proxy_pass http://app;
        }
    }
}
""",
    "proxy.conf": """\
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_set_header Host $host;
proxy_set_header X-Request-Id $request_id;
proxy_set_header X-Request-Start "t=${msec}";
proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
proxy_set_header X-Forwarded-Proto $scheme;
""",
}
IN_PIECES_GUNICORN = """\
keepalive = 5
graceful_timeout = 40
worker_class = "greenline.worker.GreenWorker"
worker_tmp_dir = "/run/app"
"""


@dataclass(frozen=True)
class Configuration:
    """Files of nginx, with ``nginx.conf`` among them, one of gunicorn, and an environment."""

    nginx: dict[str, str]
    gunicorn: str
    environ: dict[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """Return the texts by their names."""
        return {**self.nginx, "gunicorn.conf.py": self.gunicorn}

    def changed(self, file: str, old: str, new: str) -> "Configuration":
        """Return it with *new* for *old*, which is once in *file*."""
        assert self.files[file].count(old) == 1, f"{file} has {old!r} not once"
        files = {**self.files, file: self.files[file].replace(old, new)}
        return Configuration(files, files.pop("gunicorn.conf.py"), self.environ)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write them into *folder*, and return the paths of both."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder / "nginx.conf", folder / "gunicorn.conf.py"


GOOD = {
    "one host": Configuration(
        {"nginx.conf": ONE_HOST}, ONE_HOST_GUNICORN, {"REQUEST_TIMEOUT": "30"}
    ),
    "two hosts": Configuration(
        {"nginx.conf": TWO_HOSTS},
        TWO_HOSTS_GUNICORN,
        {
            "REQUEST_TIMEOUT": "60",
            "DRAIN_DELAY": "15",
            "GREENLINE_MAX_BODY_BYTES": "20971520",
            "DATABASE_URL": "postgresql://h/d?options=-c%20statement_timeout%3D50s",
        },
    ),
    "in pieces": Configuration(IN_PIECES, IN_PIECES_GUNICORN, {"REQUEST_TIMEOUT": "20"}),
}
