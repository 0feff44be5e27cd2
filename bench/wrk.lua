-- Arguments: the method, the status of a right answer, the body.
-- Prints one line that bench/wrk.py reads; latencies are in microseconds.
wrong = -1 -- not counted here
local only

-- It and done() have another state than the thread, of which there is one.
function setup(thread)
  only = thread
end

function init(args)
  wrk.method, wrk.body = args[1], args[3]
  local right = tonumber(args[2])
  -- wrk itself counts statuses above 399. A function that is called for each answer costs it time.
  if right ~= 200 then
    wrong = 0
    response = function(status)
      if status ~= right then wrong = wrong + 1 end
    end
  end
end

function done(summary, latency)
  local errors, counted = summary.errors, only:get("wrong")
  io.write(string.format("%d %d %d %d %d %d %d\n",
    summary.requests, summary.duration, counted < 0 and errors.status or counted,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
