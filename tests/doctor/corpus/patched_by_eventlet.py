import eventlet
import psycopg2

eventlet.monkey_patch()  # expect: GL207
