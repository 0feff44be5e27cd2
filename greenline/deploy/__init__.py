"""
Check nginx.conf, gunicorn.conf.py and the environment against each other (check-deploy).

Internal: applications import nothing from here.
"""
