#!/usr/bin/env python3
"""Predicted strong scaling of a pruned GPT to 65,536 devices (docs/planner.md): figure 6 of Singh and
Bhatele (IPDPS 2023) as a dense pipeline, as SAMO, and as Espalier today would draw it.

  paper_scale.py PROGRAM MACHINE.toml [--model 2.7B|13B|100B] [--first N] [--last N] [--svg FILE]

Each point is the fastest layout that `espalier plan --search` finds. The machine file's outermost
level gets as many devices as the last point needs. Batches are the paper's; 100B has 2,048 sequences.

  dense       dense network, 1F1B, 32-bit states
  SAMO        90 % pruned, dense weights, compressed gradients and 32-bit states, 1F1B
  Espalier    90 % pruned, states of 32 or 8 bits, all schedules and storages, gradients in 16, 8 or
              4 bits
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "quality"))
import plot  # noqa: E402

# layers, heads, width, batch
MODELS = {"2.7B": (32, 32, 2560, 512), "13B": (40, 40, 5120, 2048), "100B": (96, 96, 9312, 2048)}
PRUNED = ("pruning.method=random", "pruning.scope=layer", "pruning.sparsity=0.9", "pruning.at_step=0")
# Searches of each system: settings, flags. The best of them counts.
SYSTEMS = {
    "dense": [(("pruning.method=none", "sparse.storage=dense", "parallel.schedule=1f1b"), ())],
    "SAMO": [((*PRUNED, "sparse.storage=expanded", "parallel.schedule=1f1b"), ())],
    "Espalier": [((*PRUNED, "sparse.storage=auto", f"optimizer.state_bits={bits}"), ("--codecs",))
                 for bits in (32, 8)],
}


def config_of(name):
    layers, heads, width, batch = MODELS[name]
    return f"""
model = {{kind = "gpt", layers = {layers}, heads = {heads}, width = {width}, context = 2048, vocabulary = 50257, tie_embeddings = true}}
data = {{kind = "tokens", token_type = "uint16", train = ["none.bin"]}}
train = {{dtype = "fp16", steps = 100, global_batch = {batch}, recompute = "auto", eval_every = 0}}
run = {{backend = "cuda"}}
"""


def widened(machine, devices):
    """The machine with at least so many devices: the last level's ranks, a multiple of those within."""
    levels = [int(number) for number in re.findall(r"^ranks = (\d+)", machine, flags=re.M)]
    inner = levels[-2] if len(levels) > 1 else 1
    wanted = max(levels[-1], -(-devices // inner) * inner)
    at = machine.rindex(f"ranks = {levels[-1]}")
    return machine[:at] + f"ranks = {wanted}" + machine[at + len(f"ranks = {levels[-1]}"):]


def best(program, machine, config, devices, settings, flags):
    """The fastest plan, or the reason why there is none."""
    command = [program, "plan", config, "--machine", machine, "--ranks", str(devices), "--search", "--json", *flags]
    done = subprocess.run([*command, *(word for setting in settings for word in ("--set", setting))],
                          capture_output=True, text=True)
    return json.loads(done.stdout)["plans"][0] if done.returncode == 0 else done.stderr.strip()


def limit_of(plan):
    """What takes most of the step beside computing, with its share."""
    part = max(("waiting", "reduction", "update"), key=lambda name: plan[name + "_ms"])
    return f"{part} {plan[part + '_ms'] / plan['step_ms']:.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("machine")
    parser.add_argument("--model", choices=MODELS, default="13B")
    parser.add_argument("--first", type=int, default=64)
    parser.add_argument("--last", type=int, default=65536)
    parser.add_argument("--svg")
    options = parser.parse_args()
    text = widened(pathlib.Path(options.machine).read_text(encoding="utf-8"), options.last)
    series = {name: ([], False) for name in SYSTEMS}
    print("| devices | system | stages × replicas | schedule | micro-batches | storage, exchange | step, s | most beside computing |")
    print("|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        config, machine = pathlib.Path(folder) / "model.toml", pathlib.Path(folder) / "machine.toml"
        config.write_text(config_of(options.model), encoding="utf-8")
        machine.write_text(text, encoding="utf-8")
        devices = options.first
        while devices <= options.last:
            for name, searches in SYSTEMS.items():
                found = [best(options.program, str(machine), str(config), devices, *search) for search in searches]
                plans = [plan for plan in found if not isinstance(plan, str)]
                if not plans:
                    print(f"| {devices:,} | {name} | – | – | – | – | – | {found[0].splitlines()[0][:100]} |", flush=True)
                    continue
                plan = min(plans, key=lambda one: one["step_ms"])
                series[name][0].append((devices, plan["step_ms"] / 1e3))
                print(f"| {devices:,} | {name} | {plan['stages']} × {plan['replicas']} | {plan['schedule']} | "
                      f"{plan['micro_batches']} × {plan['micro_batch']} | {plan['storage']}, {plan['exchange']} | "
                      f"{plan['step_ms'] / 1e3:.3g} | {limit_of(plan)} |", flush=True)
            devices *= 2
    if options.svg:
        drawn = {name: value for name, value in series.items() if value[0]}
        ticks = sorted({x for points, _ in drawn.values() for x, _ in points})
        picture = plot.chart(f"GPT {options.model}, 90 % pruned: seconds a step, predicted", "devices", "seconds",
                             drawn, ticks, True, None, True)
        pathlib.Path(options.svg).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
