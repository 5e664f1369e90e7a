"""compare_test.py ROOT PROGRAM [--with-torch]: tests of compare.sh. Espalier trains tiny networks beside fake systems, which
open and check everything that they are given (fake_rival.py, fake_torchrun.py). With --with-torch it trains beside the real
rivals: every row must have numbers, and loss curves must coincide. Rivals that are missing are a failure.

The fake systems need h5py: of this Python, or of /usr/bin/python3 (Debian: python3-h5py)."""
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT, PROGRAM = map(pathlib.Path, sys.argv[1:3])
HERE = pathlib.Path(__file__).resolve().parent
FAKE = HERE / "fake_rival.py"
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
sys.dont_write_bytecode = True
import agree  # noqa: E402
import claims  # noqa: E402
import contenders  # noqa: E402
import environment  # noqa: E402
import inputs  # noqa: E402
import presets  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
import smaller  # noqa: E402
import tuning  # noqa: E402


def python_with_h5py():
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import h5py"], capture_output=True).returncode == 0:
            return python
    sys.exit("neither this Python nor /usr/bin/python3 has h5py; on Debian: apt-get install python3-h5py")


def fake(name, what, *more):
    return ["--rival", " ".join([f"{name}={H5PY}", str(FAKE), what, *map(str, more)])]


class Scratch(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        words = random.Random(1)
        self.text = self.folder / "text"
        self.text.write_text(" ".join(words.choice("pear apple quince plum wall".split()) for _ in range(4000)))
        self.out = self.folder / "out"

    RATE = ["--lr", "1e-3"]

    def command(self, *arguments):
        return [str(ROOT / "compare.sh"), "--preset", "tiny", "--seeds", "1", "--text", str(self.text), "--out",
                str(self.out), *self.RATE, *arguments]

    def environment(self, **variables):
        return {**os.environ, "ESPALIER": str(PROGRAM), "OMP_WAIT_POLICY": "passive", **variables}

    def call(self, *arguments, code=0, **variables):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                              env=self.environment(**variables))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def running(self):
        """Command lines of running processes that contain the results' folder."""
        lines = []
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in lines if str(self.out) in line]

    def first_losses(self):
        """{name: training loss of the first step} of the runs that ended well."""
        results = map(json.loads, (self.out / "runs.jsonl").read_text().splitlines())
        return {result["name"]: result["losses"][0] for result in results if result["status"] == "ok"}

    def standing_in_for_peers(self):
        """A Python that has fake torch and deepspeed."""
        packages = self.folder / "packages"
        for name in ("torch", "deepspeed"):
            (packages / f"{name}-0.1.dist-info").mkdir(parents=True)
            (packages / f"{name}-0.1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 0.1\n")
            (packages / name).mkdir()
            (packages / name / "__init__.py").write_text("__version__ = '0.1'\n")
        (packages / "torch" / "distributed").mkdir()
        (packages / "torch" / "distributed" / "__init__.py").write_text("")
        (packages / "torch" / "distributed" / "run.py").write_text(
            f"import runpy\nrunpy.run_path({str(HERE / 'fake_torchrun.py')!r})\n")
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{packages}:$PYTHONPATH" {H5PY} "$@"\n')
        python.chmod(0o755)
        return str(python)

    def rows(self):
        comparison = json.loads((self.out / "comparison.json").read_text())
        return {row["name"]: row for row in comparison["rows"]}


