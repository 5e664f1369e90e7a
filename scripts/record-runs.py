#!/usr/bin/python3
"""Records the results of PROGRAM in the file OUT. A `diff` of the files of two builds shows every changed bit.

Runs short trainings and other subcommands in a temporary folder, on generated data. OUT holds:
- losses, gradient norms and bytes sent of each step;
- results of summary.json (memory in lines that begin with "memory");
- a digest of each dataset (not of attributes) of the last checkpoint and of other HDF5 files;
- the output of other subcommands.

Numbers are exact and times are left out, so a program writes the same file again on the same kind of processor. Exit
code 1: a run FAILED. Needs mpirun and python3-h5py.
"""
import argparse
import concurrent.futures
import fnmatch
import hashlib
import itertools
import json
import os
import pathlib
import queue
import random
import re
import shlex
import struct
import subprocess
import tempfile

import h5py

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAST = "run/checkpoints/step-000016.h5"
ENVIRONMENT = {"OMPI_MCA_btl_base_warn_component_unused": "0", "HWLOC_HIDE_ERRORS": "2", "PMIX_MCA_psec": "native", "PMIX_MCA_gds": "hash"}
COMMON = """
train = {steps = 16, global_batch = 12, seed = 3, eval_every = 7, eval_batches = 2}
optimizer = {lr = 3e-3, warmup_steps = 2}
pruning = {method = "magnitude", sparsity = 0.8, at_step = 4}
sparse = {storage = "dense"}  # the default, "auto", chooses by time: two records would differ
parallel = {check_every = 4, timeout_s = 60}
run = {out = "run", threads = 1}
"""
CONFIGS = {"gpt": COMMON + """
model = {kind = "gpt", layers = 2, heads = 3, width = 96, context = 32}
data = {kind = "bytes", train = ["../text.txt"]}""", "mlp": COMMON + """
model = {kind = "mlp", hidden = [96, 64, 64]}
data = {kind = "images", train = ["../train-x", "../train-y"], validation = ["../val-x", "../val-y"]}"""}
SECTIONS = {  # for keys that RUNS names without a section
    "model": "layers width tie_embeddings dropout", "sparse": "storage index", "optimizer": "lr clip state_bits weight_decay",
    "train": "steps global_batch micro_batch dtype gradient_dtype master_copy loss_scale recompute",
    "pruning": "method at_step from_step to_step every scope exclude file",
    "parallel": "pipeline weight_prediction partition zero value_codec reduction codec "
                "rounding error_feedback activation_codec"}
