"""Writes hdf5_2.h5 beside this file: arrays in the structures of HDF5 2.0 (version 5 of the layout message).

Run with Python 3, numpy, ml_dtypes and h5py of HDF5 2.0 or later; tests/io/plain_hdf5_test.cpp reads the result.
"""

import pathlib

import h5py
import ml_dtypes
import numpy as np

A = np.arange(40, dtype="f2").reshape(8, 5) / 4


def bf16():
    """As a number of HDF5."""
    dtype = h5py.h5t.IEEE_F32LE.copy()
    dtype.set_fields(15, 7, 8, 0, 7)
    dtype.set_size(2)
    return h5py.Datatype(dtype)


with h5py.File(pathlib.Path(__file__).with_name("hdf5_2.h5"), "w", libver="v200") as f:
    for name, options in {"plain": {}, "filtered": {"compression": "gzip", "shuffle": True}}.items():
        for index, chunks, largest in (("single", (8, 5), None), ("fixed", (3, 2), None),
                                       ("extensible", (3, 2), (None, 5)), ("tree", (3, 2), (None, None))):
            f.create_dataset(f"{name}/{index}", data=A, chunks=chunks, maxshape=largest, **options)
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_chunk((3, 2))
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(A.shape)
    implicit = h5py.h5d.create(f["plain"].id, b"implicit", h5py.h5t.py_create(A.dtype), space, early)
    h5py.Dataset(implicit)[...] = A
    f["plain/contiguous"] = A
    f["types/big"] = A.astype(">f2")
    f.create_dataset("types/bf16", data=A.astype("f4"), dtype=bf16())
    f["types/double"] = A.astype("f8")
    f["types/single"] = A.astype("f4")
    f["types/bool"] = A > 1
    f["types/complex"] = A.astype("c8")
    f["types/opaque"] = A.astype(ml_dtypes.bfloat16)
    f["types/long"] = A.astype("longdouble")
