#!/usr/bin/env python3
"""Kills, stops and terminates processes of supervised trainings at random moments.

    scripts/fault-campaign.py PROGRAM [--faults N] [--seed S] [--jobs J]

Each round trains a small GPT under `espalier supervise` on two ranks while faults arrive: SIGKILL,
SIGSTOP or SIGTERM, to a rank, to all ranks, or to mpirun. J rounds (2) run at the same time, because
a round mostly waits: for timeouts and for the start of MPI. Checks for each round:

  - the run finishes, and its last checkpoint has the bits of an undisturbed run
  - every step stands once in metrics.jsonl
  - no process is left

Prints a line per round and, at the end or when it is interrupted, the number of faults and the
longest recovery by signal: seconds from a fault that ended an attempt to the next step. Exit code 1
after a failed check.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 240
TIMEOUT = 2  # s, parallel.timeout_s
STALL = 8  # s, after which the supervisor ends an attempt that writes nothing
PAUSE = 3  # s, after which a stopped launcher is continued
FAULTS_A_ROUND = 30

CONFIG = f"""
[model]
layers = 2
heads = 2
width = 32
context = 32
[data]
kind = "bytes"
train = ["text.txt"]
[train]
steps = {STEPS}
global_batch = 8
eval_every = 40
eval_batches = 1
checkpoint_every = 4
keep_checkpoints = 3
[pruning]
method = "magnitude"
sparsity = 0.8
at_step = 30
[sparse]
storage = "sparse"  # "auto" chooses by timing: other storages have other bits
[parallel]
timeout_s = {TIMEOUT}
check_every = 4
[run]
out = "run"
threads = 1
trace = false
"""

WAYS = {
    "data parallel": ["sparse.storage=dense"],
    "zero": ["parallel.zero=1", "train.dtype=bf16"],
    "pipeline": ["parallel.pipeline=2", "train.micro_batch=2", "sparse.storage=expanded"],
    "codec": ["parallel.codec=maxmin:4", "parallel.error_feedback=true"],
    "8 bits": ["optimizer.state_bits=8", "train.dtype=bf16"],
    "rigl": ["pruning.method=rigl", "pruning.at_step=0", "pruning.every=10"],
}


def children(pid):
    """All descendants of a process, with their command lines."""
    found = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return found
    for task in tasks:
        try:
            direct = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, direct):
            try:
                line = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                line = [b""]
            found.append((child, [word.decode() for word in line]))
            found += children(child)
    return found


def processes(pid, program):
    ranks, launchers = [], []
    for child, line in children(pid):
        if line[0] == program and line[1:2] == ["train"]:
            ranks.append(child)
        elif os.path.basename(line[0]) in ("mpirun", "orterun"):
            launchers.append(child)
    return ranks, launchers


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def steps_in(folder):
    try:
        return (folder / "run/metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def starts_in(folder):
    try:
        return (folder / "run/supervise.jsonl").read_bytes().count(b'"event":"start"')
    except FileNotFoundError:
        return 0


def digest(folder):
    file = folder / f"run/checkpoints/step-{STEPS:06}.h5"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def processes_in(folder):
    """Processes that work in a folder: launchers, ranks and supervisors of its run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(str(folder)):
                    found.append(int(entry.name))
            except OSError:  # it has ended
                pass
    return found


def resumed(command):
    return command if "--resume" in command else [*command, "--resume", "auto"]


class Interrupted(Exception):
    pass


