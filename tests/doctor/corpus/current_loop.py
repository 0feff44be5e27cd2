import asyncio

from django.http import HttpResponse


def index(request):
    loop = asyncio.get_event_loop()  # expect: GL202
    return HttpResponse(loop.run_until_complete(asyncio.sleep(0, "fetched")))
