-- One line that bench/wrk.py reads; latencies are in microseconds.
done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format("%d %d %d %d %d %d %d\n",
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
