#!/usr/bin/env python3
"""packaging_test.py ROOT: the Spack recipe and the Dockerfile agree with the project.

- The recipe runs with stand-ins for Spack's classes and directives. Its dependencies are the packages
  that CMake looks for, and its -D definitions are options of CMake.
- Commands and options in the Dockerfile exist. .dockerignore leaves out what .gitignore does.
"""
import pathlib
import re
import sys
import types

ROOT = pathlib.Path(sys.argv[1])
# Packages of Spack for those that CMake looks for; None: no package of its own.
SPACK_NAMES = {
    "OpenMP": None, "Threads": None, "MPI": "mpi", "HDF5": "hdf5", "oneDNN": "onednn", "fmt": "fmt",
    "nlohmann_json": "nlohmann-json", "CLI11": "cli11", "PkgConfig": "pkgconfig",
    "tomlplusplus": "tomlplusplus", "xxhash": "xxhash", "pcre2": "pcre2", "utf8proc": "utf8proc",
    "sentencepiece": "sentencepiece", "ZLIB": "zlib-api",
    "CUDAToolkit": "cuda", "GTest": "googletest",
}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


class CMakePackage:
    """Records calls of directives, which run while the class body of the recipe runs."""

    run_tests = False
    version = "main"

    @staticmethod
    def define(name, value):
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        return self.define(name, f"+{variant}" in self.spec)


class Spec(set):
    def __init__(self, *words, arch=("none",)):
        super().__init__(words)
        self.variants = {"cuda_arch": types.SimpleNamespace(value=arch)}


def load_recipe():
    """The class, and the calls of directives as (name, arguments, keywords)."""
    calls = []
    spack = types.ModuleType("spack")
    package = types.ModuleType("spack.package")
    package.CMakePackage = CMakePackage
    package.CudaPackage = type("CudaPackage", (), {})
    for name in ("license", "version", "depends_on", "generator", "conflicts"):
        setattr(package, name, lambda *args, name=name, **keywords: calls.append((name, args, keywords)))
    sys.modules.update({"spack": spack, "spack.package": package})
    path = ROOT / "packaging/spack/packages/espalier/package.py"
    scope = {"__file__": str(path), "__name__": "recipe"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    return scope["Espalier"], calls


def test_recipe():
    recipe, calls = load_recipe()
    assert recipe.git == f"file://{ROOT.resolve()}", recipe.git
    needed = {}
    for name, args, keywords in calls:
        if name == "depends_on":
            needed[re.match("[a-z0-9-]+", args[0]).group()] = (args[0], keywords)

    cmake = text("cmake/dependencies.cmake") + text("cmake/cuda.cmake") + text("tests/CMakeLists.txt")
    found = set(re.findall(r"find_package\((\w+)", cmake)) | set(re.findall(r"pkg_check_modules\((\w+)", cmake))
    assert {"MPI", "HDF5", "CUDAToolkit", "GTest", "xxhash"} <= found, found
    for name in found:
        assert name in SPACK_NAMES, f"{name}: add its package to the recipe, and its name to this test"
        assert SPACK_NAMES[name] is None or SPACK_NAMES[name] in needed, f"the recipe lacks {SPACK_NAMES[name]}"
    assert needed["googletest"][1] == {"type": "test"} and needed["cuda"][1] == {"when": "+cuda"}
    for name, found in {"cmake": r"cmake_minimum_required\(VERSION ([\d.]+)", "cuda": r"CUDAToolkit ([\d.]+) REQUIRED",
                        "onednn": r"oneDNN ([\d.]+) REQUIRED"}.items():
        version = re.search(found, text("CMakeLists.txt") + cmake).group(1)
        assert f"{name}@{version}:" == needed[name][0].split()[0], (needed[name][0], version)

    package = recipe()
    package.spec = Spec()
    args = package.cmake_args()
    assert not any("ARCHITECTURES" in arg for arg in args), args
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("**/CMakeLists.txt")
                      if "build" not in path.relative_to(ROOT).parts[0]) + text("cmake/layers.cmake")
    for arg in args:
        option = re.match(r"-D(\w+)=", arg).group(1)
        assert re.search(rf"(option|set)\({option}\b", sources), f"CMake has no option {option}"
    package.spec = Spec("+cuda", arch=("80", "90"))
    args = package.cmake_args()
    assert "-DESPALIER_CUDA=True" in args and "-DCMAKE_CUDA_ARCHITECTURES=('80', '90')" in args, args


def test_dockerfile():
    dockerfile = text("Dockerfile").replace("\\\n", " ")
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", dockerfile, re.M)
    assert [parent for parent, _ in stages] == ["debian:12", "checkout", "checkout", "debian:12"], stages
    commands = " ".join(line for line in dockerfile.splitlines() if not line.startswith("#"))
    for script in re.findall(r"(?<!\S)((?:\./|scripts/)[\w-]+\.sh)", commands):
        assert (ROOT / script).stat().st_mode & 0o111, script
    readme = re.search(r"## Try it.*?```sh\n(.*?)```", text("README.md"), re.S).group(1)
    for command in re.findall(r"^(\./\S+\.sh)", readme, re.M):
        assert command in commands, f"the Dockerfile lacks the README's {command}"
    for option in re.findall(r"scripts/install-packages\.sh (--\w+)", commands):
        assert re.search(rf"^{option}\)", text("scripts/install-packages.sh"), re.M), option
    cmake = text("CMakeLists.txt") + text("src/kernels/CMakeLists.txt")
    for option in re.findall(r"-D(ESPALIER_\w+)=", commands):
        assert option in cmake, option
    ignored = text(".dockerignore").splitlines()
    for pattern in text(".gitignore").split():
        assert pattern.lstrip("/") in ignored or f"**/{pattern}" in ignored, f".dockerignore lacks {pattern}"


test_recipe()
test_dockerfile()
print("recipe and Dockerfile agree with the project")
