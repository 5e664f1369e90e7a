#pragma once
// HDF5 over a RawFile: a virtual file driver. It takes no file locks (they fail on some cluster
// file systems), and write errors stay in the RawFile (see there), so HDF5 always closes cleanly.
// Source: HDF5 Virtual File Layer, H5FDpublic.h.
#include <hdf5.h>

#include <memory>

#include "io/files/raw_file.h"

namespace espalier::io::hdf5 {

/// A file access property list that leads to `file`; the HDF5 file shares its ownership. Negative
/// on failure. The caller closes the list.
hid_t access_through(const std::shared_ptr<RawFile>& file);

/// While one lives, reading a global heap collection (which holds texts of variable length) fails
/// unless its objects lie within it: HDF5 1.10 follows their sizes without a check, and a damaged
/// one would crash the process. Not always on: a dataset may begin with a heap's signature.
class HeapChecks {
 public:
  HeapChecks();
  ~HeapChecks();
  HeapChecks(const HeapChecks&) = delete;
  HeapChecks& operator=(const HeapChecks&) = delete;
};

}  // namespace espalier::io::hdf5
