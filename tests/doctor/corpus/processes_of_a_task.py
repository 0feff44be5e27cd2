from multiprocessing import Pool

from celery import shared_task


@shared_task
def build(request):
    with Pool(2) as pool:  # not: GL210
        return pool.map(abs, request)
