"""A Python with libraries from PyPI, for tests that compare with them.

    python = python_with("import torch", ["torch"], venv="build/torch-venv", variable="TORCH_PYTHON")

It is the Python that the environment variable names, or that of the virtual environment `venv`, which pip makes when it
is missing. A test whose libraries cannot be installed ends with exit code 77 (skipped) and the reason.
"""
import os
import pathlib
import subprocess
import sys


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def works(python, imports):
    return os.access(python, os.X_OK) and not subprocess.run([python, "-c", imports], capture_output=True).returncode


def python_with(imports, packages, venv, variable):
    """Path of a Python that can run the statement `imports`."""
    if chosen := os.environ.get(variable):
        return chosen if works(chosen, imports) else sys.exit(f"{variable}={chosen} fails at: {imports}")
    python = str(pathlib.Path(venv) / "bin" / "python")
    if works(python, imports):
        return python
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    commands = [[sys.executable, "-m", "venv", "--clear", str(venv)], [*pip, *packages]]
    if "torch" in packages:  # the small build for CPUs, where its index can be reached
        commands.insert(1, [*pip, "--index-url", "https://download.pytorch.org/whl/cpu", "torch"])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode and "--index-url" not in command:
            skip(f"{' '.join(command)}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}; set {variable} to a "
                 "Python that has the libraries")
    return python if works(python, imports) else skip(f"{python} fails at: {imports}")


def python_with_torch(venv):
    """For tests with transformers, which reads GGUF files only beside gguf and accelerate. Fails if pip does."""
    try:
        return python_with("import torch, gguf, accelerate", ["torch", "numpy", "gguf", "accelerate"], venv,
                           "TRANSFORMERS_PYTHON")
    except SystemExit as end:
        sys.exit(1 if end.code == 77 else end.code)


def folder_with(python, packages, folder, variable):
    """Path for PYTHONPATH with packages of one version: that of the environment variable, or `folder`, which pip makes.
    A first package "--no-deps" leaves out what they require. Fails if pip does."""
    folder = pathlib.Path(folder)
    if chosen := os.environ.get(variable):
        return chosen
    if not folder.is_dir():
        try:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target",
                            f"{folder}.new", *packages], check=True)
        except subprocess.CalledProcessError as failure:
            sys.exit(f"{failure}; set {variable} to a folder with {' '.join(packages)}")
        os.rename(f"{folder}.new", folder)
    return str(folder)


def restart_with(imports, packages, venv, variable):
    """Runs this script again, with the argument --inside, under that Python; returns there."""
    if "--inside" not in sys.argv:
        python = python_with(imports, packages, venv, variable)
        os.execv(python, [python, *sys.argv, "--inside"])


def restart_with_h5py():
    """Runs this script again with the system's Python if this one lacks h5py; skips if both lack it."""
    for python in (sys.executable, "/usr/bin/python3"):
        if works(python, "import h5py, numpy"):
            if python != sys.executable:
                os.execv(python, [python, *sys.argv])
            return
    skip("no Python with h5py here: apt-get install python3-h5py")
