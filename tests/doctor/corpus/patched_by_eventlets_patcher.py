from eventlet import patcher

patcher.monkey_patch(socket=True)  # expect: GL219

import psycopg2
