"""The environment of a comparison, found or made: the built program, the rivals' Python, text, rights, free memory.

If a part other than Espalier is missing, the table states the reason instead of numbers.
"""
import contextlib
import json
import os
import pathlib
import platform
import re
import signal
import subprocess

from contenders import ROOT, model_settings, optimizer_settings, ranks
from inputs import empty_config, settings_arguments

# Memory of a rank beyond model and activations: interpreter, libraries, compiler (measured: 0.7 GB with PyTorch 2.15, 0.8
# with DeepSpeed 0.19, 0.9 with torch.compile).
RIVAL_BYTES = 10**9


def build(say):
    """Path of the program, built here unless the environment variable ESPALIER names one."""
    if os.environ.get("ESPALIER"):
        program = pathlib.Path(os.environ["ESPALIER"]).resolve()
        if not os.access(program, os.X_OK):
            raise RuntimeError(f"ESPALIER={os.environ['ESPALIER']} is not a program")
        return str(program)
    say("building Espalier")
    subprocess.run([ROOT / "scripts" / "install-packages.sh"], check=True)
    folder = ROOT / "build"
    if not (folder / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "--preset", "release", "-DESPALIER_TESTS=OFF", "-DESPALIER_BENCHMARKS=OFF"],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", "espalier"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    return str(folder / "src" / "cli" / "espalier")


def text(preset_name, say):
    """The default text, that of quickstart.sh: prose of a Debian package."""
    path = ROOT / "data" / "text.txt"
    if not path.exists():
        say(f"making {path.relative_to(ROOT)}")
        made = subprocess.run([ROOT / "scripts" / "make-text.sh", path], capture_output=True, text=True)
        if made.returncode != 0:
            raise RuntimeError(f"no text for {preset_name}: {made.stderr.strip()}\nGive one with --text FILE.")
    return path


class Peers:
    """The rivals' Python: `python`, and for each of "torch" and "deepspeed" its version or its problem."""

    PROBE = """
import importlib, importlib.metadata, json
found = {"versions": {}, "problems": {}}
for needs, modules in {"torch": ("torch", "numpy", "h5py"), "deepspeed": ("deepspeed", "torch", "numpy", "h5py")}.items():
    try:
        for module in modules:
            importlib.util.find_spec(module) or importlib.import_module(module)
        found["versions"][needs] = importlib.metadata.version(needs)
    except Exception as error:
        found["problems"][needs] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

    @staticmethod
    def path():
        venv = os.environ.get("PEERS_VENV") or ROOT / "benchmarks" / "peers" / ".venv"
        return os.environ.get("PEERS_PYTHON") or str(pathlib.Path(venv) / "bin" / "python")

    @classmethod
    def installed(cls):
        """True if both are installed."""
        try:
            probe = subprocess.run([cls.path(), "-c", cls.PROBE], capture_output=True, text=True)
        except OSError:
            return False
        return probe.returncode == 0 and not json.loads(probe.stdout.splitlines()[-1])["problems"]

    def __init__(self, wanted, gpu, say):
        self.python, self.versions, self.problems = None, {}, {}
        if not wanted:
            return
        say("looking for PyTorch and DeepSpeed, installing what is missing (benchmarks/peers/setup.sh; minutes)")
        why = self._set_up(["--for-gpu"] if gpu else [])
        python = self.path()
        try:
            probe = subprocess.run([python, "-c", self.PROBE], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            self.problems = {needs: f"could not be set up: {why or problem}" for needs in wanted}
            return
        found = json.loads(probe.stdout.splitlines()[-1])
        self.python, self.versions, self.problems = python, found["versions"], found["problems"]
        if why:
            say(f"benchmarks/peers/setup.sh failed: {why}")
            self.problems = {needs: f"could not be set up: {why}" for needs in self.problems}

    @staticmethod
    def _set_up(arguments):
        """Runs setup.sh; returns the cause of a failure, or None."""
        command = [str(ROOT / "benchmarks" / "peers" / "setup.sh"), *arguments]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        try:
            _, errors = running.communicate()
        finally:
            end(running)  # an interrupted call leaves no pip running
        return None if running.returncode == 0 else last_lines(errors, 2)


# Messages that hide those of a rank that ended: torchrun's from its first line on, Open MPI's in boxes, and torch's remark
# that no GPU is there.
LAUNCHERS = re.compile(r"^[WE]\d{4} .*torch/distributed/elastic(.|\n)*|^W\d{4} .*torch/utils/cpp_extension.*\n?|"
                       r"^-{40,}\n(.*\n)*?-{40,}\n|^\[\w+:\d+\] .*\n", re.M)


def last_lines(output, count):
    """The last lines of a program's output as one line, without colours and messages of launchers."""
    output = re.sub("\x1b\\[[0-9;]*m", "", output)
    own = LAUNCHERS.sub("", output)
    lines = [line.strip() for line in (own if own.strip() else output).splitlines() if line.strip()]
    return " / ".join(list(dict.fromkeys(lines))[-count:])  # ranks often print the same line


def counting_namespace():
    """(words, None): a command after these words runs in its own network namespace, where it alone uses `lo`, and ends with
    its parent. ([], reason) if that is not possible here."""
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        spaces = ["--map-root-user", *spaces]
    # Process numbers, which name files of shared memory, start from 1 there, so /dev/shm must be private.
    enter = 'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"'
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "sh", "-c", enter, "sh"]
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    except FileNotFoundError as missing:
        return [], f"{missing.filename} is missing"
    return (words, None) if tried.returncode == 0 else ([], last_lines(tried.stderr, 1))


def link_problem(rate):
    """The reason why a link of this rate between two hosts of this machine is impossible, or None."""
    tried = subprocess.run([ROOT / "scripts" / "two_hosts.sh", "--rate", rate, "mpirun", "true"], capture_output=True,
                           text=True)
    return None if tried.returncode == 0 else last_lines(tried.stderr, 1) or f"exit code {tried.returncode}"


def memory_needed(program, preset, inputs, contender):
    """Bytes of all ranks, from Espalier's plan of dense training, which needs the most memory."""
    settings = {**model_settings(preset, inputs), **optimizer_settings(preset, preset["lr"]), "train.dtype": preset["dtype"],
                "train.global_batch": preset["global_batch"] // preset["ranks"]}
    plan = subprocess.run([program, "train", str(empty_config(inputs.folder)), "--dry-run", "--json",
                           *settings_arguments(settings)], capture_output=True, text=True)
    if plan.returncode != 0:
        raise RuntimeError("espalier train --dry-run failed:\n" + plan.stderr.strip())
    own = json.loads(plan.stdout)["process"]
    return ranks(contender, preset) * (own + (RIVAL_BYTES if contender.needs in ("torch", "deepspeed") else 0))


def memory_free():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def machine():
    """The machine, for the report."""
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "memory_free": memory_free(),
            "system": f"{platform.system()} {platform.release()}"}


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def espalier_version(program):
    """Version and commit of the program."""
    said = subprocess.run([program, "info"], capture_output=True, text=True).stdout
    fields = dict(line.split(None, 1) for line in said.splitlines() if len(line.split(None, 1)) == 2)
    return f"Espalier {fields.get('version', '?').strip()} ({fields.get('git', '?').strip()})"


def end(process):
    """Ends a process and all its children: first by SIGTERM, then its whole session by SIGKILL. A namespace dies with its
    first process."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None and process.args[0] != "setpriv":
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
