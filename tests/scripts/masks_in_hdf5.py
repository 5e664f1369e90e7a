"""For tests of masks in HDF5 files: the scripts of docs/bring-your-masks.md, and checkpoints as arrays, by the functions
of docs/formats.md."""
import json
import pathlib
import re
import subprocess

import h5py


def blocks(page, language):
    """The code blocks of a page that begin with a comment "# NAME", by name."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return {m[1]: block for block in found if (m := re.match(r"# (\S+)\n", block))}


def network(page):
    """The first TOML block: a config."""
    return re.search(r"^```toml\n(.*?)^```", pathlib.Path(page).read_text(encoding="utf-8"), re.M | re.S)[1]


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = str(path), folder

    def __call__(self, *arguments, code=0):
        done = subprocess.run([self.path, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 and done.stdout else done.stderr

    def loss(self, checkpoint, *arguments):
        found = json.loads(self("eval", checkpoint, "--json", *arguments))
        return found.get("loss", found.get("val_loss"))


def checkpoint_arrays(path):
    """name → (dense values, kept elements) of a checkpoint."""
    page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats.md"
    read = {}
    exec(blocks(page, "python")["read_masks.py"], read)
    with h5py.File(path, "r") as file:
        return {name: (read["dense_values"](group), read["kept_elements"](group))
                for name, group in file["params"].items()}
