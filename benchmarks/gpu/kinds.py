"""The kinds of steps of benchmarks/gpu.sh: the command of each, and how its output is read."""
import json
import os
import re
import shutil
import statistics
import sys
import time

# Networks whose tokens/s are measured, with sequences of 1,024 tokens. batch: sequences of a micro-batch, which fit an
# 80 GB device. accumulate: micro-batches of a step: large steps, as users have, hide the constant time of the update.
SHAPES = {"124m": dict(layers=12, heads=12, width=768, batch=16, accumulate=1),
          "1.5b": dict(layers=48, heads=25, width=1600, batch=4, accumulate=4)}

LARGE_DEVICE = 110 * 2**30  # bytes; with at least as many free, micro-batches are four times as large


def batch_of(bundle, shape):
    """Sequences of a micro-batch."""
    return shape["batch"] * (4 if bundle.device_free >= LARGE_DEVICE else 1)


PRUNED = {"pruning.method": "random", "pruning.sparsity": 0.9, "pruning.at_step": 0, "pruning.scope": "layer"}
STORAGES = {"dense": {},
            "dense, not deterministic": {"run.deterministic": False},
            "dense, timed": {"run.operation_times": True},
            "dense, not deterministic, timed": {"run.operation_times": True, "run.deterministic": False},
            "dense, own attention": {},
            "fp16": {"train.dtype": "fp16"},
            "dense, no graphs": {},
            "masked": {**PRUNED, "sparse.storage": "dense"},
            "expanded": {**PRUNED, "sparse.storage": "expanded"},
            "expanded-8bit": {**PRUNED, "sparse.storage": "expanded", "optimizer.state_bits": 8},
            "sparse": {**PRUNED, "sparse.storage": "sparse"},
            "block": {**PRUNED, "sparse.storage": "block", "pruning.method": "block:64"}}


class Step:
    """One step of the plan.

    device: needs a GPU. least: seconds that must be left for it to begin. watched: the peak of the device's memory is
    measured, which needs a context of the driver. `read` returns entries for the line of results, and may set `status`
    and `why`."""
    device, environment, least, watched = True, {}, 2.0, True

    def __init__(self, name, what, limit):
        self.name, self.what, self.limit = name, what, limit

    def missing(self, bundle):
        return ""

    def prepare(self, bundle, end):
        """end: of all steps, by the monotonic clock."""

    def read(self, bundle, code, log, state):
        return {}


class Facts(Step):
    """Runs `espalier info` to see whether a device answers. If its output is not understood, nvidia-smi decides."""
    device, watched = False, False
    FIELDS = ("name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
              "power.limit")

    def command(self, bundle):
        return bundle.command("espalier", "info", "--json")

    def read(self, bundle, code, log, state):
        found, driver = {}, None
        if shutil.which("nvidia-smi"):
            driver, found["nvidia_smi"], _ = bundle.run(
                ["nvidia-smi", "--query-gpu=" + self.FIELDS, "--format=csv"], 30)
        try:
            found["info"] = json_in(log)
            answers = "cuda" in found["info"]["backends"]
            bundle.device_free = max(found["info"].get("device_free_bytes", []), default=0)
        except (ValueError, KeyError, TypeError) as error:
            answers = driver == 0
            if code == 0:
                found.update(status="failed", why=f"the output of espalier info is not understood: {error}")
        state["no_device"] = "" if answers else "no GPU answers on this machine"
        return found


