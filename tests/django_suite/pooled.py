"""The settings for Django's tests: the databases' ENGINE and the server come from outside."""

import os

from psycopg2.extensions import parse_dsn

_server = parse_dsn(os.environ["DATABASE_URL"])
_where = {"USER": _server["user"], "HOST": _server["host"], "PORT": _server["port"]}

DATABASES = {
    alias: {"ENGINE": os.environ["POOLED_ENGINE"], "NAME": name, **_where}
    for alias, name in (("default", "django_one"), ("other", "django_two"))
}
# As in Django's own settings for its tests.
SECRET_KEY = "for this test only"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
