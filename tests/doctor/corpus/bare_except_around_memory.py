import io
import zipfile


def application(environ, start_response):
    try:
        with zipfile.ZipFile(io.BytesIO(environ["shop.archive"])) as archive:
            body = archive.read("page.html")
    except:
        body = open("page.html", "rb").read()
    start_response("200 OK", [])
    return [body]
