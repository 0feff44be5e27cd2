import requests


def of(model, storage, name):
    try:
        found = model.objects.get(name=name)
    except:  # expect: GL211
        found = None
    try:
        found, _ = model.managed.get_or_create(name=name)
    except:  # expect: GL211
        found = None
    try:
        found = requests.get(f"http://127.0.0.1/{name}", timeout=1)
    except:  # expect: GL211
        pass
    try:
        return storage.read_file(found)
    except:  # expect: GL211
        return None
