from multiprocessing import Pool

from celery import shared_task


@shared_task
def build(request):
    with Pool(2) as pool:
        return pool.map(abs, request)