SECTION_OF = {key: section for section, keys in SECTIONS.items() for key in keys.split()}
CUTS = {2: "[3, 3]", 3: "[2, 2, 2]", 4: "[2, 1, 1, 2]"}  # layers per stage; a partition by measured times would not repeat
# NAME CALL [; CALL]...: runs the calls in order in one folder. A call is a subcommand ("espalier ...") or a training, given by its settings
# and options: mlp selects that network, x2 two ranks, 1f1b@2 a schedule of two stages. A|B makes one run with A and one with B.
RUNS = """
unpruned method=none steps=20 micro_batch=4 gradient_dtype=fp32 dtype=fp32|bf16 optimizer.schedule=constant
fp32 storage=dense|expanded|sparse index=int32 scope=layer
bf16 dtype=bf16 storage=dense|expanded|sparse index=bitmap dropout=0.1 recompute=selective
fp16 dtype=fp16 storage=dense|expanded|sparse index=golomb state_bits=8 width=192
master-copy dtype=bf16 master_copy=true|false storage=expanded state_bits=8 micro_batch=4
index storage=sparse index=auto|int32|bitmap|golomb method=random at_step=-1 scope=layer state_bits=8
gradual method=magnitude|block|rigl dtype=bf16 storage=expanded micro_batch=2 at_step=-1 from_step=2 to_step=11 every=3 state_bits=8
nm method=nm at_step=-1 storage=expanded|sparse index=nm
block dtype=fp32|bf16 method=block storage=block index=block state_bits=8
by-name storage='{default="sparse", "blocks.0.*"="expanded"}' index='{default="golomb", "*.mlp.*"="bitmap"}' exclude='["*.expand.weight"]'
moving x1|x2 method=rigl|set at_step=-1|2 dtype=bf16 every=3 storage=sparse micro_batch=3
chars-tied data.kind=chars tie_embeddings=true dropout=0.2 recompute=none|full storage=sparse weight_decay=0.02
tokens-sgd data.kind=tokens data.train='["../tokens.bin"]' optimizer.kind=sgd lr=0.05 dtype=bf16 run.threads=2 storage=sparse
kernels kernels=cpu-avx2|cpu-portable dtype=bf16 storage=sparse state_bits=8 steps=8
mlp mlp x1|x4 optimizer.kind=sgd|adamw dtype=fp16 loss_scale=64 storage=sparse codec=sign error_feedback=true reduction=all-to-all
mlp-block mlp dtype=bf16 method=block:8 storage=block clip=0 optimizer.kind=sgd state_bits=8 master_copy=false;\
 espalier prune LAST -o pruned.h5 --method magnitude --sparsity 0.9; espalier eval pruned.h5 --json storage=sparse
sum x2|x4 reduction=sra|ring|all-to-all|hierarchical|mpi dtype=bf16 storage=sparse
sum-wide x3 dtype=fp32|fp16 width=192 test=parallel.bucket_mb=0.5 rounding=stochastic codec=fp32|maxmin:4|table:2
code x2 codec=maxmin:4|sign|topk:0.05|table:4|dynamic8|static8|mantissa8|linear8|fp8-e5m2 rounding=stochastic error_feedback=true
code-bf16 x3 reduction=ring codec=maxmin:3:64:fp16|sign|dynamic8-bnb|linear8:128 dtype=bf16 storage=sparse
code-fp16 x4 reduction=all-to-all|hierarchical codec=topk:0.1 error_feedback=true dtype=fp16 loss_scale=256 test=parallel.overlap=false
code-by-name x2 codec='{default="fp8-e4m3", "head.*"="fp16", "embedding.*"="bf16", "*.norm1.*"="linear8"}' reduction=all-to-all
adaptive x2 codec=adaptive:3 error_feedback=true rounding=stochastic storage=sparse optimizer.kind=adamw|sgd
zero x2 zero=1 reduction=sra|ring dtype=fp32|bf16 storage=sparse state_bits=8
zero-values x3 zero=1 codec=maxmin:4 value_codec=linear8|topk:0.1:256|sign dtype=bf16
pipe gpipe@2|1f1b@3|interleaved@2|zb-h1@3|zb-v@2|dualpipe-v@2|message-driven@3 dtype=fp32 storage=sparse recompute=selective
pipe-bf16 interleaved@2|zb-h1@3|zb-v@2 dtype=bf16 storage=expanded dropout=0.1
pipe-tied 1f1b@3|gpipe@2 dtype=fp16 tie_embeddings=true recompute=full
pipe-codes 1f1b@4 activation_codec=dynamic8|sign method=rigl:distribution=uniform every=3 at_step=-1
pipe-2x2 1f1b@2|zb-v@2 x4 codec=maxmin:4 error_feedback=true|false zero=1 activation_codec=bf16 storage=sparse dtype=bf16
async async@3 global_batch=4 weight_prediction=none|stash|2bw|spectrain storage=sparse train.eval_every=3
async-sgd async@3 global_batch=2 weight_prediction=spectrain dtype=bf16 optimizer.kind=sgd lr=0.1
async-2x2 async@2 x4 global_batch=4 weight_prediction=none|spectrain|stash state_bits=8 dtype=bf16
delays partition='[1, 2, 2, 1]' layers=4 parallel.schedule=async:4 weight_prediction=none micro_batch=4
resume-feedback x2 codec=maxmin:4 error_feedback=true dtype=bf16 --steps 9; x2 codec=maxmin:4 error_feedback=true dtype=bf16 --resume auto
resume-ranks x2 storage=sparse state_bits=8 --steps 3; storage=sparse state_bits=8 --resume auto --steps 9; x3 storage=sparse --resume auto
resume-grid x2 layers=4 zero=1 value_codec='{default="linear8", "head.*"="fp32"}' dtype=fp16 --steps 6; zb-h1@2 x4 dtype=fp16 --resume auto
resume-async async@2 weight_prediction=spectrain --steps 7; async@2 weight_prediction=spectrain --resume auto
init storage=dense; storage=sparse dtype=bf16 method=none --init LAST --out second; x2 method=file file=LAST at_step=-1 --out third
tools dtype=bf16; espalier inspect LAST --json; espalier eval LAST --json; espalier sample LAST --prompt 'the tree ' --tokens 60 --seed 2;\
 espalier codec --checkpoint LAST --json --seconds 0 --by-parameter --codec maxmin:4 sign topk:0.02 table:3; espalier report run -o r.html
convert storage=sparse dtype=bf16; espalier export LAST -o plain.h5; espalier import plain.h5 -o imported.h5 --config ../gpt.toml;\
 espalier prune LAST -o block.h5 --method block:8 --sparsity 0.85 --scope layer; espalier inspect block.h5;\
 espalier prune plain.h5 -o random.h5 --method random --sparsity 0.9 --seed 4 --exclude 'blocks.0.*'; espalier eval imported.h5 --json
dry-run espalier train CONFIGS/gpt3-13b.toml|gpt-100b.toml|gpt2-xl.toml|mlp-fashion-mnist.toml --dry-run --json
dry-run-gpt2 espalier train CONFIGS/gpt2-124m.toml --dry-run --json storage=dense|sparse run.backend=cpu|cuda optimizer.offload=true pipeline=2|4
dry-run-budget espalier train CONFIGS/gpt2-124m.toml --dry-run micro_batch=0 recompute=auto train.memory_budget=1GiB|6GiB
codec espalier codec --synthetic heavy|normal --count 20000 --seed 1 --json --seconds 0
schedule espalier schedule gpipe|1f1b|interleaved|zb-h1|zb-v|dualpipe-v|message-driven|async --stages 4 --micro-batches 8
config-help espalier info --config-help
"""


