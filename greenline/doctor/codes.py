"""
The kinds of findings, in the order of their codes.

GL1xx: its dependencies. GL2xx: the code. GL3xx: its import. GL4xx: what
happens when it runs. A code keeps its meaning for ever.
"""

from greenline.deploy.findings import Level
from greenline.doctor.findings import Code

ERROR, WARNING, REMARK = Level.ERROR, Level.WARNING, Level.REMARK

BLOCKING_DEPENDENCY = Code(
    "GL101", ERROR, "a dependency that blocks the hub",
    "While one request waits for it, the worker serves no other one.",
    "Use what the line names, or run it in threads by GREENLINE_OFFLOAD=package.module:function.",
)  # fmt: skip
BREAKING_DEPENDENCY = Code(
    "GL102", WARNING, "a dependency that breaks when it is interrupted",
    "After calls that REQUEST_TIMEOUT has interrupted, later ones fail or wait for ever.",
    "Give its calls a timeout of their own that is below REQUEST_TIMEOUT.",
)  # fmt: skip
UNPREPARED_DEPENDENCY = Code(
    "GL103", ERROR, "a dependency that is imported too early or too late",
    "It yields only where it is imported after the patching, or only before it; else it blocks.",
    "Import it in the application and not in gunicorn.conf.py, or as the line says.",
)  # fmt: skip
UNKNOWN_DEPENDENCY = Code(
    "GL104", REMARK, "C extensions without a verdict",
    "What waits in C cannot be patched, and the doctor's table does not have these libraries.",
    "Watch the worker's log in a test under load: it names what blocks the hub.",
)  # fmt: skip
OLDER_DEPENDENCY = Code(
    "GL105", REMARK, "an older version of a dependency than was tried",
    "The verdict of the doctor's table is of another version.",
    "Update it, or watch the worker's log in a test under load.",
)  # fmt: skip

