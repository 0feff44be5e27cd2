"""Requests as bytes: ordinary ones, odd ones, malformed ones, and attempts at smuggling."""

import string

# The endings of the names of what the worker answers otherwise on purpose.
ON_PURPOSE = ("replaced", "oserror", "incomplete")
HOST = "Host: example.org"
CHUNKS = b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
FOLLOW = b"GET /follow HTTP/1.1\r\nHost: example.org\r\n\r\n"


def head(line: str, *headers: str, end: str = "\r\n") -> bytes:
    """Return a head of a first line and headers, in latin-1."""
    return (end.join((line, *headers)) + end + end).encode("latin-1")


def get(*headers: str, target: str = "/x", version: str = "HTTP/1.1") -> bytes:
    return head(f"GET {target} {version}", HOST, *headers)


def post(body: bytes, *headers: str, target: str = "/x", version: str = "HTTP/1.1") -> bytes:
    return head(f"POST {target} {version}", HOST, *headers) + body


def _lines() -> dict[str, bytes]:
    lines = [
        "GET / HTTP/1.1", "HEAD / HTTP/1.1", "POST / HTTP/1.1", "PUT / HTTP/1.1",
        "PATCH / HTTP/1.1", "DELETE / HTTP/1.1", "OPTIONS / HTTP/1.1", "TRACE / HTTP/1.1",
        "PROPFIND / HTTP/1.1", "M-SEARCH / HTTP/1.1", "QUERY / HTTP/1.1", "CONNECT / HTTP/1.1",
        "CONNECT example.org:443 HTTP/1.1", "CONNECT * HTTP/1.1", "OPTIONS * HTTP/1.1",
        "GET * HTTP/1.1", "GET example.org:80 HTTP/1.1", "GET example.org HTTP/1.1",
        "get / HTTP/1.1", "Get / HTTP/1.1", "G#T / HTTP/1.1", "GE / HTTP/1.1", "G / HTTP/1.1",
        " / HTTP/1.1", "/ HTTP/1.1", "GET", "GET /", "GET / ", "GET  HTTP/1.1", "GET / HTTP",
        "GET / HTTP/", "GET / HTTP/1", "GET / HTTP/1.", "GET / HTTP/1.0", "GET / HTTP/1.2",
        "GET / HTTP/1.9", "GET / HTTP/1.10", "GET / HTTP/1.1.1", "GET / HTTP/0.9",
        "GET / HTTP/2", "GET / HTTP/2.0", "GET / HTTP/3.0", "GET / http/1.1", "GET / HTTPS/1.1",
        "GET / XTTP/1.1", "GET / HTTP/1,1", "GET / HTTP/-1.1", "GET / HTTP/ 1.1",
        "GET / HTTP/1 .1", "GET / HTTP/\xb9.1", "GET / FTP/1.1", "GET / RTSP/1.0",
        "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET / HTTP/1.1 ", " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1", "GET /\tHTTP/1.1", "GET / HTTP/1.1\t", "\tGET / HTTP/1.1",
        "GET /a b HTTP/1.1", "GET /\x00 HTTP/1.1", "GET /\x01 HTTP/1.1", "GET /\x7f HTTP/1.1",
        "GET /\x80 HTTP/1.1", "GET /\xe9 HTTP/1.1", "GET /\xff HTTP/1.1", "GET /\x0b HTTP/1.1",
        "GET /\x0c HTTP/1.1", "GET /\r HTTP/1.1", "GET /\rX HTTP/1.1", "G\x00T / HTTP/1.1",
        "G\xc9T / HTTP/1.1", "G(T / HTTP/1.1", "G,T / HTTP/1.1", 'G"T / HTTP/1.1',
        "GET /?a=1&b=2 HTTP/1.1", "GET /? HTTP/1.1", "GET /?? HTTP/1.1", "GET /a?b?c HTTP/1.1",
        "GET ? HTTP/1.1", "GET /# HTTP/1.1", "GET /a#b HTTP/1.1", "GET /a?b#c HTTP/1.1",
        "GET /a#b?c HTTP/1.1", "GET # HTTP/1.1", "GET #a HTTP/1.1", "GET // HTTP/1.1",
        "GET //a HTTP/1.1", "GET //a/b?c HTTP/1.1", "GET ///a HTTP/1.1", "GET /a//b HTTP/1.1",
        "GET //[a HTTP/1.1", "GET /[a HTTP/1.1", "GET /a]b HTTP/1.1", "GET /a:b HTTP/1.1",
        "GET /: HTTP/1.1", "GET /;p HTTP/1.1", "GET /a;p=1?q HTTP/1.1", "GET /. HTTP/1.1",
        "GET /.. HTTP/1.1", "GET /../a HTTP/1.1", "GET ./a HTTP/1.1", "GET a HTTP/1.1",
        "GET /%41 HTTP/1.1", "GET /%2f HTTP/1.1", "GET /%2F%2f HTTP/1.1", "GET /%00 HTTP/1.1",
        "GET /%e9 HTTP/1.1", "GET /%C3%A9 HTTP/1.1", "GET /%ff HTTP/1.1", "GET /% HTTP/1.1",
        "GET /%4 HTTP/1.1", "GET /%zz HTTP/1.1", "GET /%25 HTTP/1.1", "GET /%2e%2e HTTP/1.1",
        "GET /?%41 HTTP/1.1", "GET /%3f HTTP/1.1", "GET /%23 HTTP/1.1", "GET /a+b HTTP/1.1",
        "GET /\\ HTTP/1.1", "GET /| HTTP/1.1", "GET /^ HTTP/1.1", "GET /` HTTP/1.1",
        "GET /{} HTTP/1.1", "GET /<> HTTP/1.1", 'GET /" HTTP/1.1', "GET /~ HTTP/1.1",
        "GET http://example.org/ HTTP/1.1", "GET http://example.org HTTP/1.1",
        "GET http://example.org/a?b#c HTTP/1.1", "GET http://[::1]/ HTTP/1.1",
        "GET http://[::1/ HTTP/1.1", "GET http://u:p@h:1/ HTTP/1.1", "GET http:// HTTP/1.1",
        "GET http:/a HTTP/1.1", "GET https://h/a HTTP/1.1", "GET ://a HTTP/1.1",
        "GET 1http://a/b HTTP/1.1", "GET HTTP://H/A HTTP/1.1", "GET ftp://h/a HTTP/1.1",
        "OPTIONS http://h HTTP/1.1", "GET /http://h/a HTTP/1.1", "CONNECT http://h HTTP/1.1",
        "PRI * HTTP/2.0", "A" * 20 + " / HTTP/1.1", "A" * 21 + " / HTTP/1.1",
    ]  # fmt: skip
    return {f"line {line[:60]!r}": head(line, HOST) for line in lines}


