// The index of a sharded model. No name of a shard leads out of its folder.
#include "io/safetensors/sharded.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read(Input input) {
  const std::filesystem::path folder = "/folder";
  for (const auto& [tensor, file] : io::parse_safetensors_index(text_of(input), "index")) {
    require((folder / file).lexically_normal().parent_path() == folder,
            "a shard is in the index's folder", file);
  }
}

const Registration kTarget({"safetensors_index", read});

}  // namespace
}  // namespace espalier::fuzz