def runs():
    """{name: calls} of RUNS."""
    found = {}
    for line in RUNS.strip().splitlines():
        name, rest = line.split(maxsplit=1)
        parts = re.split(r"([^\s=/|]+(?:\|[^\s=/|]+)+)", rest)  # every second one is A|B|...
        for choice in itertools.product(*(part.split("|") if n % 2 else [part] for n, part in enumerate(parts))):
            found["-".join([name, *choice[1::2]])] = [text.strip() for text in "".join(choice).split(";")]
    return found


def command_of(line):
    """(arguments, ranks, environment) of a call."""
    words = shlex.split(line.replace("LAST", LAST).replace("CONFIGS", str(ROOT / "configs")))
    ranks, options, settings, environment = 1, ["train", "../gpt.toml"] if words[0] != "espalier" else [], [], {}
    for word in words[1:] if words[0] == "espalier" else words:
        key, equals, value = word.partition("=")
        schedule, _, stages = word.partition("@")
        if key == "kernels":
            environment["ESPALIER_KERNELS"] = value
        elif key == "test":
            environment["ESPALIER_TEST"] = value
        elif equals:
            settings.append(word if "." in key else f"{SECTION_OF[key]}.{word}")
        elif word in CONFIGS:
            options[1] = f"../{word}.toml"
        elif re.fullmatch("x[1-9]", word):
            ranks = int(word[1:])
        elif stages:
            ranks = int(stages)
            cut = CUTS[2 * ranks if schedule in ("interleaved", "zb-v", "dualpipe-v") else ranks]
            settings += ["model.layers=4", "train.micro_batch=2", f"parallel.schedule={schedule}",
                         f"parallel.pipeline={ranks}", f"parallel.partition={cut}"]
        else:
            options.append(word)
    return options + [f"--set={setting}" for setting in settings], ranks, environment


