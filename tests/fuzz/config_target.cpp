// A config, then overrides as of --set, with a zero byte before each. An accepted config is written
// as the same config again.
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/error.h"
#include "tests/fuzz/fuzz.h"

namespace espalier::fuzz {
namespace {

void parse(Input input) {
  std::vector<std::string> overrides;
  const std::vector<Input> parts = split(input, 0, 4);
  for (size_t i = 1; i < parts.size() && !parts[i].empty(); ++i) {
    overrides.push_back(text_of(parts[i]));
  }
  const io::Config config = config::parse(text_of(parts[0]), "fuzz.toml", overrides);
  const std::string text = config::to_toml(config);
  require(config::to_toml(config::parse(text, "again.toml")) == text,
          "a resolved config describes itself");
}

const Registration kTarget({"config", parse});

}  // namespace
}  // namespace espalier::fuzz
