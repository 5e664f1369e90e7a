"""benchmarks_test.py ROOT PROGRAM [REGEX]: the scripts of benchmarks/ run to their ends, with tiny networks.

Each script of benchmarks/ that calls the program is in RUNS, or in LEFT_OUT with the reason. The program is PROGRAM by way of
small_espalier.py, so all options, config keys and outputs of a script are those of today. Numbers are not looked at. REGEX
selects scripts. Takes minutes; scripts/nightly.sh runs it.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT, PROGRAM = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
LIMIT = 1800  # seconds of a script

# script: (arguments, environment); TEXT, OUT, FOLDER, PROGRAM are replaced.
RUNS = {
    "quality/quality.sh": ("TEXT", {"DTYPES": "fp32", "SEEDS": "1"}),
    "quality/mask_quality.sh": ("TEXT 100 1", {}),
    "quality/equal_time.sh": ("TEXT 1", {"RUNS": "dense-384 random-384 pruned-384"}),
    "quality/wide_start.sh": ("TEXT 128", {}),
    "quality/tuned.py": ("run OUT TEXT --cases dense|gradual|rigl|random-8-bit|dense-80-wide-equal-time --seeds 1", {}),
    "quality/many_tokens.py": ("run OUT TEXT FOLDER --cases dense|random|rigl|sparse-then-dense --tokens 0.03 0.06", {}),
    "steps/density.sh": ("TEXT 1 OUT", {"STEPS": "12"}),
    "steps/scaling.sh": ("TEXT 1", {"STEPS": "4"}),
    "steps/stages.sh": ("TEXT 2", {"STEPS": "4", "ROUNDS": "1"}),
    "steps/checks.py": ("TEXT 1", {}),
    "steps/largest_gpt.sh": ("512MiB 0", {}),
    "steps/published.py": ("PROGRAM machines/dgx-a100.toml", {}),
    "steps/published_v100.py": ("PROGRAM machines/summit.toml", {}),
    "steps/paper_scale.py": ("PROGRAM machines/h200.toml --first 64 --last 64", {}),
    "hub/convert.py": ("PROGRAM FOLDER --rounds 1 --layers 1", {}),
}
LEFT_OUT = {
    "compare/": "compare_test.py", "gpu/": "needs a GPU: gpu_test.sh", "gpu.sh": "needs a GPU: gpu_test.sh",
    "track.py": "the test script_track", "track.sh": "the test script_track",
    "peers/": "compares with PyTorch: compare_test.py --with-torch runs the rivals", "links/": "needs a link: two_hosts_test.sh",
    "quality/gradient_sums.py": "thousands of micro-batches a run", "training.sh": "is sourced", "quality/runs.py": "is imported", "quality/plot.py": "draws",
    "quality/adaprec.py": "needs a link and images", "quality/vision_epoch.py": "needs images and PyTorch",
    "quality/images.py": "makes images", "quality/async_quality.py": "needs images",
    "quality/reproductions.py": "needs images", "quality/codec_quality.py": "hundreds of runs",
    "quality/learning_curve.sh": "needs the build's benchmarks", "quality/english_text.sh": "downloads a text",
    "steps/published_common.py": "is imported", "steps/step.sh": "needs PyTorch", "steps/vision.py": "minutes a network",
    "steps/generate.py": "models of 124 M parameters and more", "steps/checkpoint.py": "writes 905 MB a file",
    "steps/planner.py": "needs calibrated machine files", "steps/choice.py": "needs calibrated machine files",
}


def left_out(name):
    return any(name == key or key.endswith("/") and name.startswith(key) for key in LEFT_OUT)


def main():
    folder = ROOT / "benchmarks"
    scripts = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".sh")]
    unknown = [name for name in scripts if name not in RUNS and not left_out(name)]
    if unknown or RUNS.keys() - set(scripts):
        sys.exit(f"benchmarks_test.py must run or leave out {unknown}; it names {sorted(RUNS.keys() - set(scripts))}, which are gone")
    failed = []
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        (scratch / "text").write_text("".join(f"line {i}: {i * i} is the square of {i}\n" for i in range(20000)))
        places = {"TEXT": str(scratch / "text"), "OUT": str(scratch / "out"), "FOLDER": str(scratch), "PROGRAM": str(PROGRAM)}
        for script, (arguments, variables) in RUNS.items():
            if not re.search(sys.argv[3] if len(sys.argv) > 3 else "", script):
                continue
            begin = time.time()
            (scratch / "out").unlink(missing_ok=True)
            command = [str(folder / script), *(places.get(word, word) for word in arguments.split())]
            done = subprocess.run([sys.executable, *command] if script.endswith(".py") else ["bash", *command], cwd=ROOT,
                                  env={**os.environ, "ESPALIER": str(ROOT / "tests/scripts/small_espalier.py"),
                                       "SMALL_ESPALIER": str(PROGRAM), **variables},
                                  capture_output=True, text=True, timeout=LIMIT)
            good = done.returncode == 0 and done.stdout.strip() and "Traceback" not in done.stderr
            print(f"{'ok    ' if good else 'FAILED'} {script} {time.time() - begin:.0f} s", flush=True)
            if not good:
                failed.append(script)
                print(f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}", flush=True)
    print(f"{len(failed)} scripts failed: {', '.join(failed)}" if failed else "all scripts ended well")
    sys.exit(bool(failed))


main()