class Table(Scratch):
    def test_all_kinds_of_rows(self):
        said = self.call("--only", "espalier-(dense|samo|sparse$|pipeline$)|^ddp$|^zero-1$|fake", "--steps", "20",
                         "--limit-s", "60", *fake("fake", "well"), *fake("fake-crash", "crash"),
                         *fake("fake-nothing", "nothing"), *fake("fake-short", "short"),
                         PEERS_PYTHON="/nonexistent/python", code=1)
        found = self.rows()
        for name in ("espalier-dense", "espalier-samo", "espalier-sparse", "espalier-pipeline", "fake"):
            self.assertEqual(found[name]["status"], "ok", name)
        self.assertEqual(found["fake"]["system"], "Fake 1.0")
        self.assertAlmostEqual(found["fake"]["tokens_per_s"]["median"], 8 * 16 / 0.01)
        self.assertEqual(found["fake"]["sent_bytes"]["median"], 1000)  # two ranks sent 2000
        self.assertEqual(found["fake"]["peak_bytes"]["median"], 3 * 2**20)
        # Loss 4.0 after 10 steps of 10 ms, 3.0 after 20; the slow first step counts as start-up.
        self.assertAlmostEqual(found["fake"]["seconds_to_target"]["median"], 0.14)
        self.assertAlmostEqual(found["fake"]["startup_s"]["median"], 0.49)
        for name in ("ddp", "zero-1"):
            self.assertEqual((found[name]["status"], found[name]["trouble"]), ("skipped", "skipped"))
            self.assertIn("could not be set up", found[name]["why"])
        self.assertIn("ValueError: the fake rival has fallen over", found["fake-crash"]["why"])
        self.assertIn("no result was left", found["fake-nothing"]["why"])
        self.assertIn("19 of 20 steps", found["fake-short"]["why"])
        dense, samo = found["espalier-dense"], found["espalier-samo"]
        self.assertGreater(dense["sent_bytes"]["median"], 2 * samo["sent_bytes"]["median"])
        self.assertGreater(dense["state_bytes_per_parameter"]["median"], samo["state_bytes_per_parameter"]["median"])
        self.assertIn("Loss curves of dense training coincide over the first 20 steps: 2 systems", said)
        self.assertIn("Loss curves of training with one mask coincide", said)
        for name in ("comparison.md", "comparison.html"):
            text = " ".join((self.out / name).read_text().split())
            self.assertIn("failed: Traceback (most recent call last): / ValueError: the fake rival has fallen over", text)
            # Failures come first.
            failures = ["5 of 10 systems failed.", "2 of 10 systems failed: PyTorch DDP eager, DeepSpeed ZeRO-1: skipped: could",
                        "1 of 10 systems failed: fake-short: failed: no result was left"]
            for failure in failures:
                self.assertLess(text.index(failure), text.index("Seconds to validation loss"))
        prose = [line for line in (self.out / "comparison.md").read_text().splitlines() if not line.startswith(("|", "    "))]
        self.assertLessEqual(max(map(len, prose)), 100)

    def test_work_order(self):
        """A rival opens all files of its work order, and finds the text, the settings and the network of Espalier."""
        preset = presets.PRESETS["tiny"]
        expect = self.folder / "expect.json"
        expect.write_text(json.dumps({"text": str(self.text), "order": {
            "steps": 20, "seed": 1, "vocabulary": len(set(self.text.read_bytes())), "micro_batch": 4,
            "threads": max(1, len(os.sched_getaffinity(0)) // preset["ranks"]),
            **{key: preset[key] for key in ("layers", "heads", "width", "context", "tie", "global_batch", "eval_every",
                                            "eval_batches", "beta1", "beta2", "weight_decay", "clip", "dtype", "device",
                                            "sparsity")}}}))
        self.call("--only", "espalier-(dense|sparse)$|fake", "--steps", "20", *fake("fake", "well", "--expect", expect),
                  *fake("fake-masked", "well", "--masked", "--expect", expect))
        losses = self.first_losses()
        self.assertAlmostEqual(losses["fake"], losses["espalier-dense"], places=5)
        self.assertAlmostEqual(losses["fake-masked"], losses["espalier-sparse"], places=5)
        self.assertNotAlmostEqual(losses["fake"], losses["fake-masked"], places=4)

    def test_wrong_work_order(self):
        """The checks of the stand-in find a wrong setting and a folder in place of the arrays."""
        expect = self.folder / "expect.json"
        expect.write_text(json.dumps({"order": {"beta2": 0.5}}))
        self.assertIn("beta2 is 0.99, not 0.5", self.call("--only", "fake", *fake("fake", "well", "--expect", expect), code=1))
        arrays = self.out / "inputs" / "weights-1-dense.h5"
        arrays.unlink()
        arrays.mkdir()
        self.assertIn("1 of 1 systems failed: fake: failed: ", self.call("--only", "fake", *fake("fake", "well"), code=1))

    def test_all_rivals_with_stand_ins(self):
        """Every row of PyTorch and DeepSpeed gets readable weights, and options that its script has."""
        said = self.call("--only", "espalier-(dense|sparse)$|ddp|zero|deepspeed", "--steps", "20",
                         PEERS_PYTHON=self.standing_in_for_peers(), code=1)
        known = [c.name for c in contenders.CONTENDERS if c.needs != "espalier"]
        found, losses = self.rows(), self.first_losses()
        self.assertEqual({name: row["status"] for name, row in found.items() if name in known}, dict.fromkeys(known, "ok"), said)
        for name in known:
            same = "espalier-sparse" if name == "ddp-masked" else "espalier-dense"
            self.assertAlmostEqual(losses[name], losses[same], places=5, msg=name)
        self.assertIn("DIFFER", said)  # later losses are invented
        self.assertNotIn("systems failed", said)

    def test_failed_sweep(self):
        self.RATE = []
        said = self.call("--only", "fake-crash", *fake("fake-crash", "crash"), "--limit-s", "0", code=1)
        self.assertIn("No sweep of the learning rate of dense networks was possible, so it is 0.004: ", said)
        self.assertIn("Espalier dense: ended after 0 s, the limit of a run", said)
        text = (self.out / "comparison.md").read_text()
        self.assertLess(text.index("No sweep of the learning rate"), text.index("No system reached"))

    def test_smaller_dense_network_of_equal_time(self):
        said = self.call("--only", "espalier-(sparse|smaller)$", "--steps", "40")
        row = self.rows()["espalier-smaller"]
        shape = (row["preset"]["layers"], row["preset"]["width"])
        self.assertIn(shape, smaller.shapes(presets.PRESETS["tiny"]))
        self.assertEqual(row["curve_points"][-1][1], row["preset"]["steps"])
        self.assertIn(f"({shape[0]} layers, {shape[1]} wide, {row['preset']['steps']} steps) after", " ".join(said.split()))
        again = self.call("--only", "espalier-(sparse|smaller)$", "--steps", "40")
        self.assertIn("2 of 2 runs are in", again)
        self.assertEqual(self.rows()["espalier-smaller"]["preset"], row["preset"])

    def test_eight_bit_moments_of_small_arrays(self):
        said = self.call("--only", "espalier-sparse(-8bit)?$", "--steps", "10")
        self.assertIn("8-bit moments change nothing at this size: every array keeps fewer than 4,096 elements",
                      " ".join(said.split()))

    def test_pipelines_need_two_ranks(self):
        said = self.call("--only", "espalier-(dense|pipeline)$", "--steps", "10", "--ranks", "1")
        self.assertIn("Without Espalier pipeline, dense: a pipeline needs two ranks.", said)
        self.assertEqual(list(self.rows()), ["espalier-dense"])
        self.assertIn("a pipeline needs two ranks", self.call("--only", "pipeline$", "--ranks", "1", code=2))

    def test_second_call_repeats_failed_runs_and_adds_new_seeds(self):
        self.call("--only", "fake", *fake("fake", "well"), *fake("fake-crash", "crash"), code=1)
        said = self.call("--only", "fake", "--seeds", "2", *fake("fake", "well"), *fake("fake-crash", "crash"), code=1)
        self.assertIn("1 of 4 runs are in", said)
        ran = [line.split()[3] for line in said.splitlines() if line.startswith("[")]
        self.assertEqual(ran, ["fake-crash", "fake", "fake-crash"])
        with (self.out / "runs.jsonl").open("a") as file:
            file.write('{"name": "fake", "se')  # a call that was killed while it wrote
        self.assertIn("2 of 4 runs", self.call("--only", "fake", "--seeds", "2", *fake("fake", "well"),
                                               *fake("fake-crash", "crash"), code=1))

    def test_interrupted(self):
        arguments = ["--only", "fake", *fake("fake", "well"), *fake("fake-hang", "hang")]
        with subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, text=True,
                              env=self.environment()) as running:
            log = self.out / "scratch" / "output"
            for _ in range(300):
                if log.exists() and "hangs" in log.read_text():
                    break
                time.sleep(0.1)
            running.send_signal(signal.SIGTERM)
            said, _ = running.communicate(timeout=30)
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("interrupted: 1 of 2 runs are kept", said)
        self.assertEqual({name: row["status"] for name, row in self.rows().items()}, {"fake": "ok", "fake-hang": "left"})
        self.assertIn("not run yet", (self.out / "comparison.md").read_text())
        self.assertEqual(self.running(), [])
        said = self.call(*arguments, "--limit-s", "5", code=1)
        self.assertIn("1 of 2 runs are in", said)
        self.assertIn("ended after 5 s, the limit of a run; its last lines: the fake rival hangs", said)

    def test_learning_rates_are_swept(self):
        self.RATE = []
        arguments = ["--only", "espalier-(dense|sparse)$|fake", "--steps", "10", *fake("fake", "well")]
        said = self.call(*arguments)
        tried = {}
        for line in said.splitlines():
            if line.startswith("learning rate "):
                rate, name, *_, loss, _, _ = line.removeprefix("learning rate ").replace(",", "").replace(":", "").split()
                tried.setdefault(name, {})[float(rate)] = float(loss)
        self.assertEqual(set(tried), {"espalier-dense", "espalier-sparse"})
        found = self.rows()
        for name, losses in tried.items():
            best = found[name]["lr"]
            self.assertEqual(losses[best], min(losses.values()))
            self.assertTrue({best / 2, best * 2} <= set(losses), losses)
            self.assertEqual(round(found[name]["val_loss"]["mean"], 4), losses[best])
        self.assertEqual(found["fake"]["lr"], found["espalier-dense"]["lr"])
        again = self.call(*arguments)
        self.assertIn("3 of 3 runs are in", again)
        self.assertNotIn("espalier-dense:", again)

    def test_headline_compares_the_fastest_rows(self):
        def row(title, seconds, reached=2):
            return {"title": title, "status": "ok", "reached": reached, "seeds": 2,
                    "seconds_to_target": {"median": seconds}}
        text = report.headline({"preset": {"target": 2.5}, "rows": [
            row("Espalier dense", 4.0), row("Espalier sparse", 2.0), row("PyTorch DDP", 5.0),
            row("PyTorch compiled", 1.0, reached=1), {"title": "DeepSpeed", "status": "failed"}]})
        self.assertIn(": Espalier sparse 2; PyTorch DDP 5 (2.5 times).", text)

    def test_bad_input(self):
        self.assertIn("no system has such a name", self.call("--only", "unknown", code=2))
        self.assertIn("is not of the form NAME=COMMAND", self.call("--rival", "nameless", code=2))
        self.assertIn("a rate such as 1gbit", self.call("--link", "fast", code=2))
        self.assertIn("a learning rate between 0 and 1", self.call("--lr", "0", code=2))
        self.assertIn("share a batch of 8", self.call("--ranks", "3", code=2))
        self.assertIn("is not a program", self.call(code=1, ESPALIER="/nonexistent"))
        self.text.write_text("too short")
        self.assertIn("are too few", self.call("--only", "fake", *fake("fake", "well"), code=1))
        self.assertIn("other settings", self.call("--only", "fake", "--steps", "9", *fake("fake", "well"), code=1))

    def test_no_rights_for_a_link(self):
        stand_in = self.folder / "bin" / "unshare"
        stand_in.parent.mkdir()
        stand_in.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2\nexit 1\n")
        stand_in.chmod(0o755)
        said = self.call("--only", "fake", "--link", "1gbit", *fake("fake", "well"),
                         PATH=f"{stand_in.parent}:{os.environ['PATH']}")
        self.assertIn("--link 1gbit was skipped, all ran on one machine", said)
        self.assertIn("Operation not permitted", " ".join((self.out / "comparison.md").read_text().split()))
        self.assertEqual(self.rows()["fake"]["status"], "ok")

    def test_link(self):
        said = self.call("--only", "espalier-dense", "--steps", "10", "--link", "100mbit")
        if "was skipped" in said:
            self.skipTest(said)
        self.assertIn("two hosts, link 100mbit", " ".join(said.split()))
        row = self.rows()["espalier-dense"]
        counted, sent = row["link_bytes"]["median"], row["sent_bytes_run"]["median"]
        # The interface counts in addition headers, start and end.
        self.assertGreater(counted, sent)
        self.assertLess(counted, 1.1 * sent + 200_000)

    def test_growing_differences_are_told_from_other_systems(self):
        """At this rate tiny networks are chaotic after about 25 steps, but they are the same systems."""
        text = "".join(page.read_text() for page in sorted((ROOT / "benchmarks" / "compare").glob("*.py")))
        self.text.write_text(text)
        self.RATE = ["--lr", "0.064"]
        said = " ".join(self.call("--only", "^espalier-(dense|pipeline|pipeline-replicas)$").split())
        self.assertRegex(said, "dense training coincide over the first [123][0-9] steps: 3 systems")
        self.assertIn("Later steps say nothing at this learning rate", said)


