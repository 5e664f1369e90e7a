// A file of `import --map`, then a byte 0 and a name: reads the lines, and puts the name in each.
#include "src/core/error.h"
#include "src/hub/array_map.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void read_map(Input input) {
  const std::vector<Input> parts = split(input, 0, 2);
  static MemoryFile file;
  file.fill(parts[0]);
  const std::string name = text_of(parts[1]);
  for (const hub::MapLine& line : hub::read_array_map(file.path())) {
    for (const std::string& pattern : line.theirs) {
      std::vector<std::string> numbers;
      if (hub::numbers_in(pattern, name, numbers)) {
        require(hub::with_numbers(pattern, numbers) == name, "a pattern gives the name back", name);
      }
    }
  }
}

const Registration kTarget({"array_map", read_map});

}  // namespace
}  // namespace espalier::fuzz