def _line_ends() -> dict[str, bytes]:
    whole = get("A: 1", "B: 2")
    first, _, rest = whole.partition(b"\r\n")
    return {
        "line ends LF": whole.replace(b"\r\n", b"\n"),
        "line ends CR": whole.replace(b"\r\n", b"\r"),
        "line ends first LF": first + b"\n" + rest,
        "line ends CR CR LF": first + b"\r\r\n" + rest,
        "line ends LF CR": whole.replace(b"\r\n", b"\n\r"),
        "line ends last LF LF": whole[:-4] + b"\n\n",
        "line ends last CRLF LF": whole[:-2] + b"\n",
        "line ends last LF CRLF": whole[:-4] + b"\n\r\n",
        "line ends one in a header": get("A: 1\nB: 2"),
        "line ends CR in a header": get("A: 1\rB: 2"),
        "line ends NUL in a header": get("A: 1\x00"),
        "line ends a blank before": b"\r\n" + whole,
        "line ends two blanks before": b"\r\n\r\n" + whole,
        "line ends LF before": b"\n" + whole,
        "line ends CR before": b"\r" + whole,
        "line ends blank and LF before": b"\r\n\n" + whole,
        "line ends no headers": b"GET / HTTP/1.1\r\n\r\n",
        "line ends HTTP/0.9": b"GET /\r\n",
        "line ends HTTP/0.9 LF": b"GET /\n",
        "line ends cut in the line": b"GET / HT",
        "line ends cut before the end": whole[:-2],
        "line ends cut in a header": whole[:-7],
        "line ends nothing": b"",
        "line ends only blank": b"\r\n",
        "line ends only LF": b"\n",
        "line ends only blanks": b"\r\n\r\n\r\n",
        "line ends NUL bytes": b"\x00" * 16,
        "line ends a TLS hello": bytes.fromhex("1603010200010001fc0303") + b"\x00" * 32,
        "line ends h2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "line ends SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "line ends PROXY": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + whole,
    }


