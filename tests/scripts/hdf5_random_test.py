#!/usr/bin/env python3
"""hdf5_random_test.py PROGRAM [COUNT [SEED]]: the HDF5 reader against h5py on random files.

Writes COUNT files (default 30) with h5py: layouts and versions of the format, chunks, filters, types, fill values,
links, groups, user blocks. PROGRAM (io_tests) reads all of them; every dataset must have the numbers that h5py reads
back. Exit code 77 (skipped) without h5py.
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from python_with import restart_with_h5py

restart_with_h5py()

import h5py
import numpy as np

FLOATS = ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
# Of HDF5's library 2.0; "latest" of older ones is older.
NEWEST = "v200" if hasattr(h5py.h5f, "LIBVER_V200") else "latest"
INTEGERS = ["?", "i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", ">u8"]


def bf16():
    dtype = h5py.h5t.IEEE_F32LE.copy()
    dtype.set_fields(15, 7, 8, 0, 7)
    dtype.set_size(2)
    return h5py.Datatype(dtype)


def numbers(draw, generator, shape, dtype):
    if dtype == "?":
        return generator.random(shape) < 0.5
    if dtype in INTEGERS:
        return generator.integers(0, 100, shape).astype(dtype)
    values = generator.normal(size=shape)
    if draw.random() < 0.5:
        values = values * (generator.random(shape) < 0.2)
    return values.astype(dtype)


def random_filters(draw):
    """Keywords of create_dataset, or of a property list for filters in another order."""
    options = {}
    if draw.random() < 0.5:
        options["compression"] = draw.choice(["gzip", "lzf"])
        if options["compression"] == "gzip" and draw.random() < 0.5:
            options["compression_opts"] = draw.randrange(10)
    if draw.random() < 0.4:
        options["shuffle"] = True
    if draw.random() < 0.3:
        options["fletcher32"] = True
    return options


def add_dataset(draw, generator, group, name):
    rank = draw.choice([0, 1, 1, 2, 2, 2, 3, 4])
    shape = tuple(draw.choice([1, 2, 3, 5, 8, 17, 40, 0 if draw.random() < 0.1 else 6]) for _ in range(rank))
    if rank == 1 and draw.random() < 0.5:
        shape = (draw.randrange(1, 30000),)
    while np.prod(shape, dtype=int) > 100_000:  # the reader refuses large datasets that were never written
        shape = shape[1:]
        rank -= 1
    dtype = draw.choice(FLOATS + INTEGERS)
    data = numbers(draw, generator, shape, dtype)
    kind = draw.choice(["plain", "chunks", "chunks", "chunks", "resizable", "compact", "partly", "unwritten", "early"])
    if rank == 0:
        if draw.random() < 0.2:
            group[name] = h5py.Empty(dtype)
        else:
            group.create_dataset(name, data=data)
        return
    chunks = tuple(draw.randrange(1, max(2, extent + (3 if kind == "resizable" else 1))) for extent in shape)
    if rank == 1 and shape[0] > 1000:  # fewer chunks, or thousands of them
        chunks = (draw.choice([1, 7, 64, 1000]),)
    if kind == "plain":
        group.create_dataset(name, data=data)
    elif kind == "compact":
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        data = data[tuple(slice(0, 5) for _ in shape)]
        space = h5py.h5s.create_simple(data.shape)
        dataset = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(data.dtype, logical=True), space, plist)
        h5py.Dataset(dataset)[...] = data
    elif kind == "unwritten":
        fill = draw.choice([None, 1] if dtype == "?" else [None, 1, 3])
        group.create_dataset(name, shape, dtype, fillvalue=fill, chunks=draw.choice([None, True]) if 0 not in shape else None)
    elif 0 in shape:
        group.create_dataset(name, data=data, maxshape=(None,) * rank, chunks=(3,) * rank)
    elif kind == "early":  # all chunks are allocated when the dataset is made
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(tuple(min(a, b) for a, b in zip(chunks, shape)))
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        if draw.random() < 0.5:
            plist.set_shuffle()
            plist.set_deflate(3)
            if draw.random() < 0.5:
                plist.set_fletcher32()
        space = h5py.h5s.create_simple(shape)
        dataset = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(data.dtype, logical=True), space, plist)
        h5py.Dataset(dataset)[...] = data
    elif kind == "chunks":
        chunks = tuple(min(a, b) for a, b in zip(chunks, shape))
        group.create_dataset(name, data=data, chunks=chunks, **random_filters(draw))
    else:
        limits = tuple(draw.choice([None, extent, extent + draw.randrange(100)]) for extent in shape)
        chunks = tuple(min(c, m) if m else c for c, m in zip(chunks, limits))
        fill = draw.choice([None, 1]) if dtype != "?" else None
        dataset = group.create_dataset(name, shape, dtype, maxshape=limits, chunks=chunks, fillvalue=fill,
                                       **random_filters(draw))
        if kind == "partly":
            part = tuple(slice(draw.randrange(extent), extent, draw.choice([1, 2])) for extent in shape)
            dataset[part] = data[part]
        else:
            dataset[...] = data
            if draw.random() < 0.3:  # grows or shrinks
                dataset.resize(tuple(min(m if m is not None else 10**6, draw.randrange(1, e + 9))
                                     for e, m in zip(shape, limits)))


def write(path, seed):
    draw = random.Random(seed)
    generator = np.random.default_rng(seed)
    options = {"libver": draw.choice([None, "earliest", "latest", "v108", ("earliest", "v110"), NEWEST]),
               "track_order": draw.random() < 0.3}
    if draw.random() < 0.3:
        options["userblock_size"] = draw.choice([512, 1024, 4096])
    with h5py.File(path, "w", **options) as file:
        groups = [file]
        for i in range(draw.choice([0, 1, 3, 12])):
            group = draw.choice(groups).create_group(f"g{i}", track_order=draw.random() < 0.3)
            groups.append(group)
        count = draw.choice([1, 4, 12, 40, 120])
        for i in range(count):
            name = draw.choice(["w", "weight.", "a rather long name of a dataset ", "Ü"]) + str(i)
            add_dataset(draw, generator, draw.choice(groups) if count < 100 else groups[-1], name)
        datasets = []
        file.visititems(lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None)
        for i in range(draw.choice([0, 0, 3, 20])):
            target = "/" + draw.choice(datasets)
            group = draw.choice(groups)
            kind = draw.choice(["soft", "soft", "hard", "relative", "dangling", "group", "type", "bf16", "external"])
            if kind == "soft":
                group[f"soft{i}"] = h5py.SoftLink(target)
            elif kind == "hard":
                group[f"hard{i}"] = file[target]
            elif kind == "relative":
                file[f"relative{i}"] = h5py.SoftLink("./" + target[1:])
            elif kind == "dangling":
                group[f"none{i}"] = h5py.SoftLink("/nothing/here")
            elif kind == "group":
                group[f"above{i}"] = h5py.SoftLink("/")
            elif kind == "external":
                group[f"other{i}"] = h5py.ExternalLink("other.h5", "/w")
            elif kind == "bf16":
                values = generator.normal(size=50).astype("f4")
                group.create_dataset(f"bf16 {i}", data=values, dtype=bf16(), chunks=draw.choice([None, (7,)]))
            else:
                file[f"type{i}"] = np.dtype("<f4")
                group.create_dataset(f"typed{i}", data=np.arange(5, dtype="f4"), dtype=file[f"type{i}"])
        for group in groups:
            for i in range(draw.choice([0, 0, 2, 30])):
                group.attrs[f"attribute{i}"] = draw.choice(["text", 3, np.arange(4), [b"a", b"bc"], "x" * 300])
        if draw.random() < 0.1:
            file.attrs["long"] = "x" * 60000
    if "userblock_size" in options:
        with open(path, "r+b") as raw:
            raw.write(b"#!/bin/sh\necho user block\n")


def expected(path):
    """Datasets by path, along soft links but not around in circles."""
    found = {}

    def visit(group, at, above):
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                continue
            item = group.get(name)
            if isinstance(item, h5py.Dataset):
                found[f"{at}/{name}"] = item
            elif isinstance(item, h5py.Group) and item.id not in above:
                visit(item, f"{at}/{name}", [*above, item.id])

    with h5py.File(path, "r") as file:
        visit(file, "", [file["/"].id])
        return {name: (dataset.shape, dataset.dtype, dataset[()] if dataset.shape is not None else None)
                for name, dataset in found.items()}


def compare(path):
    """Returns (datasets, faults)."""
    right = expected(path)
    faults = []
    data = pathlib.Path(str(path) + ".dump").read_bytes()
    at, seen = 0, set()
    while at < len(data):
        end = data.index(b"\n", at)
        name, kind, *rest = data[at:end].decode().split("\t")
        at = end + 1
        seen.add(name)
        if kind == "refused":
            faults.append(f"{name}: {' '.join(rest)}")
            continue
        if name not in right:
            return len(right), [*faults, f"{name}: h5py does not list it"]
        shape, dtype, values = right[name]
        shape = (0,) if shape is None else shape  # h5py.Empty
        if kind != ("float" if dtype.kind == "f" else "int") or tuple(map(int, rest)) != shape:
            return len(right), [*faults, f"{name}: {kind} {rest}, h5py {dtype} {shape}"]
        mine = np.dtype("<f4" if kind == "float" else "<i8")
        count = int(np.prod(shape, dtype=np.int64))
        got = np.frombuffer(data, mine, count, at)
        at += count * mine.itemsize
        if count and not np.array_equal(got, np.asarray(values).astype(mine).reshape(-1), equal_nan=kind == "float"):
            faults.append(f"{name}: {dtype} {shape} has other numbers")
    faults += [f"{name}: not listed" for name in right if name not in seen]
    return len(right), faults


def main():
    program = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / f"{n}.h5" for n in range(seed, seed + count)]
        for n, path in enumerate(paths, seed):
            write(path, n)
        environment = {**os.environ, "ESPALIER_HDF5_FILES": folder}
        subprocess.run([program, "--gtest_filter=Hdf5Dump.*"], env=environment, check=True, stdout=subprocess.DEVNULL)
        datasets, bad = 0, 0
        for n, path in enumerate(paths, seed):
            number, faults = compare(path)
            datasets += number
            bad += bool(faults)
            for fault in faults[:3]:
                print(f"seed {n}: {fault}")
        print(f"{count} files, {datasets} datasets, {bad} files differ")
        return 1 if bad or not datasets else 0


if __name__ == "__main__":
    sys.exit(main())
