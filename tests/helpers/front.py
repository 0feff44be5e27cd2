"""A proxy before each of the two servers, and the service's settings that lead through them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from tests.helpers.proxy import Proxy
from tests.helpers.support import Databases


@dataclass(frozen=True)
class Front:
    """A proxy before each server, under the name that /readyz gives the server."""

    postgres: Proxy
    mongodb: Proxy
    database: str

    @property
    def environ(self) -> dict[str, str]:
        """One worker, so that a test knows whom it asks, with the two URLs."""
        postgres, mongodb = f"127.0.0.1:{self.postgres.port}", f"127.0.0.1:{self.mongodb.port}"
        return {
            "DATABASE_URL": f"postgresql://greenline@{postgres}/{self.database}?sslmode=disable",
            "MONGODB_URI": f"mongodb://{mongodb}/greenline?directConnection=true",
            "WEB_CONCURRENCY": "1",
            "AUTH": "off",
        }

    def all(self) -> dict[str, Proxy]:
        """Return the proxies by name."""
        return {"postgres": self.postgres, "mongodb": self.mongodb}

    def pass_on(self) -> None:
        """Let both pass on."""
        for proxy in self.all().values():
            proxy.pass_on()


@contextmanager
def behind_proxies(databases: Databases) -> Iterator[Front]:
    """Put fault proxies before both servers."""
    postgres, mongo = urlsplit(databases.postgres), urlsplit(databases.mongo)
    folder = parse_qs(postgres.query)["host"][0]
    with (
        Proxy(f"{folder}/.s.PGSQL.5432") as before_postgres,
        Proxy((str(mongo.hostname), int(mongo.port or 27017))) as before_mongo,
    ):
        yield Front(before_postgres, before_mongo, postgres.path.lstrip("/"))
