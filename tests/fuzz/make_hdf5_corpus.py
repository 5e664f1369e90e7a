"""Writes inputs of the target plain_hdf5 into corpus/plain_hdf5: layouts, filters, links and masks of h5py users.

Run with Python 3, numpy and h5py (HDF5 1.10 or later).
"""
import pathlib

import h5py
import numpy as np

HERE = pathlib.Path(__file__).parent / "corpus" / "plain_hdf5"
VALUES = np.arange(60, dtype="f4").reshape(6, 10)


def chunks(file):
    options = {"shuffle": True, "fletcher32": True, "chunks": (4, 4)}
    file.create_dataset("gzip", data=VALUES, compression="gzip", **options)
    file.create_dataset("lzf", data=VALUES.astype(">f8"), compression="lzf", chunks=(3, 10))
    file.create_dataset("partly", (40,), "f2", chunks=(3,), maxshape=(None,), fillvalue=2)[7:20] = 1
    file["soft"] = h5py.SoftLink("/gzip")


def indexes(file):
    file.create_dataset("single", data=VALUES, chunks=(6, 10), compression="gzip")
    file.create_dataset("fixed", data=VALUES, chunks=(2, 3))
    file.create_dataset("paged", data=np.zeros(1100, "u1"), chunks=(1,))  # pages
    file.create_dataset("extensible", data=np.arange(300, dtype="f4"), chunks=(2,), maxshape=(None,))
    file.create_dataset("tree", data=VALUES, chunks=(2, 2), maxshape=(None, None), compression="gzip")
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((2, 2))
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    h5py.h5d.create(file.id, b"implicit", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((5, 5)), plist)


def masks(file):
    file["h/0/w_orig"], file["h/0/w_mask"] = VALUES, (VALUES > 30).astype("f4")
    file["h/1/weight"], file["masks/h/1/weight"] = VALUES, VALUES > 30
    file["h/2/weight"], file["h/2/mask"] = VALUES, (VALUES > 30).astype("i8")
    for form, parts in (("csr", {"indices": [1, 4, 0], "indptr": [0, 2, 3]}), ("coo", {"row": [0, 0, 1], "col": [1, 4, 0]}),
                        ("csc", {"indices": [1, 0, 0], "indptr": [0, 1, 2, 2, 2, 3]})):
        group = file.create_group(form)
        group["data"], group["shape"], group["format"] = np.ones(3, "f4"), (2, 5), form
        for name, numbers in parts.items():
            group[name] = np.array(numbers, "i4")


for libver in ("earliest", "latest"):
    for make in (chunks, masks) if libver == "earliest" else (chunks, indexes, masks):
        path = HERE / f"{make.__name__}_{libver}"
        with h5py.File(path, "w", libver=libver, userblock_size=512 if make is masks else 0) as file:
            make(file)
        print(path.name, path.stat().st_size)
