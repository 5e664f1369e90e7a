#!/usr/bin/env python3
"""file_names_test.py ROOT [--columns]: file names in comments and Markdown pages must belong to existing files.

- A name that ends in .h, .cpp, .cu, .py, .sh, .cmake or .md, with or without folders, must be the end of a path.
- A path that begins with a folder of the root must exist, with any ending.
- Comments are those of C++, CUDA, CMake, shell and Python sources.
- --columns: comments, and lines of Markdown outside tables, code and links, have at most 100
  columns.
"""
import os
import pathlib
import re
import sys

# Names of files of other projects, of users, of builds and of runs.
OTHERS = set("""
    nccl.h cudnn.h cublasLt.h cusparse.h cuda_bf16.h cuda_fp16.h cuda_fp8.h cuda_runtime.h mpi-ext.h mpi.h H5FDpublic.h
    dnnl-config.cmake my_system.py my_model.py torch_prune.py mask_beside.py mask_tree.py scipy_sparse.py zeros.py read_masks.py summary.md benchmarks/peers/.venv
""".split())
PLACEHOLDERS = {"NAME", "FOLDER", "FILE", "ISA", "SCRIPT"}  # of parts of names
SOURCES = {".h": "//", ".cpp": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".txt": "#", "": "#"}
ENDS = r"(?:h|cpp|cu|py|sh|cmake|md)"
NAME = re.compile(r"(?<![\w./$*{}<>~-])((?:\.\./)*[\w./-]*\w\." + ENDS + r")(?![\w/*(])(?!\.\w)")
COLUMNS = 100


def files_below(root):
    for folder, folders, names in os.walk(root):
        top = pathlib.Path(folder) == root
        folders[:] = sorted(name for name in folders if name not in (".git", "__pycache__", ".venv")
                            and not (top and re.match(r"build|runs$|data$", name)))
        for name in names:
            yield (pathlib.Path(folder) / name).relative_to(root)


def comments_of(path, lines):
    """(line number, text) of comments; of Markdown, all lines."""
    if path.suffix == ".md":
        yield from enumerate(lines, 1)
        return
    mark = SOURCES[path.suffix]
    for number, line in enumerate(lines, 1):
        if mark == "//" and "//" in line and not line.lstrip().startswith("#include"):
            yield number, line.split("//", 1)[1]
        elif mark == "#" and (found := re.search(r"(?:^|\s)#(?!!)(.*)", line)):
            yield number, found.group(1)


def stands_for(name):
    return PLACEHOLDERS & set(re.split("[^A-Z]+", name))


def mistakes_of(root):
    files = set(map(str, files_below(root)))
    ends = {"/".join(parts[start:]) for parts in (name.split("/") for name in files) for start in range(len(parts))}
    folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents}
    tops = sorted(name for name in folders if "/" not in name and name != ".")
    rooted = re.compile(r"(?<![\w./$*{}<>~-])((?:" + "|".join(map(re.escape, tops)) + r")/[\w./-]*[\w/])(?![\w*{}<>$])")
    for name in sorted(files):
        path = pathlib.Path(name)
        if path.suffix not in SOURCES and path.suffix != ".md":
            continue
        if path.suffix in (".txt", "") and path.name not in ("CMakeLists.txt", "run"):
            continue
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        for number, text in comments_of(path, lines):
            for said in NAME.findall(text):
                plain = said
                while plain.startswith("../"):
                    plain = plain[3:]
                plain = plain.removeprefix("./")
                if plain in ends or plain in OTHERS or stands_for(plain):
                    continue
                yield f"{name}:{number}: no file is named {said}"
            for said in rooted.findall(text):
                plain = said.rstrip("/")
                if NAME.fullmatch(plain) or plain in files | folders | OTHERS or stands_for(plain):
                    continue
                yield f"{name}:{number}: there is no {said}"


def wide_lines(root):
    for path in sorted(files_below(root)):
        if path.suffix not in (".md", ".h", ".cpp", ".cu"):
            continue
        code = False
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            if path.suffix != ".md":  # clang-format breaks code, but not comments
                code = not line.lstrip().startswith("//")
            elif line.lstrip().startswith("```"):
                code = not code
            table_or_code = path.suffix == ".md" and re.match(r"\s*\||    ", line)
            if len(line) > COLUMNS and not code and not table_or_code and " " in line.strip():
                yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(mistakes_of(root))
    if "--columns" in sys.argv[2:]:
        found += wide_lines(root)
    print("\n".join(found) or "all file names exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
