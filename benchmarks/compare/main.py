"""compare.sh: trains the same network by Espalier, PyTorch DDP and DeepSpeed, alternating, and writes one table.

Results are kept run by run: the next call continues an interrupted comparison, and only writes the table of a complete
one. Exit code 0: every system has its numbers; 1: a system could not run or failed (the first lines of the table state
which and why), or equal systems computed different results; 2: usage; 130: interrupted.
"""
import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import statistics
import sys

import contenders
import environment
import inputs
import measuring
import page
import presets
import report
import rows
import smaller
import tuning


def options():
    p = argparse.ArgumentParser(prog="compare.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=sorted(presets.PRESETS), default="cpu-small")
    p.add_argument("--link", metavar="RATE", help="two hosts of one machine, joined by a link of 1gbit, 200mbit, …, none")
    p.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each system (3)")
    p.add_argument("--text", metavar="FILE", help="to train on; NAME.bin: uint16 tokens (data/text.txt, made if missing)")
    p.add_argument("--out", metavar="DIR", help="where results go (runs/compare-PRESET[-RATE])")
    p.add_argument("--only", metavar="REGEX", default="", help="systems whose names match; --list shows them")
    p.add_argument("--rival", action="append", default=[], metavar="NAME=COMMAND", help="a system of your own")
    p.add_argument("--list", action="store_true", help="show presets and systems, and stop")
    for name, kind in (("steps", int), ("ranks", int), ("target", float), ("limit-s", int)):
        p.add_argument("--" + name, type=kind, help="instead of the preset's")
    p.add_argument("--lr", type=float, metavar="RATE", help="one learning rate for all systems, instead of a sweep")
    p.add_argument("--dtype", choices=["fp32", "bf16"], help="instead of the preset's")
    a = p.parse_args()
    try:
        a.contenders = [c for c in contenders.CONTENDERS + [contenders.own(text) for text in a.rival]
                        if re.search(a.only, c.name)]
    except (ValueError, re.error) as problem:
        p.error(str(problem))
    if not a.contenders:
        p.error(f"--only {a.only}: no system has such a name; --list shows them")
    if a.lr is not None and not 0 < a.lr < 1:
        p.error("--lr takes a learning rate between 0 and 1")
    if a.seeds < 1 or (a.link and not re.fullmatch(r"none|[0-9]+[kmg]bit", a.link)):
        p.error("--seeds takes a number from 1 on, --link a rate such as 1gbit")
    a.settings = dict(presets.PRESETS[a.preset])
    for key in ("steps", "ranks", "target", "limit_s", "dtype"):
        if getattr(a, key) is not None:
            a.settings[key] = getattr(a, key)
    ranks, batch = a.settings["ranks"], a.settings["global_batch"]
    if a.settings["steps"] < 2 or ranks < 1 or batch % ranks or (a.link and ranks % 2):
        p.error(f"at least 2 steps, and ranks that share a batch of {batch}; with --link an even number of them")
    a.settings["warmup"] = min(a.settings["warmup"], a.settings["steps"] // 2)
    a.left_out = [c for c in a.contenders if c.pipeline and ranks < 2]
    a.contenders = [c for c in a.contenders if c not in a.left_out]
    if not a.contenders:
        p.error(f"--only {a.only}: a pipeline needs two ranks; this comparison has {ranks}")
    return a


def say(text):
    print(text, flush=True)


class Comparison:
    """A call of compare.sh: its options, the results so far, the runs that are left."""

    def __init__(self, a):
        self.a, self.notes, self.problems = a, [], []
        if a.left_out:
            self.notes.append(f"Without {', '.join(c.title for c in a.left_out)}: a pipeline needs two ranks.")
        self.program = environment.build(say)
        self.cores = len(os.sched_getaffinity(0))
        self.link, namespace = self._where()
        out = a.out or contenders.ROOT / "runs" / f"compare-{a.preset}{'-' + self.link if self.link else ''}"
        self.out = pathlib.Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.lock = (self.out / "lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(f"{self.out} is used by another call") from None
        text = pathlib.Path(a.text) if a.text else environment.text(a.preset, say)
        if not text.is_file():
            raise RuntimeError(f"--text {text}: there is no such file")
        self._check_settings(text)
        self.inputs = inputs.Inputs(self.out / "inputs", a.settings, text, self.program)
        self.parameters = presets.parameters(a.settings, self.inputs.vocabulary)
        self.peers = environment.Peers({c.needs for c in a.contenders} & {"torch", "deepspeed"},
                                       a.settings["device"] == "cuda", say)
        for needs, problem in self.peers.problems.items():
            say(f"{needs}: {problem}; its systems will have no numbers")
        self.bench = measuring.Bench(program=self.program, peers=self.peers, preset=a.settings, inputs=self.inputs,
                                     link=self.link, namespace=namespace, cores=self.cores)
        self.results = [json.loads(line) for line in self._kept()]
        self.rates = {}  # of each curve (tuning.py)
        self.versions = {"espalier": environment.espalier_version(self.program), **self.peers.versions}

    def _where(self):
        """(rate or None, words before the commands of rivals)"""
        if self.a.link:
            problem = "not for GPUs" if self.a.settings["device"] == "cuda" else environment.link_problem(self.a.link)
            if problem is None:
                return self.a.link, []
            self.notes.append(f"--link {self.a.link} was skipped, all ran on one machine: {problem}")
            say(self.notes[-1])
        if self.a.settings["device"] == "cuda":
            return None, []  # no interface counts the messages between GPUs
        words, problem = environment.counting_namespace()
        if problem:
            self.notes.append("No network namespace for rivals: bytes that other programs sent on this machine count as "
                              f"theirs ({problem}).")
        return None, words

    def _check_settings(self, text):
        """Refuses a folder with results of other settings: they must not share a table."""
        settings = {**{k: v for k, v in self.a.settings.items() if k not in ("target", "limit_s")}, "link": self.link,
                 "text": hashlib.sha256(text.read_bytes()).hexdigest()}
        file = self.out / "settings.json"
        if file.exists() and json.loads(file.read_text()) != settings:
            raise RuntimeError(f"{self.out} holds a comparison with other settings: name another --out, or remove it")
        file.write_text(json.dumps(settings))

    def _kept(self):
        """Complete lines of runs.jsonl; a killed call may have left a partial one, which is removed."""
        file = self.out / "runs.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) != len(lines):
            file.write_text("".join(whole))
        return whole

    def result(self, contender, seed, lr=None):
        """The latest result of this version of the system, by default at the rate of its curve; None: not run yet."""
        key = (contender.name, seed, lr or self.rates.get(tuning.curve(contender)), contender.preset)
        for result in reversed(self.results):
            if (result["name"], result["seed"], result["lr"], result.get("preset", {})) == key:
                return result if result["version"] == self._version(contender) else None
        return None

    def _version(self, contender):
        return self.versions.get(contender.needs) or " ".join(contender.command)

    def skipped(self, contender):
        """The reason why a system cannot run here, or None."""
        if contender.needs in self.peers.problems:
            return self.peers.problems[contender.needs]
        needed = environment.memory_needed(self.program, self.a.settings, self.inputs, contender)
        free = environment.memory_free()
        if free is not None and needed > free:
            return f"too little memory: about {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} available"
        return None

    def tune(self):
        if self.a.lr is not None:
            self.rates = {"dense": self.a.lr, "masked": self.a.lr}
            notes, problems = [f"One learning rate for all systems: {self.a.lr:g}."], []
        else:
            self.rates, notes, problems = tuning.rates(self.a.contenders, self.a.settings["lr"], self._sweep_problem,
                                                       self._swept)
        for line in notes + problems:
            say(line)
        self.notes += notes
        self.problems += problems
        if any(c.smaller for c in self.a.contenders):
            self._choose_smaller()

    def _choose_smaller(self):
        """Puts the smaller dense network of equal time into its row."""
        file, preset = self.out / "smaller.json", self.a.settings
        try:
            say("timing smaller dense networks beside the pruned one")
            networks = smaller.candidates(preset, self.bench, file, self.versions["espalier"])
            chosen, self.rates["smaller"] = smaller.choose(preset, networks, self.rates["dense"], self.a.lr is None,
                                                           self._swept)
        except RuntimeError as problem:
            self.problems.append(str(problem))
            say(self.problems[-1])
            return
        self.a.contenders = [chosen if c.smaller else c for c in self.a.contenders]
        self.notes.append(f"The smaller dense network of equal time, the best of {len(networks)} with seed 1: "
                          f"{chosen.preset['layers']} layers, {chosen.preset['width']} wide, {chosen.preset['steps']} steps.")
        say(self.notes[-1])

    def _sweep_problem(self, contender):
        return self.skipped(contender) if contender.needs in self.versions else "not wanted"

    def _swept(self, contender, seed, lr):
        result = self.result(contender, seed, lr)
        if result is None:
            result = {**self.bench.run(contender, seed, lr), "version": self._version(contender)}
            self._keep(result)
            shape = f" of {contender.preset['layers']} x {contender.preset['width']}" if contender.smaller else ""
            say(f"learning rate {lr:g}, {contender.name}{shape}: {self._outcome(result)}")
        return result

    def run(self):
        self.tune()
        wanted = [(seed, c) for seed in range(1, self.a.seeds + 1) for c in self.a.contenders]
        left = [(seed, c) for seed, c in wanted if (self.result(c, seed) or {}).get("status") != "ok"]
        if len(left) < len(wanted):
            say(f"{len(wanted) - len(left)} of {len(wanted)} runs are in {self.out} already")
        for number, (seed, contender) in enumerate(left, 1):
            why, lr = self.skipped(contender), self.rates.get(tuning.curve(contender))
            if lr is None:
                why = "no smaller dense network could be chosen"
            if why is None:
                result = self.bench.run(contender, seed, lr)
            else:
                result = {"name": contender.name, "seed": seed, "lr": lr, "preset": contender.preset, "status": "skipped",
                          "why": why}
            self._keep({**result, "version": self._version(contender)})
            say(f"[{number}/{len(left)}] seed {seed}  {contender.name}  {self._outcome(result)}")
            self.write()
        self._nudge()
        self.write()

    def _nudge(self):
        """Where loss curves differ, shows how fast differences of rounding grow (rows.NUDGE)."""
        for seed, name in sorted({(c["seed"], c["reference"]) for c in self._coincidence() if not c["equal"]}):
            say(f"seed {seed}  loss curves differ from that of {name}: once more at {1 + rows.NUDGE} times its learning rate, "
                "to see how differences of rounding grow")
            self._swept(contenders.named(name), seed, self._nudged_rate(name))

    def _nudged_rate(self, name):
        return self.rates[tuning.curve(contenders.named(name))] * (1 + rows.NUDGE)

    def _coincidence(self):
        def nudged(name, seed):
            result = self.result(contenders.named(name), seed, self._nudged_rate(name))
            return result["losses"] if result and result["status"] == "ok" else None
        return rows.coincidence(self.a.contenders, self.current(), self.a.settings, nudged)

    def _outcome(self, result):
        if result["status"] != "ok":
            return f"{result['status']}: {result['why']}"
        tokens = self.a.settings["global_batch"] * self.a.settings["context"]
        speed = tokens / statistics.median(measuring.steady(result["step_seconds"]))
        return f"{speed:,.0f} tokens/s, validation loss {result['evaluations'][-1][1]:.4f}, {result['wall_seconds']:.0f} s"

    def _keep(self, result):
        self.results.append(result)
        with (self.out / "runs.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")

    def current(self):
        found = [self.result(c, seed) for c in self.a.contenders for seed in range(1, self.a.seeds + 1)]
        return [result for result in found if result]

    def write(self):
        results, settings = self.current(), self.a.settings
        table = [rows.row(c, [r for r in results if r["name"] == c.name], settings, self.parameters)
                 for c in self.a.contenders]
        self.comparison = {
            "command": shlex.join(["./compare.sh", *sys.argv[1:]]), "preset_name": self.a.preset, "preset": settings,
            "link": self.link, "seeds": self.a.seeds, "vocabulary": self.inputs.vocabulary,
            "parameters": self.parameters, "machine": environment.machine(), "commit": environment.commit(),
            "notes": self.notes, "problems": self.problems, "rows": table,
            "coincidence": self._coincidence()}
        report.write(self.out, self.comparison, page.page)


def stop(number, frame):
    raise KeyboardInterrupt


def main():
    a = options()
    if a.list:
        say("presets: " + ", ".join(presets.PRESETS) + "\nsystems:")
        for c in a.contenders:
            say(f"  {c.name:26}{c.title}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    comparison = None
    try:
        comparison = Comparison(a)
        comparison.run()
    except KeyboardInterrupt:
        kept = len(comparison.current()) if comparison else 0
        say(f"interrupted: {kept} of {a.seeds * len(a.contenders)} runs are kept; the same call continues")
        if kept:
            comparison.write()
        return 130
    except RuntimeError as problem:
        print(f"compare.sh: {problem}", file=sys.stderr)
        return 1
    say("\n" + (comparison.out / "comparison.md").read_text())
    say(f"{comparison.out}/comparison.html, comparison.json, comparison.md")
    failures = report.failures(comparison.comparison)
    for failure in failures:
        print(f"compare.sh: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
