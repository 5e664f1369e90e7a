#pragma once
// HDF5 over a RawFile: a virtual file driver. It takes no file locks (they fail on some cluster
// file systems), and write errors stay in the RawFile (see there), so HDF5 always closes cleanly.
// Source: HDF5 Virtual File Layer, H5FDpublic.h.
#include <hdf5.h>

#include <memory>

#include "io/files/raw_file.h"

namespace espalier::io::hdf5 {

/// A file access property list that leads to `file`; the HDF5 file shares its ownership. Negative
/// on failure. The caller closes the list, and holds the lock of the library.
hid_t access_through(const std::shared_ptr<RawFile>& file);

}  // namespace espalier::io::hdf5
