#!/usr/bin/env python3
"""Pages of `espalier report` and `espalier plan` in a browser (Debian's chromium): no error, every column in sight, and
the charts start as a reader needs them.

  tests/scripts/pages_test.py SOURCE_DIR PROGRAM
"""
import html
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, PROGRAM = pathlib.Path(sys.argv[1]).resolve(), str(pathlib.Path(sys.argv[2]).resolve())
CONFIG = """
[model]
layers = 2
heads = 2
width = 32
context = 32
[data]
kind = "bytes"
train = ["text.txt"]
[train]
steps = 60
global_batch = 8
eval_every = 10
eval_batches = 2
checkpoint_every = 30
[optimizer]
lr = 4e-3
warmup_steps = 5
[run]
threads = 1
"""
BEFORE = "<script>const failures = []; addEventListener('error', (event) => failures.push(event.message));</script>"
AFTER = """<script>
addEventListener("load", () => {
  const texts = (query) => [...document.querySelectorAll(query)].map((one) => one.textContent);
  const hidden = (id) => { const one = document.getElementById(id); return one ? one.hidden : null; };
  const tables = {};
  for (const table of document.querySelectorAll("table")) {
    const panel = table.parentElement;
    if (table.offsetWidth > 0) tables[table.id] = { outside: panel.scrollWidth - panel.clientWidth, rows: table.rows.length };
  }
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify({ failures, tables, notes: !hidden("notes"), pressed: texts("button[aria-pressed=true]"),
    ends: texts("#loss .end"), scale: texts("#loss text[text-anchor=end]").map(Number), width: innerWidth,
    teacher: hidden("teacher-section"), traffic: hidden("traffic-section"), pipeline: hidden("pipeline-section") });
  document.body.append(out);
});
</script>"""


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        words = "pear apple quince plum wall branch pruned by hand".split()
        draw = random.Random(1)
        (cls.folder / "text.txt").write_text(" ".join(draw.choice(words) for _ in range(8000)))
        (cls.folder / "c.toml").write_text(CONFIG)
        cls.run_program("train", "c.toml", "--out", "dense")
        cls.run_program("train", "c.toml", "--out", "sparse", "--set", "train.steps=100", "--set", 'pruning.method="random"')

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def run_program(cls, *arguments):
        done = subprocess.run([PROGRAM, *arguments], cwd=cls.folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"espalier {' '.join(arguments)}: {done.stderr}")

    def measured(self, page, width):
        text = (self.folder / page).read_text()
        opened = self.folder / "opened.html"
        opened.write_text(text.replace("<head>", "<head>" + BEFORE, 1).replace("</body>", AFTER + "</body>", 1))
        done = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},1200",
                               f"--user-data-dir={self.folder}/profile", "--virtual-time-budget=5000", "--dump-dom",
                               opened.as_uri()], capture_output=True, text=True, timeout=300)
        found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
        self.assertIsNotNone(found, done.stderr[-2000:])
        out = json.loads(html.unescape(found.group(1)))
        self.assertEqual(out["failures"], [])
        self.assertLessEqual(abs(out["width"] - width), 20)
        self.assertGreater(len(out["tables"]), 0)
        for name, table in out["tables"].items():
            self.assertLessEqual(table["outside"], 0, f"{name}, {width} wide")
        return out

    def losses(self, run):
        return [json.loads(line)["loss"] for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]

    def test_runs_of_different_lengths_are_compared_over_time(self):
        self.run_program("report", "dense", "sparse", "-o", "two.html")
        for width in 1280, 800:
            out = self.measured("two.html", width)
            self.assertIn("Time", out["pressed"])
            self.assertEqual(len(out["ends"]), 2)
            self.assertLess(max(out["scale"]), self.losses("dense")[0])
            self.assertTrue(out["teacher"] and out["traffic"] and out["pipeline"])

    def test_one_run(self):
        self.run_program("report", "dense")
        out = self.measured("dense/report.html", 1280)
        self.assertIn("Step", out["pressed"])
        self.assertEqual(len(out["ends"]), 1)
        self.assertFalse(out["notes"])

    def test_six_runs_one_of_which_diverges(self):
        names = ["dense", "sparse"]
        for name in "a", "b", "c":
            shutil.copytree(self.folder / "dense", self.folder / name)
            names.append(name)
        lines = [json.loads(line) for line in (self.folder / "dense/metrics.jsonl").read_text().splitlines()[:6]]
        (self.folder / "diverged").mkdir()
        (self.folder / "diverged/metrics.jsonl").write_text(
            "".join(json.dumps({**line, "loss": line["loss"] * 10 ** i, "grad_norm": 10.0 ** i}) + "\n"
                    for i, line in enumerate(lines)))
        self.run_program("report", *names, "diverged", "-o", "six.html")
        out = self.measured("six.html", 1280)
        self.assertTrue(out["notes"])
        self.assertEqual(len(out["ends"]), 6)
        self.assertLess(max(out["scale"]), 2 * self.losses("dense")[0])

    def test_layouts_of_a_search(self):
        config = SOURCE / "configs/gpt2-124m.toml"
        gpu = ["--set", "run.backend=cuda", "--set", "train.memory_budget=", "--set", "sparse.storage=auto"]
        self.run_program("plan", str(config), "--machine", str(SOURCE / "machines/h200.toml"), "--ranks", "2..8", "--search",
                         *gpu, "-o", "plan.html")
        for width in 1280, 800:
            out = self.measured("plan.html", width)
            self.assertFalse(out["notes"], "a harmless note is no warning")
            self.assertLessEqual(out["tables"]["plans"]["rows"], 10)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
