// A safetensors file: every tensor, whole and in part. What is read is written as a file with the
// same content.
#include "io/safetensors/header.h"
#include "io/safetensors/sharded.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  static MemoryFile file;
  file.fill(input);
  const io::ShardedSafetensors model(file.path());
  uint64_t end = 0;
  for (const std::string& name : model.names()) {
    const io::SafetensorsTensor& tensor = model.tensor(name);
    require(tensor.begin == end, "tensors cover the data", name);
    end = tensor.end;
    std::vector<std::byte> bytes(tensor.bytes());
    model.read_bytes(name, bytes);
    if (io::is_convertible(tensor.type)) {
      const std::vector<float> values = model.read(name);
      const size_t half = values.size() / 2;
      std::vector<float> part(values.size() - half);
      model.read(name, part, static_cast<int64_t>(half));
    }
  }
  const io::SafetensorsHeader header{.tensors = model.shards().front().tensors(),
                                     .metadata = model.metadata()};
  const std::string text = io::safetensors_header_text(header, "again");
  constexpr size_t kLength = 8;
  const io::SafetensorsHeader again =
      io::parse_safetensors_header(text.substr(kLength), end, "again");
  require(again.metadata == header.metadata && again.tensors.size() == header.tensors.size(),
          "a header describes itself");
}

const Registration kTarget({"safetensors", read});

}  // namespace
}  // namespace espalier::fuzz