class Cpu(Step):
    """The bundle trains: a tiny GPT on the CPU, one rank or several under its own mpirun."""
    device = False

    def __init__(self, name, what, limit, ranks):
        super().__init__(name, what, limit)
        self.ranks = ranks

    def prepare(self, bundle, end):
        write_text(bundle.scratch / "text.txt")
        shutil.rmtree(bundle.scratch / "cpu", ignore_errors=True)

    def settings(self):
        return {"model.kind": "gpt", "model.layers": 2, "model.heads": 2, "model.width": 32, "model.context": 16,
                "data.kind": "bytes", "data.train": ["text.txt"], "train.steps": 20, "train.global_batch": 4,
                "train.eval_every": 0, "train.eval_batches": 1, "optimizer.lr": 1e-3, "optimizer.warmup_steps": 2,
                "run.out": "cpu", "run.trace": False, "run.threads": 1, "run.backend": "cpu"}

    def command(self, bundle):
        train = train_command(bundle, self.settings())
        if self.ranks == 1:
            return train
        return bundle.command("mpirun", "-n", self.ranks, "--oversubscribe", "--bind-to", "none", "--mca",
                              "mpi_yield_when_idle", 1, "--mca", "btl_vader_single_copy_mechanism", "none", *train[1:])

    def read(self, bundle, code, log, state):
        return {"losses": [row["loss"] for row in metrics(bundle.scratch / self.settings()["run.out"])][::5]}


class OneDevice(Cpu):
    """The same with ranks that share the first GPU."""
    device = True

    @property
    def environment(self):
        return {"ESPALIER_RANKS_PER_GPU": str(self.ranks)}

    def settings(self):
        return {**super().settings(), "run.backend": "cuda", "run.out": "cpu"}


class Tests(Step):
    """A test program, which skips itself where there is no device."""
    device = False

    def __init__(self, name, what, limit, program, filters="*"):
        super().__init__(name, what, limit)
        self.program, self.filters = program, filters

    def command(self, bundle):
        return bundle.command(self.program, "--gtest_filter=" + self.filters)

    def read(self, bundle, code, log, state):
        # A failed test with a parameter prints "NAME, where GetParam() = … (12 ms)".
        names = {word: re.findall(r"^\[ +%s +\] ([^\s,]+).* \(\d+ ms\)$" % word, log, re.M)
                 for word in ("OK", "FAILED", "SKIPPED")}
        found = {"passed": names["OK"], "failed": names["FAILED"], "skipped": names["SKIPPED"]}
        if code == 77 or (code == 0 and names["SKIPPED"] and not names["OK"]):
            found.update(status="skipped", why=state["no_device"] or "every test was skipped")
        elif code == 0 and not names["OK"]:
            found.update(status="failed", why="no test ran")
        return found


class Sanitizer(Tests):
    """The kernel tests under one tool of compute-sanitizer, one group of kernels at a time, so that the findings of
    finished groups are kept at the time limit."""
    device = True
    FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
    GROUPS = ("WireTables.have_the_bytes*", *(f"*agree_with_the_reference/{group}"
                                              for group in ("block", "math", "sparse", "memory")))
    EACH = 'code=0; for filter in $FILTERS; do "$@" "--gtest_filter=$filter" || code=$?; done; exit $code'

    def __init__(self, tool, limit):
        super().__init__(tool, f"compute-sanitizer {tool}, kernel tests", limit, "cuda_tests")
        self.tool, self.environment = tool, {"FILTERS": " ".join(self.GROUPS)}

    def program_of_the_toolkit(self):
        return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *self.FOLDERS)))

    def missing(self, bundle):
        return "" if self.program_of_the_toolkit() else "compute-sanitizer is not installed"

    def command(self, bundle):
        start, test = bundle.command(self.program)
        # -f: the shell must not expand the stars of the groups.
        # cuDNN and cuBLASLt probe the driver with calls that fail by design.
        quiet = ["--report-api-errors", "no"] if self.tool == "memcheck" else []
        return ["sh", "-fc", self.EACH, "sh", start, self.program_of_the_toolkit(), "--tool", self.tool, *quiet,
                "--error-exitcode", "9", test]

    def read(self, bundle, code, log, state):
        totals = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", log)
        found = super().read(bundle, code, log, state)
        if "Device not supported" in log:
            found.update(status="skipped", why="compute-sanitizer does not support this device, or not here")
        return {**found, "groups": len(totals), "of_groups": len(self.GROUPS),
                "reports": sum(int(errors or hazards) for errors, hazards in totals) if totals else None}


