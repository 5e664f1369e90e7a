// A plain HDF5 file of arrays: every array.
#include "io/checkpoint/plain_hdf5.h"

#include "io/checkpoint/checkpoint.h"

#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  static MemoryFile file;
  file.fill(input);
  io::is_checkpoint(file.path());
  const io::PlainReader reader(file.path());
  for (const std::string& name : reader.names()) {
    try {  // a fault of one array leaves the others
      reader.shape(name);
      reader.read(name);
      reader.kept(name);
    } catch (const Failure&) {
    }
  }
}

const Registration kTarget({"plain_hdf5", read});

}  // namespace
}  // namespace espalier::fuzz
