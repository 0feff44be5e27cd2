import eventlet

eventlet.monkey_patch()  # expect: GL219

import psycopg2
