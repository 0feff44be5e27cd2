from decimal import Decimal


def amount(text, connection):
    try:
        return Decimal(text.split(",")[0])
    except:
        return None
    finally:
        try:
            connection.close()
        except:
            pass


def named(variable, context):
    try:
        return variable.resolve(context)
    except:
        return ""


def language(request):
    try:
        return language_from_request(request)
    except:
        return "en"
