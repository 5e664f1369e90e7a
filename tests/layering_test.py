#!/usr/bin/env python3
"""layering_test.py ROOT: fails on

- an #include that goes against the direction of the layers, or of the folders inside a large layer
- a circle of files, where a header and the sources of its name count as one file
- a header of one backend that is included outside the kernels
- a path that does not begin at the root, a header without #pragma once, a source of more than 800 lines
"""
import pathlib
import re
import sys

BELOW_MODELS = "src/core src/kernels sparse io/config/config.h"
BELOW_CONFIG = "src/core src/kernels io sparse pruning src/optim src/model parallel"
BELOW_TRAIN = "src/config src/communication_cost " + BELOW_CONFIG
# Layer: the layers and single headers that it may include besides itself.
LAYERS = {
    "src/core": "",
    "src/kernels": "src/core",
    "io": "src/core",
    "sparse": "src/core src/kernels io/config/config.h",
    "pruning": BELOW_MODELS,
    "src/optim": BELOW_MODELS,
    "src/model": BELOW_MODELS,
    "parallel": "src/core src/kernels io/config/config.h",
    "src/config": BELOW_CONFIG,
    "src/communication_cost": "src/core",
    "src/train": BELOW_TRAIN,
    "src/planner": BELOW_TRAIN + " src/train",
    "src/hub": "src/config src/core src/kernels io sparse pruning src/model src/train",
    "src/report": "src/core io",
    "src/cli": BELOW_TRAIN + " src/train src/planner src/hub src/report",
}
# Large layer: its folders, each with the earlier ones that it may include. The layer's own files are free.
INSIDE = {
    "parallel": {"transport": "", "wire": "", "reduction": "transport wire", "choice": "", "pipeline": "transport"},
    "src/train": {"masks": "", "stage": "masks", "generation": "stage", "exchange": "stage",
                  "codec_choice": "stage exchange", "memory": "masks stage exchange codec_choice",
                  "checkpoint": "masks stage exchange",
                  "run": "masks stage exchange codec_choice memory checkpoint"},
    "src/kernels": {"operations": "", "rules": "operations", "verify": "operations rules", "dry": "verify",
                    "cpu": "operations rules verify dry", "cuda": "operations rules verify dry"},
    "sparse": {"index": "", "store": "index", "weight": "store"},
    "src/cli": {"shared": "", "plan": "shared"},
    "io": {"config": "", "files": "", "run": "files", "hdf5": "files", "safetensors": "files",
           "tokenizer": "files run", "checkpoint": "files hdf5 tokenizer", "data": "config files run tokenizer"},
}
# A queue owns the handles of libraries, whose calls need the queue: the one circle of files.
OWNED = {"src/kernels/cuda/device/queue.cpp": {"src/kernels/cuda/cudnn/handle.h", "src/kernels/cuda/sparse/cusparse.h"}}
LARGEST_FILE = 800


def layer_of(path):
    return next((layer for layer in LAYERS if path.startswith(layer + "/")), "")


def fault(root, file, included):
    """What is wrong with one #include; empty: nothing."""
    layer, target = layer_of(file), layer_of(included)
    if not (root / included).exists():
        return f'"{included}", which is no path from the root'
    if not target:
        return f'"{included}", which is in no layer'
    if target == layer:
        folders = INSIDE.get(layer, {})
        start, end = (path[len(layer) + 1:].split("/")[0] for path in (file, included))
        if start != end and start in folders and end in folders and end not in folders[start].split():
            return f'"{included}": {layer}/{start} must not see {end}'
    elif re.match("src/kernels/(cpu|cuda|dry)/", included):
        return f'"{included}", which is private to one backend: use src/kernels/kernels.h'
    elif not {target, included} & set(LAYERS[layer].split()):
        return f'"{included}": {layer} must not see {target}'
    return ""


def circle_of(includes):
    """A circle among {file: included files}, by names without endings; empty: there is none."""
    edges = {}
    for file, targets in includes.items():
        name = file.rsplit(".", 1)[0]
        edges.setdefault(name, set()).update({target.rsplit(".", 1)[0] for target in targets} - {name})
    while ends := {name for name in edges if not edges[name] & edges.keys()}:
        edges = {name: edges[name] - ends for name in edges.keys() - ends}
    path = sorted(edges)[:1]
    while path and path[-1] not in path[:-1]:  # each file left includes another one that is left
        path.append(min(edges[path[-1]] & edges.keys()))
    return " -> ".join(path[path.index(path[-1]):]) if path else ""


def main():
    root = pathlib.Path(sys.argv[1])
    mistakes, includes, count = [], {}, 0
    for layer, folders in INSIDE.items():
        names = list(folders)
        mistakes += [f"{layer}/{name} may not be allowed to see {seen}: INSIDE has it later" for name, seen_by in folders.items()
                     for seen in seen_by.split() if seen not in names[:names.index(name)]]
    files = sorted(path for layer in LAYERS for path in (root / layer).rglob("*") if path.suffix in (".h", ".cpp", ".cu"))
    for path in files:
        file, text = str(path.relative_to(root)), path.read_text()
        found = re.findall(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', text, re.MULTILINE)
        mistakes += [f"{file} includes {what}" for included in found if (what := fault(root, file, included))]
        includes[file] = set(found) - OWNED.get(file, set())
        count += len(found)
        if path.suffix == ".h" and "#pragma once" not in text.splitlines():
            mistakes.append(f"{file} has no #pragma once")
        if (lines := text.count("\n")) > LARGEST_FILE:
            mistakes.append(f"{file} has {lines} lines: split it (at most {LARGEST_FILE})")
    if circle := circle_of(includes):
        mistakes.append(f"a circle of files: {circle}")
    if count == 0:
        mistakes.append(f"no #include was found below {root}: is ROOT the checkout?")
    print("\n".join(mistakes) or f"{count} includes in {len(files)} files keep to the layers")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
