#!/usr/bin/env python3
"""Runs the plan (plan.py): each step within its own limit, all within TOTAL_S seconds. A failed step is recorded, and
the rest continues. STEPS names groups and steps; without it all run, in order. Writes RESULTS/results.jsonl (a line per
step), logs.txt and summary.md after every step, so a killed call keeps the results of finished steps.

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

TAIL = 200_000  # characters of a log that are kept


class Bundle:
    """The folder of programs, the free memory of the device, and the way to run a command."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = pathlib.Path(folder).resolve(), pathlib.Path(scratch)
        self.device_free = 0  # bytes; known when the first step has found the device

    def command(self, program, *arguments):
        """A program of the bundle, with its libraries."""
        return [str(self.folder / "with"), str(self.folder / "bin" / program), *map(str, arguments)]

    def run(self, command, limit, environment=None):
        """(exit code, or None past the limit; output; seconds). Ends all processes that the command started."""
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
    """The largest number of bytes that all processes together use on a device, beyond those at the start, within a `with`
    block. Polls the driver every 50 ms in its own context (about 0.5 GiB), released at the end. `peak` stays None without
    a driver, or if `wanted` is false."""

    def __init__(self, wanted=True, driver="libcuda.so.1"):
        self.peak, self.context, self.ended = None, None, threading.Event()
        if not wanted:
            return
        try:
            self.cuda = ctypes.CDLL(driver)
            context = ctypes.c_void_p()
            answers = [self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
            self.context = context if answers == [0, 0] else None
        except OSError:
            pass

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
            self.cuda.cuCtxSetCurrent(None)
            self.cuda.cuDevicePrimaryCtxRelease_v2(0)


def perform(step, bundle, end, state):
    """(line of results, log) of a step. end: of all steps, by the monotonic clock."""
    line, log = {"step": step.name, "what": step.what, "seconds": 0}, ""
    limit = min(step.limit, end - time.monotonic())
    why = step.device and state["no_device"] or step.missing(bundle)
    if not why and limit < step.least:
        why = f"no time was left: {max(0, limit):.0f} s of the {step.least:.0f} s that it needs"
    if why:
        return {**line, "status": "skipped", "why": why}, log
    try:
        step.prepare(bundle, end)
        limit = min(step.limit, end - time.monotonic())
        line["limit_s"] = round(limit, 1)
        with DeviceMemory(step.watched) as memory:
            code, log, seconds = bundle.run(step.command(bundle), limit, step.environment)
        line["seconds"] = round(seconds, 2)
        if memory.peak is not None:
            line["device_bytes_peak"] = memory.peak
        line.update(step.read(bundle, code, log, state))
    except Exception as error:  # the output of a step is not as its reader expects
        return {**line, "status": "failed", "why": f"{type(error).__name__}: {error}"}, log
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


def chosen(wanted):
    """The steps that the names of groups and steps select, in the plan's order; without names all."""
    groups = plan.groups()
    steps = [step for group in groups.values() for step in group]
    unknown = set(wanted) - set(groups) - {step.name for step in steps} - {"facts"}
    if unknown:
        raise SystemExit(f"no such steps: {', '.join(sorted(unknown))}; there are the groups {' '.join(groups)} and "
                         f"the steps facts {' '.join(step.name for step in steps)}")
    wanted = set(wanted) | {step.name for name in wanted for step in groups.get(name, [])}
    return [plan.facts(), *(step for step in steps if not wanted or step.name in wanted)]


def main():
    folder, results = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + float(os.environ.get("TOTAL_S", "530"))
    steps = chosen(os.environ.get("STEPS", "").split())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the step's processes on the way
    scratch = tempfile.mkdtemp(prefix="gpu-")
    lines, state, text = [], {"no_device": "the first step did not look for a device"}, ""
    try:
        bundle = Bundle(folder, scratch)
        version = (bundle.folder / "version").read_text().strip()
        with open(results / "results.jsonl", "w") as out, open(results / "logs.txt", "w") as logs:
            for step in steps:
                line, log = perform(step, bundle, end, state)
                lines.append(line)
                out.write(json.dumps(line) + "\n")
                out.flush()
                logs.write(f"===== {step.name}: {line['status']}\n{log[-TAIL:]}\n")
                logs.flush()
                text = summary.summary(lines, version)
                (results / "summary.md").write_text(text)
                print(f"{step.name:24} {line['status']:10} {line['seconds']:7.1f} s  {line.get('why', '')}", flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(text)
    sys.exit(1 if any(line["status"] in ("failed", "timed out") for line in lines) else 0)


if __name__ == "__main__":
    main()
