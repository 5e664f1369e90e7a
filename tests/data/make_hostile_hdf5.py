"""Writes hostile_*.h5 beside this file: HDF5 that leads to other files, runs filters, claims more
than it has, or takes for ever to walk through. tests/io/hostile_hdf5_test.cpp reads the results.

Run with Python 3, numpy and h5py.
"""

import pathlib

import h5py
import numpy as np

HERE = pathlib.Path(__file__).parent


def make(name):
    return h5py.File(HERE / f"hostile_{name}.h5", "w", libver="latest")


with make("external") as f:  # the data are another file of the machine
    f.create_dataset("w", shape=(4,), dtype="f4", external=[("/etc/passwd", 0, 16)])

with make("external_link") as f:
    f["w"] = h5py.ExternalLink("plain_hdf5.h5", "/a")

with make("soft_link") as f:
    f["real"] = np.zeros(2, "f4")
    f["w"] = h5py.SoftLink("/real")

with make("virtual") as f:
    layout = h5py.VirtualLayout(shape=(3, 2), dtype="f4")
    layout[:] = h5py.VirtualSource("plain_hdf5.h5", "a", shape=(3, 2))
    f.create_virtual_dataset("w", layout)

with make("gzip") as f:  # a few bytes that unpack to 256 MB
    f.create_dataset("w", shape=(1 << 26,), dtype="f4", chunks=(1 << 20,), compression="gzip")

with make("chunks") as f:
    f.create_dataset("w", data=np.zeros(8, "f4"), chunks=(4,))

with make("unwritten") as f:  # claims 256 GB, of which nothing was written
    f.create_dataset("w", shape=(1 << 36,), dtype="f4")

with make("many_links") as f:  # 2^30 paths in 31 groups
    group = f.create_group("g")
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below
    group["w"] = np.zeros(1, "f4")

with make("many_names") as f:  # 400 kB to read in a file of less than 20 kB
    f["w"] = np.zeros(1024, "f4")
    for i in range(100):
        f[f"w{i}"] = f["w"]
