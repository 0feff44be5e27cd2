"""What a worker reports: the access log, the error log and the counters of all workers."""
