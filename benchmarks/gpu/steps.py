#!/usr/bin/env python3
"""Runs the plan (plan.py): each step within its own limit and all within TOTAL_S seconds; what fails is recorded
and the rest goes on. Writes RESULTS/results.jsonl (a line a step), summary.md and logs.txt.

    steps.py BUNDLE RESULTS
"""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import plan
import summary

LEAST = 2.0  # seconds; with less left a step is not begun
TAIL = 20_000  # characters of a log that are kept


class Bundle:
    """Where the programs are, what the machine has, and how a command is run."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = pathlib.Path(folder).resolve(), pathlib.Path(scratch)

    def command(self, program, *arguments):
        """A program of the bundle, with its libraries."""
        return [str(self.folder / "with"), str(self.folder / "bin" / program), *map(str, arguments)]

    def run(self, command, limit, environment=None):
        """(exit code, None where it ran past its limit; output; seconds). Ends everything that the command started."""
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           cwd=self.scratch, start_new_session=True,
                                           env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})})
            except OSError as error:
                return 127, f"{command[0]}: {error.strerror}", 0.0
            try:
                code = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None or code is None:
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace"), time.monotonic() - begin


class DeviceMemory:
    """Bytes that a device has in use, by all processes, beyond those at the start: the most seen while it is entered.
    Asks the driver, every 50 ms; `peak` stays None where there is none."""

    def __init__(self, driver="libcuda.so.1"):
        self.peak, self.ended = None, threading.Event()
        try:
            self.cuda = ctypes.CDLL(driver)
            context = ctypes.c_void_p()
            answers = [self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
            self.context = context if answers == [0, 0] else None
        except OSError:
            self.context = None

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.cuCtxSetCurrent(self.context)
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def watch(self, start):
        while not self.ended.wait(0.05):
            self.peak = max(self.peak, self.used() - start)

    def __enter__(self):
        if self.context:
            self.peak = 0
            self.thread = threading.Thread(target=self.watch, args=(self.used(),))
            self.thread.start()
        return self

    def __exit__(self, *_):
        if self.context:
            self.ended.set()
            self.thread.join()


def perform(step, bundle, limit, state):
    """One line of the results, and the log."""
    line = {"step": step.name, "what": step.what, "limit_s": round(limit, 1)}
    if step.device and state["no_device"]:
        return {**line, "status": "skipped", "why": state["no_device"], "seconds": 0}, ""
    missing = step.missing(bundle)
    if missing:
        return {**line, "status": "skipped", "why": missing, "seconds": 0}, ""
    if limit < LEAST:
        return {**line, "status": "skipped", "why": "no time was left", "seconds": 0}, ""
    try:
        step.prepare(bundle)
        with DeviceMemory() as memory:
            code, log, seconds = bundle.run(step.command(bundle), limit, step.environment)
        line["seconds"] = round(seconds, 2)
        line.update(step.read(bundle, code, log, state))
        if memory.peak is not None:
            line["device_bytes_peak"] = memory.peak
    except Exception as error:  # what a step wrote is not what its reader expects
        return {"seconds": 0, **line, "status": "failed", "why": f"{type(error).__name__}: {error}"}, ""
    if code is None:
        line.update(status="timed out", why=f"stopped after {limit:.0f} s")
    elif "status" not in line:
        line["status"] = "passed" if code == 0 else "failed"
        if code != 0:
            line["why"] = f"exit code {code}: {last_line(log)}"
    return line, log


def last_line(log):
    lines = [text for text in log.splitlines() if text.strip()]
    return lines[-1][:300] if lines else "no output"


def main():
    folder, results = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + float(os.environ.get("TOTAL_S", "530"))
    wanted = os.environ.get("STEPS", "").split()
    steps = plan.steps()
    unknown = set(wanted) - {step.name for step in steps}
    if unknown:
        raise SystemExit(f"no such steps: {', '.join(sorted(unknown))}; there are: {' '.join(s.name for s in steps)}")
    scratch = tempfile.mkdtemp(prefix="gpu-")
    lines, state = [], {"no_device": "the first step did not look for a device"}
    try:
        bundle = Bundle(folder, scratch)
        with open(results / "results.jsonl", "w") as out, open(results / "logs.txt", "w") as logs:
            for step in steps:
                if wanted and step.name not in wanted and step.name != "facts":
                    continue
                line, log = perform(step, bundle, min(step.limit, end - time.monotonic()), state)
                lines.append(line)
                out.write(json.dumps(line) + "\n")
                out.flush()
                logs.write(f"===== {step.name}: {line['status']}\n{log[-TAIL:]}\n")
                logs.flush()
                print(f"{step.name:24} {line['status']:10} {line['seconds']:7.1f} s  {line.get('why', '')}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = summary.summary(lines, (bundle.folder / "version").read_text().strip())
    (results / "summary.md").write_text(text)
    print(text)
    sys.exit(1 if any(line["status"] in ("failed", "timed out") for line in lines) else 0)


if __name__ == "__main__":
    main()