SHARED_LOOP = Code(
    "GL201", ERROR, "an event loop that requests share",
    "Two requests at once cannot run one loop: the second one gets a RuntimeError.",
    "Call asyncio.run() where the coroutine is needed; each request may have a loop of its own.",
)  # fmt: skip
CURRENT_LOOP = Code(
    "GL202", WARNING, "asyncio.get_event_loop() in a request",
    "Outside of the main thread there is none, here as in a thread: it raises a RuntimeError.",
    "Call asyncio.run() instead.",
)  # fmt: skip
SHARED_CONNECTION = Code(
    "GL203", WARNING, "one connection for all requests",
    "It is made once, and requests wait for each other to use it, in one transaction.",
    "Connect in the request, and let GREENLINE_POOL=1 make that a checkout from a pool.",
)  # fmt: skip
MADE_BEFORE_FORK = Code(
    "GL204", ERROR, "made at import, which preload_app does before the fork",
    "The workers share its socket, or have its object without the thread that works for it.",
    "Make it at the first use, or do without preload_app.",
)  # fmt: skip
BOUND_BEFORE_PATCHING = Code(
    "GL205", ERROR, "an unpatched name, bound before the worker is patched",
    "gunicorn reads this file before it patches the worker, and the name blocks the hub for good.",
    "Import the module and not the name, or import it in the application.",
)  # fmt: skip
PRELOADED = Code(
    "GL206", WARNING, "preload_app",
    "The application is imported before the worker is patched: not all of it can be exchanged.",
    "Leave preload_app out.",
)  # fmt: skip
PATCHED_LATE = Code(
    "GL207", REMARK, "the standard library is patched after imports",
    "Names that were imported before stay unpatched, unless a worker has patched first.",
    "Leave the call out where a worker imports the file; in a script of your own, move it up.",
)  # fmt: skip
ALARM = Code(
    "GL208", ERROR, "signal.alarm() or setitimer() in a request",
    "There is one timer for each process: it interrupts whichever request runs then.",
    "Set REQUEST_TIMEOUT, or use gevent.Timeout for a part of a request.",
)  # fmt: skip
SIGNAL_IN_REQUEST = Code(
    "GL209", WARNING, "signal.signal() in a request",
    "A request is not in the main thread, here as with threads: it raises a ValueError.",
    "Set the handler at import; to limit a time, REQUEST_TIMEOUT or gevent.Timeout.",
)  # fmt: skip
FORKS = Code(
    "GL210", REMARK, "a request starts processes",
    "It works, and each one costs a fork of the whole worker.",
    "Hand long work to a queue.",
)  # fmt: skip
SWALLOWS = Code(
    "GL211", WARNING, "an except clause that swallows the interruption of a request",
    "A request whose deadline has passed is interrupted by a BaseException: here it continues.",
    "Catch Exception, or raise again.",
)  # fmt: skip
SPINS = Code(
    "GL212", ERROR, "a loop that waits without yielding",
    "It keeps the processor until its condition changes, which no other greenlet can do.",
    "Wait for an Event or a Condition, or sleep in the loop.",
)  # fmt: skip
NO_TIMEOUT = Code(
    "GL213", WARNING, "a call to another service without a timeout",
    "A service that does not answer holds the request, and a place in the concurrency limit.",
    "Give it a timeout, and set REQUEST_TIMEOUT.",
)  # fmt: skip
HELD_ACROSS_CALL = Code(
    "GL214", WARNING, "a transaction is open during a call to another service",
    "The connection is held for as long as the service takes, and the others wait for one.",
    "Call the service before the transaction begins, or after it has ended.",
)  # fmt: skip
SLEEPS_IN_TRANSACTION = Code(
    "GL215", WARNING, "a transaction is open during a sleep",
    "The connection and the locks of its rows are held meanwhile.",
    "Sleep outside of the transaction.",
)  # fmt: skip
SESSION_STATE = Code(
    "GL216", WARNING, "session state, which a pgbouncer loses between transactions",
    "Each transaction may have another session of the server.",
    "Use SET LOCAL or a transaction's advisory lock, or connect without the pgbouncer.",
)  # fmt: skip
BY_THREAD_ID = Code(
    "GL217", WARNING, "a cache with the thread's id as its key",
    "The ids of ended greenlets come again, and the entries of the ended ones stay.",
    "Use threading.local(), which belongs to a handler greenlet and ends with it.",
)  # fmt: skip
NOT_EMULATED = Code(
    "GL218", ERROR, "COPY or a large object on what psycopg2.connect() has not made",
    "psycopg2 refuses both on a green worker, which provides them on what connect() makes.",
    "Use psycopg2.connect() with connection_factory, and its cursor() with cursor_factory.",
)  # fmt: skip
OTHER_HUB = Code(
    "GL219", WARNING, "eventlet patches the standard library",
    "It patches for a hub of its own, in which a worker with gevent's hub does not start.",
    "Leave eventlet.monkey_patch() out: the worker patches before it imports the application.",
)  # fmt: skip

