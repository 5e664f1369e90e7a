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

with make("bomb") as f:  # 1,000 bytes of a chunk say that they are 64 MB
    f.create_dataset("w", shape=(1 << 14, 1 << 10), dtype="f4", chunks=(1 << 14, 1 << 10), compression="gzip")
    f["w"].id.write_direct_chunk((0, 0), b"\x78\x9c" + bytes(998))

with make("bad_checksum") as f:
    f.create_dataset("w", data=np.arange(8, dtype="f4"), chunks=(8,), fletcher32=True)
    f["w"].id.write_direct_chunk((0,), np.arange(9, dtype="f4").tobytes())

with make("szip") as f:  # a filter that is not read; the file names it only
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FLAG_MANDATORY, (2, 0))
    h5py.h5d.create(f.id, b"w", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4,)), plist)

with make("soft_circles") as f:
    f["a"] = h5py.SoftLink("/b")
    f["b"] = h5py.SoftLink("/a")
    f["none"] = h5py.SoftLink("/nothing")
    f["g/w"] = np.zeros(2, "f4")
    f["g/above"] = h5py.SoftLink("/")
    f["s"] = h5py.SoftLink("g")

with make("unwritten") as f:  # claims 256 GB, of which nothing was written
    f.create_dataset("w", shape=(1 << 36,), dtype="f4")

with make("shared") as f:  # one dataset as 24 layers
    f["layers.0.w"] = np.arange(4096, dtype="f4")
    for i in range(1, 24):
        f[f"layers.{i}.w"] = f["layers.0.w"] if i % 2 else h5py.SoftLink("/layers.0.w")
    f["w_mask"] = h5py.SoftLink("/nowhere")
    f["empty"] = h5py.Empty("f4")

with make("many_links") as f:  # 2^30 paths in 31 groups
    group = f.create_group("g")
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below
    group["w"] = np.zeros(1, "f4")

with make("many_names") as f:  # 100 MB to read in a file of 20 kB
    f.create_dataset("w", data=np.zeros(1 << 18, "f4"), compression="gzip")
    for i in range(100):
        f[f"w{i}"] = f["w"]
