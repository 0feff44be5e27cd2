FLASK_APP=app.commands
