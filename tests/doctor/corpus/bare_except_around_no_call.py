def shown(value):
    try:
        return value["name"]
    except:
        return ""
