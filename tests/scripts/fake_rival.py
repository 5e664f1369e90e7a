"""A system for compare.sh without requirements. Reads its work order and writes a record of invented numbers. Its first
argument selects a fault: crash, hang, nothing (no record), short (one step too few); any other value: none."""
import argparse
import json
import sys
import time

p = argparse.ArgumentParser()
p.add_argument("what")
p.add_argument("--work", required=True)
p.add_argument("--out", required=True)
a = p.parse_args()
with open(a.work) as file:
    work = json.load(file)
if a.what == "crash":
    print("Traceback (most recent call last):\nValueError: the fake rival has fallen over", file=sys.stderr)
    sys.exit(3)
if a.what == "hang":
    print("the fake rival hangs", flush=True)
    time.sleep(600)
if a.what == "nothing":
    sys.exit(0)
steps = work["steps"] - (1 if a.what == "short" else 0)
seconds = [0.5] + [0.01] * (steps - 1)  # the first one compiles
sequences = work["global_batch"]
with open(work["windows"], "rb") as file:
    assert len(file.read()) == 8 * work["steps"] * sequences
with open(a.out, "w") as file:
    json.dump({"system": "Fake 1.0", "step_seconds": seconds, "losses": [4.0 - 0.01 * i for i in range(steps)],
               "evaluations": [[steps // 2, 4.0], [steps, 3.0]], "peak_rss": [2**20, 3 * 2**20], "device_peak": 0,
               "state_bytes": 1000, "sent_bytes": [2000] * steps, "sent_by": 2}, file)
