#!/usr/bin/env python3
"""coverage_table.py BUILD OUT.md: lines of production code that tests ran, by folder, in a build with --coverage.

Reads the .gcda files below BUILD with gcov ($GCOV names another program). A line that was compiled several times, as
kernels are for each instruction set, counts once, and as run if any of its objects ran it.
"""
import collections
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "sparse", "pruning", "parallel", "io")


def lines_of(build):
    """{file: {line: runs}} of sources below FOLDERS."""
    runs = collections.defaultdict(lambda: collections.defaultdict(int))
    data = sorted(build.rglob("*.gcda"))
    for start in range(0, len(data), 50):
        done = subprocess.run([os.environ.get("GCOV", "gcov"), "--json-format", "--stdout", *map(str, data[start:start + 50])],
                              cwd=build, capture_output=True, text=True, check=True)
        for text in done.stdout.splitlines():
            found = json.loads(text)
            for file in found["files"]:
                path = pathlib.Path(os.path.normpath(os.path.join(found["current_working_directory"], file["file"])))
                if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
                    continue
                for line in file["lines"]:
                    runs[str(path.relative_to(ROOT))][line["line_number"]] += line["count"]
    return runs


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    folders = collections.defaultdict(lambda: [0, 0, 0])
    for file, lines in lines_of(build).items():
        parts = pathlib.PurePath(file).parts[:-1]
        for depth in {1 if parts[0] != "src" else 2, len(parts)}:  # a layer, and the folder itself
            row = folders["/".join(parts[:depth])]
            row[0] += 1
            row[1] += len(lines)
            row[2] += sum(count > 0 for count in lines.values())
    if not folders:
        sys.exit(f"{build} has no counts: configure with the preset coverage, build, run ctest")
    rows = [f"| `{name}` | {files} | {lines} | {ran} | {100 * ran / lines:.1f} % |"
            for name, (files, lines, ran) in sorted(folders.items()) if lines]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    out.write_text("\n".join([
        "# Coverage", "",
        "After this page you know which share of the lines with code the fast tests run, by folder.", "",
        "- `STEPS=coverage scripts/nightly.sh` writes this page.",
        "- CUDA sources are counted where the harness of `tests/simt` compiles them.",
        f"- Commit {commit or 'unknown'}, {datetime.date.today()}.", "",
        "| folder | files | lines | run | share |", "|---|---|---|---|---|", *rows, ""]))
    print(out)


if __name__ == "__main__":
    main()