def make_data(folder):
    """Writes configs, and text, tokens and images that a network can learn from; the same in every call."""
    for name, text in CONFIGS.items():
        (folder / f"{name}.toml").write_text(text)
    draw = random.Random(5)
    words = "a tree pruned flat grows along the wall and bears sweet fruit, year after year.".split()
    numbers = list(itertools.accumulate((draw.randrange(1, 5) for _ in range(5000)), lambda last, step: (last + step) % len(words)))
    (folder / "text.txt").write_text(" ".join(words[number] for number in numbers))
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(numbers)}H", *(7 * number for number in numbers)))
    centres = [draw.randbytes(64) for _ in range(10)]  # of 10 classes of 8 x 8 pixels
    for part, count in (("train", 256), ("val", 64)):
        labels = [draw.randrange(10) for _ in range(count)]
        pixels = bytes((centre + draw.randrange(200)) // 2 % 256 for label in labels for centre in centres[label])
        (folder / f"{part}-x").write_bytes(struct.pack(">4I", 0x803, count, 8, 8) + pixels)
        (folder / f"{part}-y").write_bytes(struct.pack(">2I", 0x801, count) + bytes(labels))


def run_lines(run):
    """Lines about a run directory: steps, results, memory."""
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        keys = "step loss grad_norm val_loss loss_scale sparsity comm_bytes_sent allreduce_bytes p2p_bytes".split()
        yield " ".join(f"{key}={line[key]!r}" for key in keys if key in line)
    summary = json.loads((run / "summary.json").read_text())
    for key in "final_val_loss best_val_loss parameters kept_parameters sparsity model_state_bytes_per_parameter grid backend".split():
        yield f"{key} {summary[key]!r}"
    if "in_flight" in (summary.get("pipeline") or {}):
        return  # follows measured times, and memory follows it
    memory, planned = summary["memory"], summary["planned_peak"]
    for kind in [key for key in memory["total"] if key != "peak_rss"]:
        ranks = " ".join(f"{row[kind]['bytes']}/{row[kind]['peak']}" for row in memory["ranks"])
        yield f"memory {kind}: bytes/peak of each rank {ranks}; planned {planned.get(kind)}"
    yield f"memory planned process: {planned['process']}; activations: {summary['activations']}"


def file_lines(path):
    """Lines about an HDF5 file: one per group, with a digest of each dataset."""
    names, lines = [], {}
    with h5py.File(path) as file:
        file.visit(names.append)
        for name in sorted(name for name in names if isinstance(file[name], h5py.Dataset)):
            data = file[name][()]
            digest = hashlib.sha256(f"{data.dtype.str}{data.shape}".encode() + data.tobytes()).hexdigest()[:12]
            group, _, leaf = name.rpartition("/")
            lines[group] = f"{lines.get(group, group)} {leaf}={digest}"
    return lines.values()


def call(line, program, folder, cores):
    """Lines about the output of a call; raises RuntimeError if it fails."""
    arguments, ranks, environment = command_of(line)
    launcher = [ROOT / "scripts/mpirun.sh", str(ranks)] if ranks > 1 else []
    done = subprocess.run(["timeout", "120", "taskset", "-c", cores, *launcher, program, *arguments], cwd=folder, text=True,
                          env={**os.environ, **ENVIRONMENT, **environment}, capture_output=True, errors="backslashreplace")
    if done.returncode != 0:
        said = ["no output", *re.findall(r".*\w.*", done.stderr)]
        raise RuntimeError(f"{line}: exit code {done.returncode}: {([s for s in said if 'espalier: error' in s] or said)[-1]}")
    if not line.startswith("espalier") or arguments[0] == "report":
        return []  # their output has times
    if "--json" not in arguments:
        return [f"--- {line}", done.stdout.rstrip()]
    timeless = json.loads(done.stdout, object_pairs_hook=lambda pairs: {k: v for k, v in pairs if not re.search("(_mb_s|seconds)$", k)})
    return [f"--- {line}", json.dumps(timeless, indent=1)]


def record(name, calls, program, base, free):
    """(lines, True if all calls succeeded) of a run."""
    folder, lines, cores = base / name, [f"=== {name}"], free.get()
    try:
        folder.mkdir()
        for line in calls:
            lines += call(line, program, folder, cores)
        for run in sorted(path.parent for path in folder.glob("*/metrics.jsonl")):
            last = max(run.glob("checkpoints/step-*.h5"))
            lines += [f"--- {run.name}", *run_lines(run), f"--- {run.name}/{last.name}", *file_lines(last)]
        for path in sorted(folder.glob("*.h5")):
            lines += [f"--- {path.name}", *file_lines(path)]
        return lines, True
    except Exception as error:
        return [*lines, f"FAILED {error}".replace(str(base), "")], False
    finally:
        free.put(cores)


def main():
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="the espalier binary")
    parser.add_argument("out", type=pathlib.Path, help="the text file to write")
    parser.add_argument("--only", default="*", help="pattern of names of runs, e.g. 'pipe*'")
    parser.add_argument("--jobs", type=int, default=1, choices=range(1, len(cores) + 1), help="parallel runs; each gets its share of the cores")
    given = parser.parse_args()
    chosen = {name: calls for name, calls in runs().items() if fnmatch.fnmatch(name, given.only)}
    free, failed = queue.Queue(), 0  # sets of cores; mpirun.sh counts those of its set
    for job in range(given.jobs):
        free.put(",".join(map(str, cores[job::given.jobs])))
    with tempfile.TemporaryDirectory(prefix="espalier-record-") as folder, open(given.out, "w", encoding="utf-8") as out, \
            concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        make_data(pathlib.Path(folder))
        results = pool.map(lambda name: record(name, chosen[name], given.program.resolve(), pathlib.Path(folder), free), chosen)
        for name, (lines, good) in zip(chosen, results):
            out.write("\n".join(lines) + "\n\n")
            failed += not good
            print(name if good else f"{name}: {lines[-1]}", flush=True)
    print(f"{len(chosen) - failed} runs recorded, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main())
