#!/usr/bin/env python3
"""clang_check.py BUILD [PATTERN] [--without PATTERN]: clang's warnings, as errors, in each source of BUILD/compile_commands.json.

Checks syntax and types (-fsyntax-only) and writes no objects. A source that is compiled several times
is checked once, with its last command. Without PATTERN, sources that the build compiles in groups are
checked in these groups, in a third of the time. With PATTERN, a regular expression that paths must
match ("." matches all), sources are checked one by one, so each must include what it uses. --without
leaves out the sources that its pattern matches. Precompiled headers are left out, and sources of nvcc. Sources that the build generates must exist: build first.
$CLANGXX names the compiler, 16 or later (default clang++-16, else clang++). Exit code 1: a source has a
warning or an error, or does not exist.
"""
import argparse
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


def uses_openmp(source):
    return "#pragma omp" in pathlib.Path(source).read_text()


def clang_command(clang, entry, openmp):
    """Reads the source from standard input."""
    words = shlex.split(entry["command"])
    # Clang 16 refuses a lambda that captures a structured binding wherever OpenMP is on.
    left_out = {"-c", entry["file"]} if openmp else {"-c", entry["file"], "-fopenmp"}
    while not re.search(r"(\+\+|cc|clang)[-\d.]*$", words[0]):
        words.pop(0)  # a launcher
    language = "c" if entry["file"].endswith(".c") else "c++"
    kept = [clang, "-fsyntax-only", "-Wno-unknown-warning-option", "-Wno-unknown-pragmas"]
    rest = iter(words[1:])
    for word in rest:
        if word in ("-o", "--param"):
            next(rest)
        elif word == "-x":
            language = next(rest)
        elif word == "-include":
            header = next(rest)
            if "cmake_pch" not in header:
                kept += [word, header]
        elif word not in left_out and not GCC_ONLY.match(word):
            kept.append(word)
    return [*kept, "-x", language, "-"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--without", default="$.", help="default: none")
    arguments = parser.parse_args()
    build, pattern, without = arguments.build, arguments.pattern, arguments.without
    clang = os.environ.get("CLANGXX") or shutil.which("clang++-16") or shutil.which("clang++")
    if not clang:
        sys.exit("clang++ is missing: scripts/install-packages.sh --ci, or set CLANGXX")
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        for source in sources_of(entry):
            chosen = re.search(pattern, source) and not re.search(without, source)
            if chosen and "cmake_pch" not in source and "nvcc" not in entry["command"]:
                entries[source] = entry
    missing = [source for source in entries if not pathlib.Path(source).exists()]
    if missing:
        sys.exit(f"{missing[0]} does not exist ({len(missing)} such): build first (cmake --build {build})")

    groups = {}
    for source, entry in entries.items():
        together = not pattern and not uses_openmp(source)
        groups.setdefault(entry["file"] if together else source, []).append(source)

    def check(group):
        text = "".join(f'#include "{source}"\n' for source in group)
        command = clang_command(clang, entries[group[0]], any(map(uses_openmp, group)))
        return subprocess.run(command, cwd=entries[group[0]]["directory"], input=text, text=True, capture_output=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for group, done in zip(groups.values(), pool.map(check, groups.values())):
            if done.returncode != 0:
                failed += 1
                print(f"{' '.join(group)}:\n{done.stderr[:6000]}", flush=True)
    print(f"clang: {len(groups) - failed} of {len(groups)} checks of {len(entries)} sources are clean, {failed} are not")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
