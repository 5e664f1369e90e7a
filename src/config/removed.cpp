#include "src/config/removed.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace espalier::config {
namespace {

struct RemovedKey {
  std::string_view key;
  std::string_view was;  ///< its default, as TOML
  std::string_view instead;
};

constexpr auto kRemovedKeys = std::to_array<RemovedKey>({
    {"train.fp8", "false", "leave it out; train.dtype = \"bf16\" trains faster"},
    {"pruning.rounds", "100", "it was of method \"synflow\"; use \"snip\" or \"magnitude\""},
    {"parallel.powersgd_warmup", "10",
     "use parallel.codec = \"maxmin:4\" with parallel.error_feedback = true"},
});

struct RemovedValue {
  std::string_view key, value;
  std::string_view instead;
};

constexpr auto kRemovedValues = std::to_array<RemovedValue>({
    {"pruning.method", "synflow", "use \"snip\", or \"magnitude\" with pruning.at_step"},
    {"parallel.codec", "powersgd",
     "use \"maxmin:4\" with parallel.error_feedback = true, which also takes pruned gradients"},
    {"parallel.schedule", "zb-h2", "use \"zb-v\""},
    {"parallel.schedule", "zero-bubble", "write \"zb-h1\""},
});

/// As toml++ writes it, so that texts of equal values are equal.
std::string canonical(std::string_view value) {
  std::ostringstream out;
  toml::parse("v = " + std::string(value)).get("v")->visit([&](const auto& node) { out << node; });
  return out.str();
}

}  // namespace

std::string_view removed_key(std::string_view key) {
  const auto found = std::ranges::find(kRemovedKeys, key, &RemovedKey::key);
  return found == kRemovedKeys.end() ? "" : found->instead;
}

bool was_default(std::string_view key, const std::string& source_text) {
  const auto found = std::ranges::find(kRemovedKeys, key, &RemovedKey::key);
  return found != kRemovedKeys.end() && canonical(found->was) == source_text;
}

std::string_view removed_value(std::string_view key, std::string_view value) {
  const auto found = std::ranges::find_if(
      kRemovedValues, [&](const RemovedValue& one) { return one.key == key && one.value == value; });
  return found == kRemovedValues.end() ? "" : found->instead;
}

}  // namespace espalier::config