NO_IMPORT = Code(
    "GL301", ERROR, "the application cannot be imported, or is no WSGI application",
    "A worker ends at its start, or answers no request.",
    "Start gunicorn in the application's folder and virtual environment, and mend what is named.",
)  # fmt: skip
IMPORTED_EARLY = Code(
    "GL302", ERROR, "imported before the worker is patched",
    "It is built on an unpatched class, or keeps an unpatched function, which block the hub.",
    "Import it in the application, not in gunicorn.conf.py or what that imports.",
)  # fmt: skip
CONNECTS_AT_IMPORT = Code(
    "GL303", WARNING, "a connection that the import makes",
    "While that server is away no worker starts, and a reload fails.",
    "Connect at the first use, in each request or by a pool: one connection serves one at a time.",
)  # fmt: skip
STARTS_AT_IMPORT = Code(
    "GL304", REMARK, "a thread, a process, a listener or an open file that the import leaves",
    "Each worker has one of its own, and each new one begins again.",
    "Start or open it in one process of its own if it is meant to exist once.",
)  # fmt: skip
SLOW_IMPORT = Code(
    "GL305", REMARK, "an import that takes long",
    "A worker serves nothing before its end, and a killed one is replaced that much later.",
    "python -X importtime names the modules.",
)  # fmt: skip
# Its level, why and fix are those of check-deploy's finding.
DEPLOYMENT = Code(
    "GL306", ERROR, "a deployment that contradicts itself",
    "nginx, gunicorn and the environment do not fit each other, and answers are lost.",
    "greenline check-deploy prints the corrected lines.",
)  # fmt: skip
UNCHECKED_DEPLOYMENT = Code(
    "GL307", REMARK, "a deployment that could not be checked",
    "check-deploy reads gunicorn.conf.py, deploy/nginx.conf and the environment of the service.",
    "Mend what is named, and run it with the environment of the service.",
)  # fmt: skip

BLOCKS = Code(
    "GL401", ERROR, "a wait that blocks the hub",
    "It waits below Python, and no other request of its worker runs meanwhile.",
    "Take a library that waits in Python, or GREENLINE_OFFLOAD=package.module:function.",
)  # fmt: skip
COMPUTES = Code(
    "GL402", REMARK, "computing that keeps the hub",
    "The others of its worker have less of the processor meanwhile, and none during a call into C.",
    "Have a worker for each core; hand what takes seconds to a queue.",
)  # fmt: skip
OUTSIDE_OF_A_POOL = Code(
    "GL403", WARNING, "a connection in a request, outside of a pool",
    "Each request connects anew, and all of them together may exceed max_connections.",
    "Set GREENLINE_POOL=1 for psycopg2 and pymongo; make other clients once, with a pool.",
)  # fmt: skip
LEFT_OPEN = Code(
    "GL404", WARNING, "a connection that is open after its request",
    "It occupies a place at the server until the garbage collector finds it.",
    "Close it in the request, by contextlib.closing() for instance.",
)  # fmt: skip
IDLE_IN_TRANSACTION = Code(
    "GL405", WARNING, "a transaction that is open after its request",
    "It keeps the locks of its rows, and a connection that others wait for.",
    "Commit or roll back in the request: a with block of the connection does it.",
)  # fmt: skip
MANY_ROUND_TRIPS = Code(
    "GL406", WARNING, "many round trips to databases in one request",
    "Each waits for the server, with a connection that others wait for.",
    "Read in one statement what a loop reads row by row.",
)  # fmt: skip
LEAVES_GREENLETS = Code(
    "GL407", REMARK, "threads or greenlets that requests leave behind",
    "Each keeps its memory, and what it holds.",
    "Wait for their end in the request, or hand the work to a queue.",
)  # fmt: skip
GROWS = Code(
    "GL408", WARNING, "memory that grows with each request",
    "The worker is ended by the system at some time, with the requests in progress.",
    "Find what is kept with tracemalloc; max_requests replaces a worker in time.",
)  # fmt: skip
NO_DEADLINE = Code(
    "GL409", REMARK, "a long request without a deadline",
    "gunicorn's timeout does not end it: that ends a worker whose hub is blocked.",
    "Set REQUEST_TIMEOUT.",
)  # fmt: skip
FAILS = Code(
    "GL410", ERROR, "what fails on a green worker alone",
    "It succeeds without the patching, or on threads.",
    "Read its error; the other findings may name the cause.",
)  # fmt: skip
NO_RUN = Code(
    "GL411", ERROR, "the application could not be run",
    "What happens when it runs is not known.",
    "Start it by hand in this folder and with these variables, and mend what is named.",
)  # fmt: skip

CODES = tuple(each for each in list(globals().values()) if isinstance(each, Code))
BY_CODE = {each.code: each for each in CODES}