def _headers() -> dict[str, bytes]:
    odd = [
        "A: 1", "A:1", "A:  1", "A: 1 ", "A:\t1\t", "A:", "A: ", "A:\t", "A :1", "A\t:1", " A: 1",
        "\tA: 1", ": 1", "A", "A 1", "A B: 1", "A: 1\r\n b", "A: 1\r\n\tb", "A: 1\r\n  b\r\n c",
        "A: \x01", "A: \x07", "A: \x0b", "A: \x1f", "A: \x7f", "A: \x80", "A: \xe9", "A: \xff",
        "A: a\tb", "A: a:b", "A: a,b", "A: \x00", "A\x00: 1", "A\x7f: 1", "\xc4: 1", "A\xdf: 1",
        "A(: 1", "A/: 1", "A@: 1", "A[: 1", "A{: 1", 'A": 1', "A,: 1", "A;: 1", "A=: 1", "A?: 1",
        "A!: 1", "A#$%&'*+-.^`|~: 1", "a: 1", "aB-c: 1", "1: 1", "-: 1", "A-: 1", "-A: 1",
        "A_B: 1", "_: 1", "Content_Length: 3", "Content_Type: a/b", "SCRIPT_NAME: /x",
        "Script-Name: /x", "PATH_INFO: /evil", "X_Forwarded_Proto: https", "REMOTE_USER: root",
        "Remote-Addr: 1.2.3.4", "Http-Host: evil", "Proxy: http://evil",
        "Connection: close", "Connection: Close", "Connection: CLOSE ", "Connection: keep-alive",
        "Connection: Keep-Alive", "Connection: close, te", "Connection: te, close",
        "Connection: upgrade", "Connection: ", "Connection: closed", "connection: close",
        "Connection: keep-alive, close", "Connection: close\r\nConnection: keep-alive",
        "Connection: keep-alive\r\nConnection: close", "Connection: x\r\nConnection: close",
        "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nConnection: Upgrade",
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings",
        "Expect: 100-continue", "Expect: 100-Continue", "Expect: 200-ok", "Expect: ", "expect: x",
        "Expect: 100-continue\r\nExpect: 100-continue", "TE: trailers", "Trailer: X",
        "Content-Type: text/plain", "Content-Type: a\r\nContent-Type: b", "Host: other",
        "host: other", "HOST:", "Cookie: a=1\r\nCookie: b=2", "A: 1\r\na: 2\r\nA: 3",
        "A-B: 1\r\nA_B: 2", "Accept: a\r\nAccept: b", "Set-Cookie: a\r\nSet-Cookie: b",
        "X-Forwarded-For: 10.0.0.1", "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2",
        "X-Forwarded-Proto: https", "X-Forwarded-Proto: http", "X-Forwarded-Proto: HTTPS",
        "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: https",
        "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http",
        "X-Forwarded-Proto: https, http", "X-Forwarded-Ssl: on", "X-Forwarded-Ssl: off",
        "X-Forwarded-Protocol: ssl", "X-Forwarded-Protocol: ssl\r\nX-Forwarded-Ssl: on",
        "X-Forwarded-Protocol: ssl\r\nX-Forwarded-Ssl: off", "x-forwarded-proto: https",
        "X-Forwarded-Host: evil", "Forwarded: for=10.0.0.1", "Keep-Alive: timeout=5",
        "Range: bytes=0-1", "If-None-Match: *", "Authorization: Basic dTpw", "Date: now",
    ]  # fmt: skip
    return {f"header {text[:70]!r}": get(text) for text in odd} | {
        "header only host": get(),
        "header no host": head("GET / HTTP/1.1"),
        "header two hosts": head("GET / HTTP/1.1", HOST, HOST),
        "header host with a port": head("GET / HTTP/1.1", "Host: example.org:81"),
        "header host of IPv6": head("GET / HTTP/1.1", "Host: [::1]:81"),
        "header folded first": head("GET / HTTP/1.1", " folded", HOST),
        "header 1.0 alone": head("GET / HTTP/1.0"),
        "header 1.0 keep-alive": get("Connection: keep-alive", version="HTTP/1.0"),
        "header 1.0 close": get("Connection: close", version="HTTP/1.0"),
        "header 1.0 odd connection": get("Connection: x", version="HTTP/1.0"),
        "header 1.0 expect": post(b"abc", "Content-Length: 3", "Expect: 100-continue",
                                  version="HTTP/1.0"),
        "header 100 of them": get(*(f"H{n}: {n}" for n in range(99))),
        "header 101 of them": get(*(f"H{n}: {n}" for n in range(100))),
        "header 300 of them": get(*(f"H{n}: {n}" for n in range(300))),
        "header long": get("A: " + "x" * 8185),
        "header at the limit": get("A: " + "x" * 8186),
        "header too long": get("A: " + "x" * 8187),
        "header wide": get("A:" + " " * 8180 + "x"),
        "header long name": get("A" * 300 + ": 1"),
        "header very long name": get("A" * 9000 + ": 1"),
        "header much in all": get(*(f"H{n}: {'x' * 4000}" for n in range(5))),
        "line long": get(target="/" + "x" * 4000),
        "line at the limit": get(target="/" + "x" * 4080),
        "line over the limit": get(target="/" + "x" * 4081),
        "line at the hard limit": get(target="/" + "x" * 8176),
        "line over the hard limit": get(target="/" + "x" * 8177),
        "line far too long": get(target="/" + "x" * 20_000),
        "line without end": b"GET /" + b"x" * 20_000,
        "header without end": b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000,
        "header every token sign": get(
            *(f"X{sign}: 1" for sign in "!#$%&'*+-.^`|~" + string.digits)
        ),
    }  # fmt: skip


