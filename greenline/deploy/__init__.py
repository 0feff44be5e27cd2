"""What `greenline check-deploy` reads and says: nginx.conf, gunicorn.conf.py, the environment."""
