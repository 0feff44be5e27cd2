def application(environ, start_response):
    number, steps = 27, 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    start_response("200 OK", [])
    return [str(steps).encode()]
