"""One run of one contender: starts it, waits for it, ends it, and reads its result, in one form for all contenders.

A result: {"name", "seed", "lr", "preset" (the contender's own values), "system", "status": "ok" | "failed" | "skipped", "why"} and, when ok, step_seconds, losses,
evaluations [[step, loss]], peak_rss (bytes of each rank), device_peak, state_bytes (of the rank that holds most),
sent_bytes (a rank in a median step), sent_counted ("interface", "transport", None), link_bytes, wall_seconds.
"""
import json
import os
import shutil
import statistics
import subprocess
import time

from contenders import ROOT, espalier_settings, own_preset, ranks
from environment import end, last_lines
from inputs import empty_config, settings_arguments


STATE = ("weight", "gradient", "master", "moment", "index")  # categories of the arena that are model state


def steady(values):
    """Without the first fifth of the steps (at least three), in which systems allocate, tune and compile."""
    return values[min(max(3, len(values) // 5), len(values) - 1):]


class Bench:
    """Runs contenders. link: a rate, or None for one machine; namespace: see environment.counting_namespace."""

    def __init__(self, *, program, peers, preset, inputs, link, namespace, cores):
        self.program, self.peers, self.preset, self.inputs = program, peers, preset, inputs
        self.link, self.namespace, self.cores = link, namespace, cores
        self.scratch = inputs.folder.parent / "scratch"
        self.extensions = (inputs.folder.parent / "extensions").resolve()

    def run(self, contender, seed, lr):
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        for lock in self.extensions.glob("**/lock"):  # of a run that was killed; the next one would wait for it
            lock.unlink()
        begin = time.time()
        self.ranks = ranks(contender, self.preset)
        self.threads, self.steps = max(1, self.cores // self.ranks), own_preset(contender, self.preset)["steps"]
        command = (self._espalier if contender.needs == "espalier" else self._rival)(contender, seed, lr)
        code, output, errors = self._watch(command)
        result = {"name": contender.name, "seed": seed, "lr": lr, "preset": contender.preset,
                  "wall_seconds": time.time() - begin}
        try:
            if code != 0:
                raise ValueError(code)
            read = self._read_espalier if contender.needs == "espalier" else self._read_rival
            result |= {"status": "ok", **read(), **self._link_line(output)}
        except (OSError, ValueError, KeyError, IndexError) as problem:
            why = last_lines(errors, 4) or last_lines(output, 4) or repr(problem)
            if code is None:
                why = f"ended after {self.preset['limit_s']} s, the limit of a run; its last lines: {why}"
            result |= {"status": "failed", "why": why if code != 0 else f"no result was left ({problem!r}): {why}"}
            logs = self.scratch.parent / "logs"
            logs.mkdir(exist_ok=True)
            (logs / f"{contender.name}-{seed}-{lr:g}.txt").write_text(output + errors)
        return result

    # ---- Commands

    def _espalier(self, contender, seed, lr):
        settings = espalier_settings(contender, self.preset, seed, self.inputs, self.threads, lr)
        train = [self.program, "train", str(empty_config(self.inputs.folder)), "--resume", "none", "--out",
                 str(self.scratch / "run"), *settings_arguments(settings)]
        if not contender.smaller:  # a smaller network draws its initial weights from the seed
            train += ["--init", str(self.inputs.weights(seed, contender.masked)[0])]
        if self.link:
            return [*self._two_hosts(), "mpirun", *train]
        return [str(ROOT / "scripts" / "mpirun.sh"), str(self.ranks), *train]

    def _rival(self, contender, seed, lr):
        work = self.scratch / "work.json"
        self.inputs.order(contender, seed, self.threads, lr, work)
        arguments = [*contender.command, "--work", str(work), "--out", str(self.scratch / "result.json")]
        if contender.needs == "":  # a command of the user starts its ranks itself
            return [*self.namespace, *arguments]
        if self.link:
            return [*self._two_hosts(), "torchrun", *arguments]
        return [*self.namespace, self.peers.python, "-m", "torch.distributed.run", "--standalone", "--local-addr",
                "127.0.0.1", "--nproc-per-node", str(self.ranks), *arguments]

    def _two_hosts(self):
        return [str(ROOT / "scripts" / "two_hosts.sh"), "--rate", self.link, "--ranks-per-host",
                str(self.ranks // 2)]

    def _environment(self):
        variables = {"OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": str(ROOT / "benchmarks" / "peers"),
                     "PYTHONDONTWRITEBYTECODE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
                     "TORCH_EXTENSIONS_DIR": str(self.extensions)}  # DeepSpeed compiles one at its first start
        if self.peers.python:
            variables["PEERS_PYTHON"] = self.peers.python
        if self.preset["device"] == "cpu":
            variables |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        if not self.link:
            variables["GLOO_SOCKET_IFNAME"] = "lo"
        return {**os.environ, **variables}

    # ---- Watching

    def _watch(self, command):
        """(exit code, or None after the limit; output; errors). Leaves no process running."""
        out, err = self.scratch / "output", self.scratch / "errors"
        with out.open("w") as output, err.open("w") as errors:
            running = subprocess.Popen(command, stdout=output, stderr=errors, stdin=subprocess.DEVNULL,
                                       env=self._environment(), start_new_session=True)
            try:
                code = running.wait(self.preset["limit_s"])
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(running)
        return code, out.read_text(errors="replace"), err.read_text(errors="replace")

    def _link_line(self, output):
        if not self.link:
            return {}
        line = next(line for line in reversed(output.splitlines()) if line.startswith("link rate="))
        return {"link_bytes": int(dict(item.split("=") for item in line.split()[1:])["bytes_a"])}

    # ---- Results

    def _read_espalier(self):
        run = self.scratch / "run"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run / "summary.json").read_text())
        if not summary["finished"] or len(rows) != self.steps:
            raise ValueError("the run did not finish")
        return {
            "system": f"Espalier {summary['git']}", "step_seconds": [row["step_ms"] / 1e3 for row in rows],
            "losses": [row["loss"] for row in rows],
            "evaluations": [[row["step"], row["val_loss"]] for row in rows if "val_loss" in row],
            "peak_rss": [rank["peak_rss"] for rank in summary["memory"]["ranks"]], "device_peak": 0,
            "state_bytes": max(sum(rank[part]["bytes"] for part in STATE) for rank in summary["memory"]["ranks"]),
            "sent_bytes": statistics.median(steady([row["comm_bytes_sent"] for row in rows])),
            "sent_counted": "transport", "sent_bytes_run": sum(row["comm_bytes_sent"] for row in rows),
            # Time that rank 0 waited for other ranks without computing.
            "waiting_seconds": [(row["wait_ms"] + row["collective_ms"]) / 1e3 for row in rows]}

    def _read_rival(self):
        given = json.loads((self.scratch / "result.json").read_text())
        for key in ("step_seconds", "losses"):
            if len(given[key]) != self.steps:
                raise ValueError(f"{key}: {len(given[key])} of {self.steps} steps")
        sent = given.get("sent_bytes")
        keys = ("system", "step_seconds", "losses", "evaluations", "peak_rss", "device_peak", "state_bytes")
        return {**{key: given[key] for key in keys},
                "sent_bytes": statistics.median(steady(sent)) / given.get("sent_by", 1) if sent else None,
                "sent_counted": "interface" if sent else None}
