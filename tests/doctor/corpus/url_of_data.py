from urllib.request import urlopen


def image(text, path):
    return urlopen(f"data:image/png;base64,{text}").read() + urlopen("file://" + path).read()