class Benchmark(Step):
    """A program of Google Benchmark; keeps the counters of each row."""

    def __init__(self, name, what, limit, program, filters, environment=None):
        super().__init__(name, what, limit)
        self.program, self.filters, self.environment = program, filters, environment or {}

    def command(self, bundle):
        return bundle.command(self.program, "--backend", "cuda", "--benchmark_filter=" + self.filters,
                              f"--benchmark_out={bundle.scratch / self.name}.json", "--benchmark_out_format=json")

    def read(self, bundle, code, log, state):
        path = bundle.scratch / f"{self.name}.json"
        text = path.read_text() if path.exists() else ""
        try:
            rows = json.loads(text)["benchmarks"]
        except (ValueError, KeyError):  # cut off at the time limit: keeps the complete rows
            rows = [json.loads(part) for part in re.findall(r"^    \{.*?^    \}", text, re.M | re.S)]
        skipped = {"name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions",
                   "repetition_index", "threads", "iterations", "time_unit", "cpu_time", "real_time"}
        found = {row["name"]: {key: value for key, value in row.items() if key not in skipped} for row in rows}
        wrong = [name for name, row in found.items() if row.get("error_occurred")]
        answer = {"rows": found}
        if wrong:
            answer.update(status="failed", why=f"{wrong[0]}: {found[wrong[0]].get('error_message')}")
        elif code == 0 and not found:
            answer.update(status="failed", why="no benchmark ran")
        return answer


class Codecs(Step):
    def command(self, bundle):
        return bundle.command("codec_benchmark", "--backend", "cuda", 256, 1)

    def read(self, bundle, code, log, state):
        return {"table": [line for line in log.splitlines() if re.search(r"\d\.\d|^code ", line)]}


