"""The WSGI application."""

import os

from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "bench.peers.legacy.shop.settings"
application = get_wsgi_application()
