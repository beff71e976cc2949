-- wrk's script: every request posts one body; at the end the figures are one line of JSON.
-- A line on stderr says that it begins.
-- Arguments: the body's file, then headers as "Name: value".
function init(args)
   local file = assert(io.open(args[1], "rb"))
   wrk.method = "POST"
   wrk.body = file:read("*a")
   file:close()
   for i = 2, #args do
      local name, value = args[i]:match("^(.-): (.*)$")
      wrk.headers[name] = value
   end
   io.stderr:write("ready\n")
end

function done(summary, latency, requests)
   local failed = summary.errors
   io.write(string.format(
      '{"answered": %d, "seconds": %.6f, "median_us": %.1f, "p99_us": %.1f, "refused": %d, "broken": %d}\n',
      summary.requests, summary.duration / 1e6,
      latency:percentile(50), latency:percentile(99),
      failed.status, failed.connect + failed.read + failed.write + failed.timeout))
end
