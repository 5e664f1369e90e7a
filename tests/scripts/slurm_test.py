"""slurm_test.py ROOT PROGRAM: configs/slurm/*.sbatch under a real Slurm, a cluster of this machine alone. Jobs finish, are
preempted, reach their time limit, are cancelled, meet a busy run directory, and fail; those that come back end with
the bits of an undisturbed run. Exit code 77 (skipped) without Slurm's daemons.

The cluster lives in a temporary folder: its own configuration, ports, state and logs, and no authentication (plugins
auth/none and cred/none), so it needs neither munge nor systemd. Debian: slurmctld slurmd slurm-client."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from python_with import restart_with_h5py

restart_with_h5py()

import h5py

ROOT, PROGRAM = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
SCRIPTS = {"srun": ROOT / "configs/slurm/train.sbatch", "mpirun": ROOT / "configs/slurm/train-mpirun.sbatch"}
HOST = socket.gethostname().split(".")[0]
PATIENCE = 900  # s, for each state of a job: the machine may be busy

CLUSTER = """
ClusterName=espalier
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5  # a requeued job starts after that time, by default after 2 minutes
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
MinJobAge=3600
ReturnToService=2
SlurmdParameters=config_overrides  # CPUs need not exist
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=4096
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=0 MaxTime=INFINITE
PartitionName=graceful Nodes=ALL PriorityTier=1 GraceTime=120 MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
"""

CONFIG = """
[model]
kind = "gpt"
layers = 2
heads = 4
width = 64
context = 64
[data]
kind = "bytes"
train = ["text.txt"]
[train]
steps = {steps}
global_batch = 16
eval_every = 0
checkpoint_every = 0
keep_checkpoints = 100
[pruning]
method = "random"
sparsity = 0.9
at_step = 0
[sparse]
storage = "sparse"  # timing could choose another one in another run
[run]
out = "run"
threads = 1
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm"))
        (self.folder / "state").mkdir()
        (self.folder / "spool").mkdir()
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        conf = self.folder / "slurm.conf"
        conf.write_text(CLUSTER.format(folder=self.folder, host=HOST, user=user, ports=free_ports(2)))
        self.environment = {
            **os.environ, "SLURM_CONF": str(conf), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMP_WAIT_POLICY": "passive"}
        for name in [name for name in self.environment if re.match("SLURM_(?!CONF)|SBATCH_", name)]:
            del self.environment[name]
        # They end with this process, even if it is killed.
        self.daemons = [subprocess.Popen(["setpriv", "--pdeathsig", "KILL", daemon, "-D", "-f", str(conf)],
                                         env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        for daemon in ("slurmctld", "slurmd")]

    def call(self, *command, cwd=None):
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stderr}\n{self.logs()}")
        return done.stdout

    def logs(self):
        return "\n".join(log.read_text()[-3000:] for log in sorted(self.folder.glob("*.log")))

    def wait_until_idle(self):
        end = time.time() + 60
        while time.time() < end:
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.environment, capture_output=True, text=True)
            if done.stdout.split() and set(done.stdout.split()) == {"idle"}:
                return
            time.sleep(0.5)
        raise RuntimeError("the cluster does not start:\n" + self.logs())

    def stop(self):
        subprocess.run(["scancel", "-u", str(os.getuid())], env=self.environment, capture_output=True)
        time.sleep(2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    """A training in a folder of its own."""

    def __init__(self, folder, launcher, steps, options=(), arguments=(), warning="USR1@20", seconds=3600):
        self.folder = folder
        if not (folder / "c.toml").exists():
            write_inputs(folder, steps)
        scope = "B:" if launcher == "mpirun" else ""
        self.number = CLUSTER_OF_TEST.call(
            "sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1",
            f"--time={seconds // 60}", f"--signal={scope}{warning}", *options, str(SCRIPTS[launcher]), "c.toml", *arguments,
            cwd=folder).strip()
        self.steps = steps

    def fields(self):
        text = CLUSTER_OF_TEST.call("scontrol", "-o", "show", "job", self.number)
        return dict(re.findall(r"(\w+)=(\S+)", text))

    def log(self):
        logs = list(self.folder.glob(f"*-{self.number}.log"))
        return logs[0].read_text() if logs else ""

    def wait(self, what, condition, patience=PATIENCE):
        for _ in range(5 * patience):  # not by the clock: the whole machine may be suspended
            if condition():
                return
            time.sleep(0.2)
        raise AssertionError(f"no {what}: {self.fields()}\n{self.log()}\n{CLUSTER_OF_TEST.logs()}")

    def wait_for_steps(self):
        self.wait("step", lambda: "step 1/" in self.log())

    def end(self):
        """State, exit code and restarts, after the job has ended for good."""
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self.wait("end", lambda: self.fields()["JobState"] in final)
        fields = self.fields()
        return fields["JobState"], fields["ExitCode"], int(fields["Restarts"])

    def bits(self):
        return last_checkpoint(self.folder, self.steps)


def write_inputs(folder, steps):
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("".join(f"{i * i % 977} trees, {i % 7} rows. " for i in range(8000)))
    (folder / "c.toml").write_text(CONFIG.format(steps=steps))


def last_checkpoint(folder, steps):
    """All arrays. The other content names the folder of the run."""
    arrays = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()].tobytes()

    with h5py.File(folder / f"run/checkpoints/step-{steps:06}.h5") as file:
        file.visititems(add)
    return arrays


