#!/usr/bin/env python3
"""bring_your_masks_test.py ROOT PROGRAM: masks in HDF5 files by every convention, with h5py and numpy alone.

Runs the scripts of docs/bring-your-masks.md (torch_masks_test.py runs those that need torch or scipy), imports what they
write, and compares masks and values exactly; then variants of the conventions, maps of names, and files that must be
refused by name. Exit code 77 (skipped) without h5py.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

from python_with import restart_with_h5py

restart_with_h5py()

import h5py
import numpy as np

from masks_in_hdf5 import Program, blocks, checkpoint_arrays, network

ROOT, PROGRAM = (pathlib.Path(path).absolute() for path in sys.argv[1:3])
PAGE = ROOT / "docs" / "bring-your-masks.md"


def is_prunable(name):
    return name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name


class Case:
    """A folder with net.toml and random weights of its network."""

    def __init__(self, folder, config=None):
        self.folder = pathlib.Path(folder)
        (self.folder / "net.toml").write_text(config or network(PAGE), encoding="utf-8")
        self.run = Program(PROGRAM, folder)
        generator = np.random.default_rng(1)
        self.weights = {}
        for row in self.run("import", "--names", "net.toml").splitlines()[1:]:
            if found := re.match(r"\s*(\S+)\s+\[([\d, ]+)\]", row):
                shape = tuple(map(int, found[2].split(",")))
                self.weights[found[1]] = generator.normal(size=shape).astype("f4")
        assert len(self.weights) > 3, self.run("import", "--names", "net.toml")
        np.savez(self.folder / "weights.npz", **self.weights)
        self.kept = {n: abs(w) > 1 if is_prunable(n) else np.ones(w.shape, bool) for n, w in self.weights.items()}

    def write(self, fill, **options):
        with h5py.File(self.folder / "masked.h5", "w", **options) as file:
            fill(file)

    def check(self, *arguments):
        """Imports masked.h5; masks and values must be those of `weights` and `kept`."""
        notes = self.run("import", "masked.h5", "-o", "start.h5", "--config", "net.toml", *arguments)
        found = checkpoint_arrays(self.folder / "start.h5")
        assert found.keys() == self.weights.keys()
        for name, (values, kept) in found.items():
            assert np.array_equal(kept, self.kept[name]), name
            assert np.array_equal(values, np.where(self.kept[name], self.weights[name], 0)), name
        return notes

    def refused(self, *words, command=("import", "masked.h5", "-o", "no.h5", "--config", "net.toml")):
        message = self.run(*command, code=1)
        for word in words:
            assert word in message, f"{word!r} is not in: {message}"
        assert not (self.folder / "no.h5").exists()


def compressed(matrix, by_rows):
    """data, indices, indptr of CSR (or CSC) of the elements that are not zero."""
    lines = matrix if by_rows else matrix.T
    indices = [np.flatnonzero(line) for line in lines]
    return {"data": np.concatenate([line[at] for line, at in zip(lines, indices)]), "indices": np.concatenate(indices),
            "indptr": np.cumsum([0, *map(len, indices)])}


def test_page(case):
    scripts = blocks(PAGE, "python")
    assert len(scripts) >= 5, list(scripts)
    ran = 0
    for name, script in scripts.items():
        if "import torch" in script or "import scipy" in script:
            continue
        subprocess.run([sys.executable, "-c", script], cwd=case.folder, check=True)
        case.check()
        text = ("--data", "net.toml")
        loss = case.run.loss("masked.h5", "--config", "net.toml", *text)
        assert loss == case.run.loss("start.h5", *text), name
        ran += 1
    assert ran == 3, ran


def test_conventions(case):
    def torch_groups(file):  # groups, as h5py makes them of "a/b"
        for name, weight in case.weights.items():
            path = name.replace(".", "/")
            if is_prunable(name):
                file.create_dataset(path + "_orig", data=weight, chunks=True, compression="gzip")
                file.create_dataset(path + "_mask", data=case.kept[name].astype("f4"), chunks=True, compression="gzip")
            else:
                file[path] = weight

    def module_masks(file):  # P.weight + P.mask
        for name, weight in case.weights.items():
            file[name] = weight
            if is_prunable(name):
                file[name.replace(".weight", ".mask")] = case.kept[name].astype(">i8")

    def trees(file):
        for name, weight in case.weights.items():
            file["params/" + name] = weight.astype("f8")
            if is_prunable(name):
                file["Mask/" + name.removesuffix(".weight") + ".weight_mask"] = case.kept[name]

    def soft_links(file):
        for number, (name, weight) in enumerate(case.weights.items()):
            file[f"blobs/{number}"] = np.where(case.kept[name], weight, 0)
            file[name] = h5py.SoftLink(f"/blobs/{number}")

    def sparse(file, form, attributes=False):
        for name, weight in case.weights.items():
            if not is_prunable(name):
                file[name] = weight
                continue
            dense = np.where(case.kept[name], weight, 0)
            group = file.create_group(name)
            if form == "coo":
                row, col = np.nonzero(dense)
                parts = {"data": dense[row, col], "row": row.astype("i4"), "col": col.astype("i4")}
            elif form == "torch":
                row, col = np.nonzero(dense)
                parts = {"values": dense[row, col], "indices": np.stack([row, col])}
            else:
                parts = compressed(dense, form == "csr")
            for part, values in parts.items():
                group[part] = values
            if attributes:
                group.attrs["shape"], group.attrs["encoding-type"] = weight.shape, form + "_matrix"
            else:
                group["shape"] = weight.shape
                if form in ("csr", "csc"):
                    group["format"] = form

    def soft_masks(file):  # what a link of a mask's name leads to is no array
        for number, (name, weight) in enumerate(case.weights.items()):
            file[name] = weight
            if is_prunable(name):
                file[f"kept/{number}"] = case.kept[name].astype(["f4", "?"][number % 2])
                file[name + "_mask"] = h5py.SoftLink(f"/kept/{number}")
        file["kept/up"] = file["/"]  # a circle of hard links

    def capitals(file):
        for name, weight in case.weights.items():
            file[name] = weight
            if is_prunable(name):
                file[name.replace(".weight", ".Weight_Mask")] = case.kept[name]

    def other_tree(file):
        for name, weight in case.weights.items():
            file[name] = weight
            if is_prunable(name):
                file["pruning_masks/" + name.replace(".", "/")] = case.kept[name]

    for fill in (torch_groups, module_masks, trees, soft_links, capitals, other_tree, soft_masks):
        case.write(fill)
        case.check()
    case.run("prune", "masked.h5", "-o", "pruned.h5", "--method", "magnitude", "--sparsity", "0.9")
    with h5py.File(case.folder / "pruned.h5") as file:
        assert sorted(file["params"]) == sorted(case.weights)
    for form in ("csr", "csc", "coo", "torch"):
        for attributes in (False, True):
            case.write(lambda file: sparse(file, form, attributes))
            case.check()
    case.write(torch_groups, libver="latest", userblock_size=512)
    case.check()
    # A kept element may be zero; a mask of a bias becomes zeros.
    name = next(n for n in case.weights if is_prunable(n))
    case.weights[name].flat[int(np.flatnonzero(case.kept[name])[0])] = 0
    case.write(torch_groups)
    case.check()
    bias = "blocks.0.mlp.expand.bias"
    with h5py.File(case.folder / "masked.h5", "r+") as file:
        file[bias + "_mask"] = np.arange(len(case.weights[bias])) % 2
    case.weights[bias] = case.weights[bias] * (np.arange(len(case.weights[bias])) % 2).astype("f4")
    assert bias in case.check()

    # prune and inspect know masks, too.
    text = case.run("inspect", "masked.h5")
    assert "blocks.0.mlp.expand.weight_mask: mask of blocks.0.mlp.expand.weight" in text, text
    case.run("prune", "masked.h5", "-o", "pruned.h5", "--method", "magnitude", "--sparsity", "0.9")
    with h5py.File(case.folder / "pruned.h5") as file:
        assert sorted(file["params"]) == sorted(case.weights)
        total = sum(w.size for n, w in case.weights.items() if is_prunable(n))
        kept = sum(file["params"][n].attrs["nnz"] for n in case.weights if is_prunable(n))
        assert abs(kept / total - 0.1) < 1e-3, kept / total


def test_maps(case):
    maps = blocks(PAGE, "text")

    def theirs(file):
        for name, weight in case.weights.items():
            dense = np.where(case.kept[name], weight, 0)
            other = re.sub(r"^blocks\.", "encoder.", name)
            if name.endswith("mlp.expand.weight"):
                file[other.replace("mlp.expand.weight", "up.weight_orig")] = np.ascontiguousarray(weight.T)
                file[other.replace("mlp.expand.weight", "up.weight_mask")] = np.ascontiguousarray(case.kept[name].T)
            elif name.endswith("attention.qkv.weight"):
                for part, rows in zip("qkv", np.split(dense, 3)):
                    file[other.replace("attention.qkv.weight", part)] = rows
            elif name.endswith("attention.qkv.bias"):
                file[other.replace("attention.qkv.bias", "qkv_bias")] = dense
            else:
                file[other] = dense
        file["extra.state"] = np.ones(3, "f4")

    case.write(theirs)
    (case.folder / "names.map").write_text(maps["names.map"])
    case.check("--map", "names.map")
    # Without the map, and with lines that do not fit.
    case.refused("blocks.0.mlp.expand.weight [128, 32]", "encoder.0.up.weight [32, 128]", "--map")
    for line, word in (("encoder.{}.up.weight -> blocks.{}.mlp.expand.weight", "which does not make"),
                       ("encoder.{}.up.weight blocks", 'has no "->"'), ("a.{} -> b", "same ones"),
                       ("a + b -> c, d", "several"), ("encoder.{}.none -> blocks.{}.norm1.weight\nencoder.{}.{*} -> "
                                                     "blocks.{}.{*}", "encoder.0.none")):
        (case.folder / "bad.map").write_text(line)
        case.refused(word, command=("import", "masked.h5", "-o", "no.h5", "--config", "net.toml", "--map", "bad.map"))

    # One array of several parameters: the rows of two norms.
    def joined(file):
        for name, weight in case.weights.items():
            if name.endswith("norm1.weight"):
                both = np.concatenate([weight, case.weights[name.replace("norm1", "norm2")]])
                file[name.replace("norm1.weight", "norms")] = both
            elif not name.endswith("norm2.weight"):
                file[name] = np.where(case.kept[name], weight, 0)

    case.write(joined)
    (case.folder / "names.map").write_text("blocks.{}.norms -> blocks.{}.norm1.weight, blocks.{}.norm2.weight\n")
    case.check("--map", "names.map")


def test_shapes(folder):
    """Shapes decide where names do not; ambiguity is refused with the candidates."""
    case = Case(folder, '[model]\nkind = "mlp"\nhidden = [24, 16]\nclasses = 10\n[data]\nkind = "images"\n')
    case.weights = {"hidden.0.weight": (24, 64), "hidden.0.bias": (24,), "hidden.1.weight": (16, 24),
                    "hidden.1.bias": (16,), "classifier.weight": (10, 16), "classifier.bias": (10,)}
    generator = np.random.default_rng(2)
    case.weights = {name: generator.normal(size=shape).astype("f4") for name, shape in case.weights.items()}
    case.kept = {n: abs(w) > 1 if n.startswith("hidden") and w.ndim == 2 else np.ones(w.shape, bool)
                 for n, w in case.weights.items()}
    names = dict(zip(case.weights, ["first.w", "first.b", "second.w", "second.b", "out.w", "out.b"]))
    for transposed in (False, True):
        def fill(file):
            for name, weight in case.weights.items():
                dense = np.where(case.kept[name], weight, 0)
                file[names[name]] = np.ascontiguousarray(dense.T) if transposed else dense
        case.write(fill)
        notes = case.check()
        assert "second.w is hidden.1.weight by its shape [16, 24]" in notes, notes
        with h5py.File(case.folder / "masked.h5", "r+") as file:
            file["third.w"] = file["second.w"][:]
        case.refused("hidden.1.weight", "third.w", "second.w")


def test_refusals(case):
    name = "blocks.0.mlp.expand.weight"

    def with_mask(mask, mask_name=name + "_mask"):
        def fill(file):
            for other, weight in case.weights.items():
                file[other] = weight
            file[mask_name] = mask
        return fill

    shape = case.weights[name].shape
    case.write(with_mask(np.full(shape, 0.5, "f4")))
    case.refused(name + "_mask", "the value 0.5", "0 and 1 only")
    case.refused(name + "_mask", command=("prune", "masked.h5", "-o", "no.h5", "--method", "magnitude", "--sparsity", "0.5"))
    case.write(with_mask(np.full(shape, 2, "u1")))
    case.refused(name + "_mask", "the value 2")
    case.write(with_mask(np.ones((shape[0], 1), bool)))
    case.refused(name + "_mask", f"[{shape[0]}, 1]")
    case.write(with_mask(np.ones(shape, bool), "masks/blocks.0.mlp.other.weight"))
    case.refused("masks.blocks.0.mlp.other.weight is named like a mask")
    case.write(with_mask(np.ones(shape, bool).T, name.replace("weight", "kernel_mask")))
    case.refused("mlp.expand.kernel_mask is named like a mask", 'kernel_mask -> -"')
    (case.folder / "names.map").write_text(name.replace("weight", "kernel_mask -> -"))
    case.run("import", "masked.h5", "-o", "start.h5", "--config", "net.toml", "--map", "names.map")
    for link, why in ((h5py.ExternalLink("masks.h5", "/"), "link to another file"),
                      (h5py.SoftLink("/nowhere"), "link that leads nowhere")):
        for other in (name + "_mask", "masks"):
            case.write(with_mask(link, other))
            case.refused(other + " is named like a mask, and cannot be used: it is a " + why)

    def sparse_mask(file):
        for other, weight in case.weights.items():
            file[other] = weight
        for part, values in {**compressed(case.kept[name].astype("u1"), True), "shape": shape}.items():
            file[f"{name}_mask/{part}"] = values

    case.write(sparse_mask)
    case.refused(name + "_mask is named like a mask, and cannot be used: it is a sparse matrix")

    def masked_sparse(file):
        for other, weight in case.weights.items():
            if other == name:
                for part, values in {**compressed(weight, True), "shape": shape, "format": "csr"}.items():
                    file[f"{other}/{part}"] = values
                file[other + "_mask"] = case.kept[other]
            else:
                file[other] = weight

    case.write(masked_sparse)
    case.refused(f"its stored elements are its mask, because it is a sparse matrix, and {name}_mask is a second one")

    def indices(file):
        masked_sparse(file)
        del file[name + "_mask"]
        numbers = file[name + "/indices"][:].astype("f8")
        del file[name + "/indices"]
        file[name + "/indices"] = numbers

    case.write(indices)
    case.refused("/indices of the sparse matrix holds floats of 8 bytes; write int32 or int64")

    case.write(with_mask(np.array(["a", "b"], "S1")))
    case.refused(name + "_mask", "no numbers")

    def square(file):  # CSR and CSC look alike
        for other, weight in case.weights.items():
            if other == "blocks.0.attention.projection.weight":
                for part, values in compressed(weight, True).items():
                    file[f"{other}/{part}"] = values
                file[other + "/shape"] = weight.shape
            else:
                file[other] = weight

    case.write(square)
    case.refused("blocks.0.attention.projection.weight", "may be CSR or CSC")

    def twice(file):
        square(file)
        group = file["blocks.0.attention.projection.weight"]
        group["format"] = "csr"
        indices = group["indices"][:]
        indices[1] = indices[0]
        group["indices"][:] = indices

    case.write(twice)
    case.refused("blocks.0.attention.projection.weight", "stored twice")

    # Names: expected and found, nearest first.
    def misspelled(file):
        for other, weight in case.weights.items():
            file[other.replace("blocks.1.norm", "blocks.1.nrom")] = weight  # four vectors of one shape

    case.write(misspelled)
    case.refused("expected blocks.1.norm1.weight [32]; nearest found: blocks.1.nrom1.weight [32]")
    case.refused("blocks.1.norm1.weight", "blocks.1.nrom1.weight", command=("eval", "masked.h5", "--config", "net.toml", "--data", "net.toml"))

    def more_layers(file):
        for other, weight in case.weights.items():
            file[other] = weight
            if other.startswith("blocks.1."):
                file[other.replace("blocks.1.", "blocks.2.")] = weight

    case.write(more_layers)
    case.refused("blocks.2.", "no such layer")

    # prune without a config names what its result lacks.
    prune = ("prune", "masked.h5", "-o", "no.h5", "--method", "magnitude", "--sparsity", "0.5")
    for value, word in ((np.ones((8, 8), "i1"), "integers of 1 byte"), (np.ones((8, 8), "c8"), "no real numbers"),
                        (h5py.ExternalLink("other.h5", "x"), "link to another file")):
        case.write(with_mask(value, "fc4"))
        case.refused("fc4", word, "--config", command=prune)
    case.write(with_mask(np.ones((1, 8), "i8"), "position_ids"))
    done = subprocess.run([PROGRAM, *prune[:3], "pruned.h5", *prune[4:]], cwd=case.folder, check=True, capture_output=True)
    assert b"skipped, no weights: position_ids" in done.stderr, done.stderr


def test_other_datasets(case):
    """What has no name of a parameter does not matter, and is listed."""
    def fill(file):
        for name, weight in case.weights.items():
            file[name] = np.where(case.kept[name], weight, 0)
        file["note"], file["video"], file["codes"] = h5py.Empty("f4"), np.ones((2,) * 5, "f4"), np.ones(3, "i1")
        file["mask_token"] = np.arange(8, dtype="f4").reshape(1, 1, 8)
        file["h.0.attn.mask"] = np.tril(np.ones((1, 1, 24, 24), bool))
        file["h.0.attn.masked_bias"] = np.float32(-1e4)
        file["attention_mask"] = np.where(np.tri(24), 0, -np.inf).astype("f4")

    case.write(fill)
    notes = case.check()
    assert "not used: h.0.attn.masked_bias, mask_token" in notes, notes
    assert ("skipped: attention_mask (masks positions, not weights), codes, h.0.attn.mask (masks positions, not weights), "
            "note, video" in notes), notes
    loss = case.run.loss("masked.h5", "--config", "net.toml", "--data", "net.toml")
    assert loss == case.run.loss("start.h5", "--data", "net.toml")

    # Without a config, prune keeps all arrays of floats, or refuses the file.
    prune = ("prune", "masked.h5", "-o", "no.h5", "--method", "magnitude", "--sparsity", "0.9")
    case.refused("video cannot be used (it has 5 dimensions), and the result would lack it", command=prune)
    with h5py.File(case.folder / "masked.h5", "r+") as file:
        del file["video"]
        file["cube"], file["deep"] = np.ones((2, 3, 4), "f4"), np.arange(120, dtype=">f8").reshape(2, 3, 4, 5)
        floats = {name: file[name][()] for name in ("mask_token", "h.0.attn.masked_bias", "cube", "deep")}
    case.run(*prune[:3], "pruned.h5", *prune[4:])
    case.run("export", "pruned.h5", "-o", "plain.h5")
    with h5py.File(case.folder / "plain.h5") as file:
        assert sorted(file) == sorted([*case.weights, *floats]), sorted(file)
        for name, values in floats.items():
            assert file[name].shape == values.shape and np.array_equal(file[name][()], values), name
    name = next(n for n in case.weights if is_prunable(n))
    for link in (h5py.ExternalLink("other.h5", "/" + name), h5py.SoftLink("/nowhere")):
        with h5py.File(case.folder / "masked.h5", "r+") as file:
            del file[name]
            file[name] = link
            file.require_dataset(name + "_mask", case.kept[name].shape, "f4")
        case.refused(name + " cannot be used: it is a link")


def main():
    for test in (test_page, test_other_datasets, test_conventions, test_maps, test_refusals):
        with tempfile.TemporaryDirectory() as folder:
            test(Case(folder))
            print(test.__name__, "passed")
    with tempfile.TemporaryDirectory() as folder:
        test_shapes(folder)
        print("test_shapes passed")


if __name__ == "__main__":
    main()
