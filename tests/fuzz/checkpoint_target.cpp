// A checkpoint: everything that its reader offers, and the masks of its indices.
#include "io/checkpoint/checkpoint.h"

#include "sparse/index/file_index.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read_parameter(const io::CheckpointReader& reader, const std::string& name) {
  const io::StoredParameter info = reader.info(name);
  std::vector<float> values(static_cast<size_t>(info.nnz));
  const Tensor view(values.data(), DType::fp32, Shape{info.nnz});
  reader.values(name, view);
  for (const char* kind : {"master", "moment1", "feedback.0"}) {
    if (reader.has_optimizer(name, kind)) {
      reader.optimizer(name, kind, view);
    }
  }
  if (info.encoding != "full") {
    sparse::mask_from_file(sparse::encoding_by_name(info.encoding), info.shape.count(), info.nnz,
                           reader.index(name));
  }
}

void read(Input input) {
  static MemoryFile file;
  file.fill(input);
  const io::CheckpointReader reader(file.path());
  for (const std::string& name : reader.names()) {
    try {  // a damaged parameter does not hide the others
      read_parameter(reader, name);
    } catch (const Failure&) {
    }
  }
  reader.verify_all();
  reader.meta();
}

const Registration kTarget({"checkpoint", read});

}  // namespace
}  // namespace espalier::fuzz