class Slurm(unittest.TestCase):
    SHORT, LONG = int(os.environ.get("SHORT", 2000)), int(os.environ.get("LONG", 12000))  # steps: some seconds; longer than the 30 s between Slurm's looks at time limits
    undisturbed = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for steps in (cls.SHORT, cls.LONG):
            folder = cls.folder / f"undisturbed-{steps}"
            write_inputs(folder, steps)
            CLUSTER_OF_TEST.call(str(ROOT / "scripts/mpirun.sh"), "2", str(PROGRAM), "train", "c.toml", cwd=folder)
            cls.undisturbed[steps] = last_checkpoint(folder, steps)

    def job(self, launcher, steps, *arguments, **more):
        self.count = getattr(self, "count", 0) + 1
        folder = more.pop("folder", self.folder / f"{self.id().split('.')[-1]}-{launcher}")
        return Job(folder, launcher, steps, *arguments, **more)

    def expect_end(self, job, state, code, restarts=0):
        self.assertEqual(job.end(), (state, code, restarts), job.log())

    def expect_same_bits(self, job):
        self.assertTrue(job.bits() == self.undisturbed[job.steps], "other bits than without a stop\n" + job.log())

    def each(self):
        for launcher in SCRIPTS:
            started = time.time()
            yield launcher
            print(f"{launcher} {time.time() - started:.0f} s", end=" ", file=sys.stderr, flush=True)

    def test_a_job_finishes(self):
        for launcher in self.each():
            job = self.job(launcher, self.SHORT)
            self.expect_end(job, "COMPLETED", "0:0")
            self.expect_same_bits(job)
            self.assertTrue((job.folder / "run/summary.json").exists())
            self.assertIn("2 ranks x 1 thread", job.log())

    def test_ranks_that_srun_leaves_alone_say_so(self):
        job = self.job("srun", self.SHORT, ["--export=ALL,SLURM_MPI_TYPE=none"])
        self.expect_end(job, "FAILED", "1:0")
        self.assertIn("a launcher started several ranks (SLURM_STEP_NUM_TASKS=2)", job.log())
        self.assertNotIn("step 1/", job.log())

    def test_a_script_of_several_tasks_trains_on_one_rank_without_srun(self):
        folder = self.folder / "script"
        write_inputs(folder, 20)
        for line in (f"{PROGRAM} train c.toml", f"{ROOT}/scripts/mpirun.sh 1 {PROGRAM} train c.toml --resume none"):
            number = CLUSTER_OF_TEST.call("sbatch", "--parsable", "--wait", "-n", "2", "--output=script.log", "--wrap", line,
                                          cwd=folder).strip()
            log = (folder / "script.log").read_text()
            self.assertIn("JobState=COMPLETED", CLUSTER_OF_TEST.call("scontrol", "show", "job", number), log)
            self.assertIn("1 rank x", log)

    def preempt(self, launcher, partition):
        job = self.job(launcher, self.SHORT, ["-p", partition],
                       folder=self.folder / f"preempted-{launcher}-{partition}")
        job.wait_for_steps()
        urgent = CLUSTER_OF_TEST.call("sbatch", "--parsable", "-p", "high", "-n", "4", "--output=urgent.log",
                                      "--wrap", "sleep 3; date", cwd=job.folder).strip()
        self.expect_end(job, "COMPLETED", "0:0", restarts=1)
        self.assertRegex(job.log(), r"(?s)step 1/.*CANCELLED AT.*resumed from run/checkpoints")
        self.assertGreater(len(list((job.folder / "run/checkpoints").iterdir())), 1, job.log())
        self.expect_same_bits(job)
        self.assertIn("JobState=COMPLETED", CLUSTER_OF_TEST.call("scontrol", "show", "job", urgent))
        return job

    def test_a_preempted_job_comes_back(self):
        for launcher in self.each():
            self.preempt(launcher, "low")

    def test_a_preempted_job_with_grace_saves_and_leaves_early(self):
        started = time.time()
        job = self.preempt("srun", "graceful")
        self.assertLess(time.time() - started, 110, "the grace time was waited for")
        self.assertRegex(job.log(), r"(?s)stopped at step \d+ by a signal.*Exited with exit code 4.*resumed from")

    def test_a_job_near_its_time_limit_saves_and_goes_on(self):
        for launcher in self.each():
            # Slurm sends the signal up to 60 s early: here between the 1st and the 31st second.
            job = self.job(launcher, self.LONG, warning="USR1@29", seconds=60)
            state, code, restarts = job.end()
            self.assertEqual((state, code), ("COMPLETED", "0:0"), job.log())
            self.assertGreater(restarts, 0, job.log())
            self.assertRegex(job.log(), r"(?s)stopped at step \d+ by a signal.*resumed from run/checkpoints")
            self.expect_same_bits(job)

    def test_a_cancelled_job_saves_and_does_not_come_back(self):
        for launcher in self.each():
            job = self.job(launcher, self.LONG)
            job.wait_for_steps()
            CLUSTER_OF_TEST.call("scancel", job.number)
            job.wait("end", lambda: job.fields()["JobState"] == "CANCELLED" and CLUSTER_OF_TEST.call("squeue", "-h") == "")
            time.sleep(8)  # longer than the delay of a requeued job
            self.assertEqual(job.end()[::2], ("CANCELLED", 0), job.log())
            self.assertTrue(list((job.folder / "run/checkpoints").glob("step-*.h5")), job.log())

    def test_a_busy_run_directory_is_tried_again(self):
        for launcher in self.each():
            half = ["--mem=2000"]  # of the node's memory; by default a job takes all of it
            first = self.job(launcher, self.SHORT, half)
            first.wait_for_steps()
            second = self.job(launcher, self.SHORT, half, folder=first.folder)
            self.expect_end(first, "COMPLETED", "0:0")
            self.assertEqual(second.end()[:2], ("COMPLETED", "0:0"), second.log())
            self.assertGreater(second.end()[2], 0, second.log())
            self.expect_same_bits(first)

    def test_an_error_of_the_config_is_final(self):
        for launcher in self.each():
            job = self.job(launcher, self.SHORT, arguments=["--set", "train.stepz=3"])
            self.expect_end(job, "FAILED", "1:0")
            self.assertIn("did you mean \"steps\"?", job.log())

    def test_too_little_memory_is_named_before_the_first_step(self):
        for launcher in self.each():
            for option, variable in (("--mem=100", "SLURM_MEM_PER_NODE"), ("--mem-per-cpu=50", "SLURM_MEM_PER_CPU")):
                job = self.job(launcher, self.SHORT, [option])
                self.expect_end(job, "FAILED", "1:0")
                self.assertRegex(job.log(), rf"error.*: the Slurm job's memory \({variable}\) on \S+ is 100\.0 MiB, but the "
                                 r"2 ranks of the run there need 1\d\d\.\d MiB.*; submit it with a larger " + option.split("=")[0])
                self.assertNotIn("step 1/", job.log())

    def test_the_memory_of_a_cgroup_limits_a_run(self):
        top = pathlib.Path("/sys/fs/cgroup/memory")
        limit = "memory.limit_in_bytes"
        if not top.exists():
            top, limit = pathlib.Path("/sys/fs/cgroup"), "memory.max"
        group = top / f"espalier-test-{os.getpid()}"
        try:
            group.mkdir()
            self.addCleanup(group.rmdir)
            (group / limit).write_text("60M")
        except OSError as error:
            self.skipTest(f"no right to make a cgroup: {error}")
        folder = self.folder / "cgroup"
        write_inputs(folder, self.SHORT)
        done = subprocess.run(["sh", "-c", f"echo $$ >{group}/cgroup.procs && exec {PROGRAM} train c.toml"], cwd=folder,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stderr, rf"the cgroup's memory \({group}/{limit}\) on \S+ is 60\.0 MiB, but the rank of the run")
        self.assertNotIn("step 1/", done.stdout)


if __name__ == "__main__":
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "srun", "mpirun", "setpriv") if not shutil.which(name)]
    if missing:
        print(f"skipped: {', '.join(missing)} missing (scripts/install-packages.sh --slow)")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the cluster, too
    CLUSTER_OF_TEST = Cluster()
    try:
        CLUSTER_OF_TEST.wait_until_idle()
        done = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]], exit=False)
    finally:
        CLUSTER_OF_TEST.stop()
    sys.exit(not done.result.wasSuccessful())