def _bodies() -> dict[str, bytes]:
    lengths = [
        "3", " 3 ", "03", "0000000000000000000000003", "+3", "-3", "3.0", "0x3", "3 3", "3,3",
        "3, 3", "", " ", "three", "\xb3", "\xb2", "1e0", "3;", "\t3", "3\t", "18446744073709551619",
        "9223372036854775808", "99999999999999999999999999", "-0", "0", "00", "2", "1_0",
    ]  # fmt: skip
    codings = [
        "chunked", "Chunked", "CHUNKED", " chunked ", "chunked,", ",chunked", "chunked, chunked",
        "identity", "identity, chunked", "chunked, identity", "gzip", "gzip, chunked",
        "chunked, gzip", "deflate, chunked", "compress,chunked", "x-chunked", "chunked-x",
        "chunked;q=1", "\x0bchunked", "chunk", "", "xchunked", "chunked\x00", "br, chunked",
        "'chunked'", '"chunked"', "chunked chunked", "cHuNkEd", "chunked\r\n ", "\tchunked\t",
    ]  # fmt: skip
    framing = {
        **{f"length {text!r}": post(b"abc", f"Content-Length: {text}") for text in lengths},
        **{f"coding {text!r}": post(CHUNKS, f"Transfer-Encoding: {text}") for text in codings},
    }
    return framing | {
        "length twice": post(b"abc", "Content-Length: 3", "Content-Length: 3"),
        "length twice, differing": post(b"abc", "Content-Length: 3", "Content-Length: 0"),
        "length and coding": post(CHUNKS, "Content-Length: 3", "Transfer-Encoding: chunked"),
        "coding and length": post(CHUNKS, "Transfer-Encoding: chunked", "Content-Length: 30"),
        "length and odd coding": post(b"abc", "Content-Length: 3", "Transfer-Encoding: xchunked"),
        "length and empty coding": post(b"abc", "Content-Length: 3", "Transfer-Encoding:"),
        "length and coding before a colon": post(
            b"abc", "Content-Length: 3", "Transfer-Encoding : chunked"
        ),
        "length and folded coding": post(
            b"abc", "Content-Length: 3", "Transfer-Encoding:\r\n chunked"
        ),
        "length and coding with an underscore": post(
            b"abc", "Content-Length: 3", "Transfer_Encoding: chunked"
        ),
        "coding twice": post(CHUNKS, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        "coding twice, differing": post(
            CHUNKS, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"
        ),
        "coding in two headers": post(
            CHUNKS, "Transfer-Encoding: gzip", "Transfer-Encoding: chunked"
        ),
        "coding in HTTP/1.0": post(CHUNKS, "Transfer-Encoding: chunked", version="HTTP/1.0"),
        "length in HTTP/1.0": post(b"abc", "Content-Length: 3", version="HTTP/1.0"),
        "length of many digits": post(b"abc", "Content-Length: " + "0" * 4_999 + "3"),
        "length of a GET": head("GET /x HTTP/1.1", HOST, "Content-Length: 3") + b"abc",
        "length of a HEAD": head("HEAD /x HTTP/1.1", HOST, "Content-Length: 3") + b"abc",
        "length and a request inside": post(FOLLOW, f"Content-Length: {len(FOLLOW)}"),
        "length and a request half inside": post(FOLLOW, "Content-Length: 10"),
        "length and too little": post(b"ab", "Content-Length: 3000"),
        "length expecting": post(b"abc", "Content-Length: 3", "Expect: 100-continue"),
        "coding expecting": post(CHUNKS, "Transfer-Encoding: chunked", "Expect: 100-continue"),
        "length of 10,000": post(b"x" * 10_000, "Content-Length: 10000"),
        "length of 200,000": post(b"x" * 200_000, "Content-Length: 200000"),
        "length unread": post(b"x" * 9_000, "Content-Length: 9000", target="/unread"),
        "length half read": post(b"x" * 9_000, "Content-Length: 9000", target="/part"),
        "length by lines": post(b"a\nbc\n\nd", "Content-Length: 7", target="/lines"),
        "length listed": post(b"a\nbc\n\nd", "Content-Length: 7", target="/list"),
        "length in parts": post(b"a\nbc\n\nd", "Content-Length: 7", target="/parts"),
        "length closing": post(b"abc", "Content-Length: 3", "Connection: close"),
        "length closing unread": post(
            b"abc", "Content-Length: 3", "Connection: close", target="/unread"
        ),
        "coding unread": post(CHUNKS, "Transfer-Encoding: chunked", target="/unread"),
        "coding half read": post(CHUNKS, "Transfer-Encoding: chunked", target="/part"),
        "coding by lines": post(
            b"3\r\na\nb\r\n2\r\nc\n\r\n0\r\n\r\n", "Transfer-Encoding: chunked", target="/lines"
        ),
    }


def _chunks() -> dict[str, bytes]:
    bodies = {
        "none": b"0\r\n\r\n",
        "zeros": b"3\r\nabc\r\n000\r\n\r\n",
        "upper and lower": b"a\r\n0123456789\r\nB\r\n01234567890\r\n0\r\n\r\n",
        "large": b"2710\r\n" + b"x" * 10_000 + b"\r\n0\r\n\r\n",
        "leading zeros": b"00003\r\nabc\r\n0\r\n\r\n",
        "0x": b"0x3\r\nabc\r\n0\r\n\r\n",
        "plus": b"+3\r\nabc\r\n0\r\n\r\n",
        "minus": b"-3\r\nabc\r\n0\r\n\r\n",
        "underscore": b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
        "blank before": b" 3\r\nabc\r\n0\r\n\r\n",
        "blank after": b"3 \r\nabc\r\n0\r\n\r\n",
        "blank before an extension": b"3 ;a\r\nabc\r\n0\r\n\r\n",
        "not a number": b"xyz\r\nabc\r\n0\r\n\r\n",
        "an empty size": b"\r\nabc\r\n0\r\n\r\n",
        "huge": b"ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "longer than huge": b"1" + b"0" * 40 + b"\r\nabc\r\n0\r\n\r\n",
        "a long size line": b"0" * 9_000 + b"3\r\nabc\r\n0\r\n\r\n",
        "an extension": b'3;a=b;c="d e"\r\nabc\r\n0\r\n\r\n',
        "an empty extension": b"3;\r\nabc\r\n0\r\n\r\n",
        "an extension with CR": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
        "an extension with LF": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        "an open quote": b'3;a="b\r\nabc\r\n0\r\n\r\n',
        "an extension of the last": b"3\r\nabc\r\n0;a=b\r\n\r\n",
        "LF after the size": b"3\nabc\r\n0\r\n\r\n",
        "LF after the chunk": b"3\r\nabc\n0\r\n\r\n",
        "nothing after the chunk": b"3\r\nabc0\r\n\r\n",
        "too short": b"4\r\nabc\r\n0\r\n\r\n",
        "too long": b"2\r\nabc\r\n0\r\n\r\n",
        "LF at the end": b"3\r\nabc\r\n0\r\n\n",
        "LF LF at the end": b"3\r\nabc\r\n0\n\n",
        "no end": b"3\r\nabc\r\n0\r\n",
        "no last chunk": b"3\r\nabc\r\n",
        "cut": b"3\r\nab",
        "trailers": b"3\r\nabc\r\n0\r\nX: 1\r\nY: 2\r\n\r\n",
        "a trailer without a colon": b"3\r\nabc\r\n0\r\nX\r\n\r\n",
        "a trailer with LF": b"3\r\nabc\r\n0\r\nX: 1\n\r\n\r\n",
        "a folded trailer": b"3\r\nabc\r\n0\r\nX: 1\r\n y\r\n\r\n",
        "a forbidden trailer": b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n",
        "a host as a trailer": b"3\r\nabc\r\n0\r\nHost: evil\r\n\r\n",
        "an underscore in a trailer": b"3\r\nabc\r\n0\r\nX_Y: 1\r\n\r\n",
        "a request as a trailer": b"3\r\nabc\r\n0\r\nGET /evil HTTP/1.1\r\n\r\n",
        "a request inside": b"2b\r\n" + FOLLOW + b"\r\n0\r\n\r\n",
    }
    return {
        f"chunks {target}: {name}": post(body, "Transfer-Encoding: chunked", target=target)
        for name, body in bodies.items()
        for target in ("/x", "/unread", "/swallow")
    }


def _several() -> dict[str, bytes]:
    """Several requests in one piece; each of the others is followed by one as well."""
    return {
        "several GETs": get() * 5,
        "several POSTs": post(b"abc", "Content-Length: 3") * 3,
        "several, chunked": post(CHUNKS, "Transfer-Encoding: chunked") * 3,
        "several, mixed": get() + post(b"abc", "Content-Length: 3") + get(),
        "several, a blank line between": post(b"abc", "Content-Length: 3") + b"\r\n" + get(),
        "several, the second malformed": get() + b"GET / HTTP/9\r\n\r\n" + get(),
        "several, the second unusual": get() + head("TRACE /t HTTP/1.1", HOST) + get(),
        "several, the second closes": get() + get("Connection: close") + get(),
        "several, the second expects": get()
        + post(b"abc", "Content-Length: 3", "Expect: 100-continue")
        + get(),
        "several, folded between": get() + get("A: b\r\n c") + get(),
        "several, unread between": get()
        + post(b"x" * 5_000, "Content-Length: 5000", target="/unread")
        + get(),
        "several, odd body between": get()
        + head("TRACE /t HTTP/1.1", HOST, "Content-Length: 3")
        + b"abc"
        + get(),
    }


def _responses() -> dict[str, bytes]:
    """The test application answers as the target says."""
    kinds = (
        "204", "304", "205", "404", "no-length", "parts", "generator", "incomplete", "long",
        "empty",
        "nothing", "hop", "server", "upgrade", "space", "latin", "write", "twice", "bad-status",
        "bad-name", "bad-value", "text", "error", "late-error", "stop", "not-a-string", "file",
        "file-length", "file-like", "hints", "oserror", "no-start", "close-me", "100",
        "two-lengths", "bad-length", "unicode", "replaced", "exc-late",
    )  # fmt: skip
    made = {}
    for kind in kinds:
        for method in ("GET", "HEAD", "POST"):
            line = f"{method} /respond/{kind} HTTP/1.1"
            made[f"respond {method} {kind}"] = head(line, HOST)
        made[f"respond 1.0 {kind}"] = head(f"GET /respond/{kind} HTTP/1.0", HOST)
        made[f"respond 1.0 keep {kind}"] = head(
            f"GET /respond/{kind} HTTP/1.0", HOST, "Connection: keep-alive"
        )
        made[f"respond fallback {kind}"] = head(
            f"GET /respond/{kind} HTTP/1.1", HOST, "Expect: 100-continue"
        )
    return made


CORPUS: dict[str, bytes] = {
    **_lines(),
    **_line_ends(),
    **_headers(),
    **_bodies(),
    **_chunks(),
    **_several(),
}
RESPONSES = _responses()
