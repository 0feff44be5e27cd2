"""Report on a worker: the access log, the error log and the counters of all workers."""
