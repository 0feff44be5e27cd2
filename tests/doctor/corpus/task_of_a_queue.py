import time

import requests
from celery import shared_task
from django.db import transaction


@shared_task(bind=True)
def fetch(self):
    with transaction.atomic():
        time.sleep(1)
    try:
        return requests.get("http://127.0.0.1/").text
    except:
        return None
