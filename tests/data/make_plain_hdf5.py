"""Writes plain_hdf5.h5 beside this file: dense, partly pruned arrays, as an h5py user writes them.

Run with Python 3, numpy and h5py; tests/io/plain_hdf5_test.cpp reads the result.
"""

import pathlib

import h5py
import numpy as np

with h5py.File(pathlib.Path(__file__).with_name("plain_hdf5.h5"), "w") as f:
    f["a"] = np.array([[1.5, 0.0], [0.0, -2.0], [0.25, 0.0]], "f4")
    f["deep/er/half"] = np.array([0.5, 65504.0, -0.0, 2.0**-24], "f2")
    f["deep/double"] = np.array([[[1 / 3]], [[1e300]]], "f8")
    f["long"] = np.arange(1000, dtype="f4").reshape(10, 100)
    f["big_endian"] = np.array([1.0, 2.0], ">f4")
    f["scalar"] = np.float32(7)
    f["five"] = np.zeros((1, 1, 1, 1, 2), "f4")
    f["step"] = np.int64(12)
    f["text"] = "not a number"
    f["again"] = h5py.SoftLink("/a")
    f["deep/loop"] = f["deep/er"]
