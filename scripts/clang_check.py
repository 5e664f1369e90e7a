#!/usr/bin/env python3
"""clang_check.py BUILD [PATTERN]: clang's warnings, as errors, in each source of BUILD/compile_commands.json.

Checks syntax and types (-fsyntax-only) and writes no objects. A source that is compiled several times
is checked once, with its last command. Sources that the build compiles in groups are checked one by
one. Precompiled headers are left out, so a source must include what it uses. Sources of nvcc are left
out. Sources that the build generates must exist: build first.
PATTERN: a regular expression that paths must match. $CLANGXX names the compiler, 16 or later (default
clang++-16, else clang++). Exit code 1: a source has a warning or an error, or does not exist.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

GCC_ONLY = re.compile(r"-fpch-preprocess|-Winvalid-pch")


def sources_of(entry):
    """The sources that a command compiles: a group's file includes them."""
    if "/Unity/unity_" not in entry["file"]:
        return [entry["file"]]
    return re.findall(r'^#include "(.*)"$', pathlib.Path(entry["file"]).read_text(), re.MULTILINE)


def clang_command(clang, command, source):
    words = shlex.split(command)
    # Clang 16 refuses a lambda that captures a structured binding wherever OpenMP is on.
    left_out = {"-c"} if "#pragma omp" in pathlib.Path(source).read_text() else {"-c", "-fopenmp"}
    while not re.search(r"(\+\+|cc|clang)[-\d.]*$", words[0]):
        words.pop(0)  # a launcher
    kept = [clang, "-fsyntax-only", "-Wno-unknown-warning-option", "-Wno-unknown-pragmas"]
    rest = iter(words[1:])
    for word in rest:
        if word in ("-o", "--param"):
            next(rest)
        elif word == "-include":
            header = next(rest)
            if "cmake_pch" not in header:
                kept += [word, header]
        elif word not in left_out and not GCC_ONLY.match(word):
            kept.append(word)
    return kept


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    build, pattern = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else ""
    clang = os.environ.get("CLANGXX") or shutil.which("clang++-16") or shutil.which("clang++")
    if not clang:
        sys.exit("clang++ is missing: scripts/install-packages.sh --ci, or set CLANGXX")
    sources = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        for source in sources_of(entry):
            if re.search(pattern, source) and "cmake_pch" not in source and "nvcc" not in entry["command"]:
                sources[source] = dict(entry, file=source, command=entry["command"].replace(entry["file"], source))

    missing = [source for source in sources if not pathlib.Path(source).exists()]
    if missing:
        sys.exit(f"{missing[0]} does not exist ({len(missing)} such): build first (cmake --build {build})")

    def check(entry):
        return subprocess.run(clang_command(clang, entry["command"], entry["file"]), cwd=entry["directory"], text=True, capture_output=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, done in zip(sources, pool.map(check, sources.values())):
            if done.returncode != 0:
                failed += 1
                print(f"{name}:\n{done.stderr[:6000]}", flush=True)
    print(f"clang: {len(sources) - failed} sources are clean, {failed} are not")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