class Steps(Step):
    """tokens/s of `espalier train` on random tokens, also of a run that was stopped at its time limit."""

    def __init__(self, name, limit, shape, storage, steps):
        super().__init__(name, f"GPT-2 {shape}, {storage}" + ("" if storage == "fp16" else ", bf16"), limit)
        self.shape, self.storage, self.steps = shape, storage, steps

    def prepare(self, bundle, end):
        write_tokens(bundle.scratch / "tokens.bin", 1)
        write_tokens(bundle.scratch / "validation.bin", 2)
        shutil.rmtree(bundle.scratch / self.name, ignore_errors=True)

    @property
    def environment(self):
        """The library's attention must compute, so that its refusal fails the step instead of slowing it."""
        forced = "own" if self.storage.endswith("own attention") else "cudnn"
        return ({"ESPALIER_ATTENTION": forced} if self.shape in SHAPES else {}) | (
            {"ESPALIER_TEST": "run.graphs=false"} if self.storage.endswith("no graphs") else {})

    def batch(self, bundle):
        return batch_of(bundle, SHAPES[self.shape])

    def settings(self, batch):
        shape = SHAPES.get(self.shape, SHAPES["124m"])
        return {"model.kind": "gpt", "model.layers": shape["layers"], "model.heads": shape["heads"],
                "model.width": shape["width"], "model.context": 1024, "model.tie_embeddings": True,
                "model.vocabulary": 50257, "data.kind": "tokens", "data.train": ["tokens.bin"],
                "data.validation": ["validation.bin"], "data.token_type": "uint16", "train.dtype": "bf16",
                "train.steps": self.steps, "train.global_batch": batch * shape["accumulate"],
                "train.micro_batch": batch, "train.eval_every": 0, "train.eval_batches": 1,
                "train.checkpoint_every": -1, "optimizer.lr": 6e-4, "optimizer.warmup_steps": 2,
                "parallel.check_every": 0, "run.out": self.name, "run.trace": False, "run.backend": "cuda"}

    def command(self, bundle):
        return train_command(bundle, {**self.settings(self.batch(bundle)), **STORAGES[self.storage]})

    def read(self, bundle, code, log, state):
        folder = bundle.scratch / self.name
        rows = metrics(folder)
        rates = [row["tokens_per_s"] for row in rows if "tokens_per_s" in row]
        found = {"shape": self.shape, "storage": self.storage, "batch": self.batch(bundle), "steps": len(rates),
                 "losses": [row["loss"] for row in rows],
                 "milliseconds": [{key: row.get(key) for key in ("step_ms", "compute_ms", "update_ms")} for row in rows]}
        if len(rates) > 1:
            found["tokens_per_s"] = round(statistics.median(rates[len(rates) // 2:]), 1)
        if (folder / "summary.json").exists():
            summary = json.loads((folder / "summary.json").read_text())
            keep = ("parameters", "model_state_bytes", "model_state_bytes_per_parameter", "sparsity", "memory",
                    "operation_times", "libraries")
            found.update({key: summary[key] for key in keep if key in summary})
        return found


class Largest(Step):
    """The largest GPT at 90 % whose plan fits the free memory of the device, trained for 3 steps. The number of heads (of
    128 columns, at 96 layers) is doubled and then bisected, by `train --dry-run` with that budget. With `offload` the
    optimizer's state is in host memory, whose free bytes are a second limit."""
    LAYERS, HEAD, STEPS = 96, 128, 3
    LEFT = 2**30  # bytes for the driver, cuBLASLt and code, which plans do not count
    least, watched = 120.0, False

    def __init__(self, name, limit, storage, offload):
        self.way = storage + (", offload" if offload else "")
        super().__init__(name, f"the largest GPT at 90 %: {self.way}, 8-bit moments, recompute", limit)
        self.storage, self.offload = storage, offload

    def settings(self, heads, budget):
        return {"model.kind": "gpt", "model.layers": self.LAYERS, "model.heads": heads,
                "model.width": self.HEAD * heads, "model.context": 1024, "data.kind": "bytes",
                "data.train": ["text.txt"], "train.dtype": "bf16", "train.steps": self.STEPS, "train.global_batch": 1,
                "train.recompute": "full", "train.memory_budget": f"{budget}B", "train.eval_every": 0,
                "train.eval_batches": 1, "train.checkpoint_every": -1, "optimizer.lr": 1e-5, "optimizer.min_lr": 1e-5,
                "optimizer.warmup_steps": 0, "optimizer.state_bits": 8, "optimizer.offload": self.offload,
                **PRUNED, "pruning.at_step": -1, "sparse.storage": self.storage, "parallel.check_every": 0,
                "run.out": self.name, "run.trace": False, "run.backend": "cuda"}

    def plan(self, bundle, heads, end):
        """The plan of a GPT with that many heads if it fits the device and the host, else None."""
        command = train_command(bundle, self.settings(heads, self.budget), "--dry-run", "--json")
        code, log, seconds = bundle.run(command, min(60, end - time.monotonic()))
        if code is None:
            raise RuntimeError(f"no plan of {heads} heads after {seconds:.0f} s")
        if code != 0:
            raise RuntimeError(f"no plan of {heads} heads: {log.strip()[-300:]}")
        found = json_in(log)
        return found if found["fits"] and found["pinned"]["all"] <= self.pinnable else None

    def prepare(self, bundle, end):
        write_text(bundle.scratch / "text.txt")
        shutil.rmtree(bundle.scratch / self.name, ignore_errors=True)
        _, log, _ = bundle.run(bundle.command("espalier", "info", "--json"), min(60, end - time.monotonic()))
        self.budget = json_in(log)["device_free_bytes"][0] - self.LEFT
        self.pinnable = 0.8 * host_bytes()
        low, high, self.planned = 0, 1, None
        while (found := self.plan(bundle, high, end)) is not None:
            low, high, self.planned = high, 2 * high, found
        while high - low > 1:
            middle = (low + high) // 2
            found = self.plan(bundle, middle, end)
            low, high, self.planned = (middle, high, found) if found else (low, middle, self.planned)
        if self.planned is None:
            raise RuntimeError("not even one head fits the device")
        self.heads = low

    def command(self, bundle):
        return train_command(bundle, self.settings(self.heads, self.budget))

    def read(self, bundle, code, log, state):
        rows = metrics(bundle.scratch / self.name)
        found = {"way": self.way, "width": self.HEAD * self.heads, "parameters": self.planned["parameters"],
                 "kept": self.planned["kept_parameters"], "planned_device": self.planned["process"],
                 "planned_pinned": self.planned["pinned"]["all"], "losses": [row["loss"] for row in rows],
                 "step_s": [row["step_ms"] / 1e3 for row in rows if "step_ms" in row]}
        path = bundle.scratch / self.name / "summary.json"
        if path.exists():
            summary = json.loads(path.read_text())
            found["state_bytes_per_parameter"] = summary["model_state_bytes_per_parameter"]
            found["arena_peak"] = summary["memory"]["ranks"][0]["all"]["peak"]
        answer = {"largest": found}
        if code == 0 and len(rows) < self.STEPS:
            answer.update(status="failed", why=f"{len(rows)} of {self.STEPS} steps")
        return answer


class Peer(Step):
    """The same steps in PyTorch, in each of the `ways` in turn; reports the fastest that finished within the limit."""

    def __init__(self, name, limit, shape, steps, ways):
        super().__init__(name, f"GPT-2 {shape}, PyTorch: compile, SDPA, fused AdamW, bf16", limit)
        self.shape, self.steps, self.ways = shape, steps, ways

    def missing(self, bundle):
        look = "import importlib.util as u; exit(not u.find_spec('torch'))"
        code, _, _ = bundle.run([sys.executable, "-c", look], 20)
        return "" if code == 0 else "python3 has no PyTorch"

    def command(self, bundle):
        shape = {**SHAPES[self.shape], "batch": batch_of(bundle, SHAPES[self.shape])}
        return [sys.executable, str(bundle.folder / "peers" / "gpu_step.py"), "--steps", str(self.steps),
                *(word for key, value in shape.items() for word in ("--" + key, str(value))), *self.ways]

    def read(self, bundle, code, log, state):
        ways = [line for line in json_lines(log) if "tokens_per_s" in line]
        fastest = max(ways, key=lambda way: way["tokens_per_s"], default={})
        rates = {way["way"]: way["tokens_per_s"] for way in ways}
        return {"shape": self.shape, "storage": "PyTorch", **fastest, "tokens_per_s_of_ways": rates}


class AttentionPeer(Peer):
    """Attention of the same shapes in PyTorch."""

    def __init__(self, name, limit):
        Step.__init__(self, name, "causal attention of GPT-2, PyTorch: the fastest backend of SDPA, bf16", limit)

    def command(self, bundle):
        shapes = [f"{name}:{s['batch']}x1024x{s['heads']}x{s['width'] // s['heads']}" for name, s in SHAPES.items()]
        return [sys.executable, str(bundle.folder / "peers" / "gpu_attention.py"), *shapes]

    def read(self, bundle, code, log, state):
        found = {"rows": {}}
        for line in json_lines(log):  # one per shape
            found = {**line, "rows": {**found["rows"], **line["rows"]}}
        return found


def json_in(log):
    """The first JSON object in the output of a program."""
    return json.JSONDecoder().raw_decode(log[log.index("{"):])[0]


def json_lines(text):
    """The JSON objects of complete lines."""
    found = []
    for line in text.splitlines():
        try:
            found += [json.loads(line)] if line.startswith("{") else []
        except ValueError:
            pass
    return found


def host_bytes():
    """Available bytes of the host's memory."""
    with open("/proc/meminfo") as table:
        return next(1024 * int(line.split()[1]) for line in table if line.startswith("MemAvailable:"))


def train_command(bundle, settings, *more):
    (bundle.scratch / "empty.toml").write_text("")
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return bundle.command("espalier", "train", "empty.toml", "--resume", "none",
                          *(part for word in words for part in ("--set", word)), *more)


def metrics(folder):
    """Complete rows of a run, also of one that was stopped while it wrote."""
    path = folder / "metrics.jsonl"
    return json_lines(path.read_text()) if path.exists() else []


def write_text(path):
    path.write_text("".join(f"{i * i % 89} apples, {i % 7} pears; " for i in range(4000)))


def write_tokens(path, seed):
    """Pseudo-random uint16 below 50,257; the same everywhere."""
    if not path.exists():
        value, words = seed, bytearray()
        for _ in range(300_000):
            value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
            words += ((value >> 33) % 50257).to_bytes(2, "little")
        path.write_bytes(words)