class Parts(unittest.TestCase):
    def test_philox_known_answers(self):  # kat_vectors of Random123, philox4x32 10
        self.assertEqual(inputs.philox(0, 0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        ones = 2**64 - 1
        self.assertEqual(inputs.philox(ones, ones, ones), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])

    def test_every_sweeper_is_tried(self):
        def run(contender, seed, lr):
            if contender.name == "ddp":
                return {"status": "failed", "why": "no launcher"}
            return {"status": "ok", "evaluations": [[1, abs(lr - 2e-3)]]}
        dense, = (c for c in contenders.CONTENDERS if c.name == "espalier-dense")
        found, notes, problems = tuning.rates([dense], 1e-3, lambda contender: None, run)
        self.assertEqual((found, problems), ({"dense": 2e-3}, []))
        found, notes, problems = tuning.rates([dense], 1e-3, lambda contender: "missing", run)
        self.assertEqual(found, {"dense": 1e-3})
        self.assertIn("PyTorch DDP eager: missing; Espalier dense: missing", problems[0])

    def test_smaller_networks(self):
        preset = presets.PRESETS["cpu-small"]
        self.assertEqual(smaller.shapes(preset), [(4, 64), (4, 80), (4, 96), (4, 112), (2, 96), (2, 128)])
        self.assertEqual(smaller.equal_time(preset, 4, 80, 0.75), {"layers": 4, "width": 80, "steps": 400, "warmup": 53,
                                                                  "eval_every": 40})

        def run(contender, seed, lr):
            return {"status": "ok", "evaluations": [[1, abs(contender.preset["width"] - 80) + abs(math.log2(lr / 8e-3))]]}
        networks = [dataclasses.replace(contenders.named("espalier-smaller"), preset={"width": width})
                    for width in (64, 80, 96)]
        chosen, rate = smaller.choose(preset, networks, 2e-3, True, run)
        self.assertEqual((chosen.preset["width"], rate), (80, 8e-3))
        chosen, rate = smaller.choose(preset, networks, 2e-3, False, run)
        self.assertEqual((chosen.preset["width"], rate), (80, 2e-3))

    def test_differing_curves_are_found(self):
        known = [c for c in contenders.CONTENDERS if c.curve == "dense"]
        results = [{"name": c.name, "seed": 1, "status": "ok", "losses": [4.0, 3.5, 3.0]} for c in known[:3]]
        self.assertTrue(all(c["equal"] for c in rows.coincidence(known, results, {"dtype": "fp32"})))
        results[2]["losses"] = [4.0, 3.5, 3.001]
        self.assertEqual([c["equal"] for c in rows.coincidence(known, results, {"dtype": "fp32"})], [True, False])

    def test_steps_in_which_differences_of_rounding_grow_say_nothing(self):
        known = [c for c in contenders.CONTENDERS if c.curve == "dense"][:2]
        curve = lambda *apart: [3.0] * 12 + [3.0 + x for x in apart]
        results = [{"name": c.name, "seed": 1, "status": "ok", "losses": curve(0, 0, 0)} for c in known]
        compare = lambda nudged: rows.coincidence(known, results, {"dtype": "fp32"}, lambda name, seed: nudged)[0]
        results[1]["losses"] = curve(1e-5, 1e-3, 1e-1)
        self.assertFalse(compare(None)["equal"])
        found = compare(curve(5e-5, 1e-2, 1.0))
        self.assertEqual((found["equal"], found["steps"], found["reference"]), (True, 13, known[0].name))
        self.assertFalse(compare(curve(1e-6, 1e-6, 1e-6))["equal"])  # rounding does not explain the difference
        results[1]["losses"] = [3.0, 3.1] + curve()[2:]  # nor one in the first steps
        self.assertFalse(compare([9.0] * 15)["equal"])

    def test_too_little_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text("pear apple quince " * 1000)
            preset = presets.PRESETS["tiny"]
            made = inputs.Inputs(pathlib.Path(folder) / "inputs", preset, text, str(PROGRAM))
            ours, rival = (next(c for c in contenders.CONTENDERS if c.needs == needs) for needs in ("espalier", "torch"))
            least = environment.memory_needed(str(PROGRAM), preset, made, ours)
            self.assertGreater(least, 2 * 16 * presets.parameters(preset, made.vocabulary))
            self.assertGreater(environment.memory_needed(str(PROGRAM), preset, made, rival), least)

    def test_parameters_are_those_of_the_program(self):
        preset = presets.PRESETS["cpu-small"]
        self.assertEqual(presets.parameters(preset, 65), 818176)
        self.assertEqual(presets.parameters(presets.PRESETS["gpu-124m"], 50257), 124439808)

    def test_rankings(self):
        def run(**medians):
            return {name: {"median": m, "low": m - 5, "high": m + 5} for name, m in medians.items()}
        first = run(a=100, b=50, c=47, d=10)
        self.assertEqual([len(found) for found in agree.pairs(first, run(a=90, b=40, c=42, d=12))], [5, 1, 0])
        self.assertEqual(agree.pairs(first, run(a=20, b=50, c=47))[2], [("a", "b"), ("a", "c")])

    def test_claims_are_the_papers_quotient(self):
        def row(name, step_ms):
            return {"name": name, "title": name, "status": "ok", "step_ms": {"median": step_ms}}
        found = claims.claims([row("espalier-dense", 100.0), row("espalier-samo", 66.0), row("zero-1", 200.0),
                               row("zero-2", 150.0), row("espalier-sparse", 30.0)])
        self.assertAlmostEqual(dict(found[2]["parts"])["SAMO storage"], 0.34)
        self.assertAlmostEqual(dict(found[3]["parts"])["Espalier sparse against zero-2"], 0.8)  # the faster one
        self.assertIsNone(dict(found[0]["parts"])["model state, sparse products and 8-bit states"])


class WithTorch(Scratch):
    RATE = []

    def setUp(self):
        super().setUp()
        pages = sorted((ROOT / "docs").glob("*.md"))
        self.text.write_text("".join(page.read_text() for page in pages)[:300_000])

    def test_every_row(self):
        said = self.call()
        found = self.rows()
        self.assertEqual({name: row["status"] for name, row in found.items()},
                         {c.name: "ok" for c in contenders.CONTENDERS}, said)
        said = " ".join(said.split())
        for curve, what in (("dense", "dense training"), ("masked", "training with one mask")):
            count = sum(c.curve == curve for c in contenders.CONTENDERS)
            self.assertRegex(said, f"of {what} coincide over the first [1-5][0-9] steps: {count} systems")
        ddp, ours = found["ddp"], found["espalier-dense"]
        self.assertAlmostEqual(ddp["val_loss"]["mean"], ours["val_loss"]["mean"], delta=0.05)  # tuned rates can be chaotic
        self.assertAlmostEqual(ddp["sent_bytes"]["median"] / ours["sent_bytes"]["median"], 1, delta=0.1)
        self.assertAlmostEqual(ddp["state_bytes_per_parameter"]["median"], 16, delta=0.5)


if __name__ == "__main__":
    with_torch = "--with-torch" in sys.argv
    if with_torch and not environment.Peers.installed():
        sys.exit("PyTorch or DeepSpeed is not installed: run benchmarks/peers/setup.sh, or set PEERS_PYTHON")
    H5PY = python_with_h5py()
    suite = unittest.TestSuite()
    for case in [WithTorch] if with_torch else [Table, Parts]:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
