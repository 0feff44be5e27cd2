import time

from django.conf import settings
from django.db import transaction


def pay(request, flags, debug_flags):
    with transaction.atomic():
        if settings.DEBUG:
            time.sleep(1)
        if flags and "sleep" in debug_flags:
            time.sleep(1)
        if not settings.DEBUG:
            time.sleep(1)  # expect: GL215
        if settings.DEBUG:
            pass
        else:
            time.sleep(1)  # expect: GL215
