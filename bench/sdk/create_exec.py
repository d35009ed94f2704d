"""One sandbox and its first command for each line that comes, by the SDK as it is: says how many nanoseconds both took."""

import sys
import time

from e2b import Sandbox

for _ in sys.stdin:
    begun = time.perf_counter_ns()
    sandbox = Sandbox.create(timeout=60)
    done = sandbox.commands.run("true")
    took = time.perf_counter_ns() - begun
    assert done.exit_code == 0
    sandbox.kill()
    print(took, flush=True)