class Totals:
    """Counts of all jobs. `longest`: recovery in seconds, by signal and target."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.lock = threading.Lock()
        self.stop = False
        self.faults = self.rounds = self.failed = self.restarts = 0
        self.longest = {}

    def done(self):
        return self.stop or self.faults >= self.wanted

    def recovered(self, cause, seconds):
        with self.lock:
            self.restarts += 1
            self.longest[cause] = max(self.longest.get(cause, 0.0), seconds)

    def report(self):
        longest = ", ".join(f"{cause} {seconds:.1f} s" for cause, seconds in sorted(self.longest.items()))
        print(f"{self.faults} faults in {self.rounds} rounds, {self.restarts} restarts, {self.failed} rounds failed; "
              f"longest recovery after {longest or 'no signal'} (timeout {TIMEOUT} s, stall {STALL} s)", flush=True)


class Job:
    """Rounds one after another; several jobs run at the same time."""

    def __init__(self, program, seed, totals, digests):
        self.program = program
        self.random = random.Random(seed)
        self.totals = totals
        self.digests = digests  # of undisturbed runs, by way

    def command(self, settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        return [str(ROOT / "scripts/mpirun.sh"), "2", self.program, "train", "c.toml", *sets]

    def fault(self, supervisor, folder):
        """Sends one signal and waits until the run goes on, or has ended. Returns the number of signals."""
        ranks, launchers = processes(supervisor.pid, self.program)
        target = self.random.choices(["rank", "all", "mpirun"], [6, 2, 2])[0]
        number = self.random.choices([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], [6, 2, 2])[0]
        if not ranks or not launchers:
            return 0
        pids = {"rank": [self.random.choice(ranks)], "all": ranks, "mpirun": launchers}[target]
        attempts = starts_in(folder)
        begin = time.monotonic()
        lines = steps_in(folder)
        send(pids, number)
        while supervisor.poll() is None and time.monotonic() - begin < 60 and not self.totals.stop:
            restarted = starts_in(folder) > attempts
            now = steps_in(folder)
            if restarted and now > lines:
                self.totals.recovered(f"{number.name} of {target}", time.monotonic() - begin)
                break
            lines = min(lines, now) if restarted else max(lines, now)
            if target == "mpirun" and number == signal.SIGSTOP and time.monotonic() - begin > PAUSE:
                send(pids, signal.SIGCONT)  # ranks do not need the launcher until they end
                break
            time.sleep(0.005)
        return 1

    def prepare(self, folder):
        (folder / "c.toml").write_text(CONFIG)
        words = "a tree pruned flat grows along the wall and bears sweet fruit .".split()
        mixed = random.Random(1)
        (folder / "text.txt").write_text(" ".join(mixed.choice(words) for _ in range(4000)))

    def undisturbed(self, way, folder):
        """Digest of the last checkpoint of a run without faults."""
        if way not in self.digests:
            subprocess.run(self.command(WAYS[way]), cwd=folder, check=True, timeout=300,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self.digests[way] = digest(folder)
            shutil.rmtree(folder / "run")
        return self.digests[way]

    def disturb(self, command, folder, log):
        """Runs the supervisor to its end under faults; returns their number and an error or None."""
        faults = 0
        deadline = time.monotonic() + 900
        while True:
            supervisor = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            while supervisor.poll() is None:
                pause = time.monotonic() + self.random.uniform(0.05, 1.2)
                while supervisor.poll() is None and time.monotonic() < pause:
                    time.sleep(0.005)
                if supervisor.poll() is None and faults < FAULTS_A_ROUND:
                    sent = self.fault(supervisor, folder)
                    faults += sent
                    with self.totals.lock:
                        self.totals.faults += sent
                if self.totals.stop:
                    raise Interrupted
                if time.monotonic() > deadline:
                    return faults, f"hangs: {children(supervisor.pid)}"
            if supervisor.returncode != 4:  # else SIGTERM stopped it: start it again, as a user would
                break
            command = resumed(command)
        return faults, f"exit code {supervisor.returncode}" if supervisor.returncode != 0 else None

    def check(self, way, folder, wanted):
        """What is wrong with a finished run; None: nothing."""
        time.sleep(0.1)
        if left := processes_in(folder):
            return f"processes left: {left}"
        if digest(folder) != wanted:
            return "other bits than an undisturbed run"
        lines = (folder / "run/metrics.jsonl").read_text().splitlines()
        if [json.loads(line)["step"] for line in lines] != list(range(1, STEPS + 1)):
            return "steps are missing or stand twice in metrics.jsonl"
        return None

    def round(self, way):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="espalier-faults-"))
        error = "the campaign itself failed"
        try:
            self.prepare(folder)
            wanted = self.undisturbed(way, folder)
            command = [self.program, "supervise", "--pause", "0.05", "--stall", str(STALL), "--attempts", "20",
                       "--", *self.command(WAYS[way])]
            with open(folder / "log", "wb") as log:
                faults, error = self.disturb(command, folder, log)
            error = error or self.check(way, folder, wanted)
        except subprocess.SubprocessError as failure:
            error = f"{failure}: {getattr(failure, 'stderr', b'')}"
        except Interrupted:
            error = None
            return
        finally:
            send(processes_in(folder), signal.SIGKILL)
            if not error:
                shutil.rmtree(folder, ignore_errors=True)
        with self.totals.lock:
            self.totals.rounds += 1
            self.totals.failed += 1 if error else 0
            print(f"{way}: FAILED: {error}; see {folder}" if error else f"{way}: {faults} faults, equal bits", flush=True)

    def run(self):
        ways = list(WAYS)
        while not self.totals.done():
            self.round(self.random.choice(ways))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    totals = Totals(arguments.faults)

    def stop(*_):
        totals.stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    digests = {}
    jobs = [Job(os.path.abspath(arguments.program), arguments.seed + 1000 * job, totals, digests)
            for job in range(arguments.jobs)]
    threads = [threading.Thread(target=job.run) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals.report()
    sys.exit(1 if totals.failed else 0)


if __name__ == "__main__":
    main()
