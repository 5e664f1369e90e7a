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
    {"parallel.bits", "0", "write the bits in the codec, such as parallel.codec = \"maxmin:4\""},
    {"parallel.bucket", "0",
     "write the bucket in the codec, such as parallel.codec = \"maxmin:4:512\""},
    {"parallel.codec_meta", "\"fp32\"", "for fp16 write parallel.codec = \"maxmin:4:fp16\""},
    {"parallel.codec_every", "100",
     "write parallel.codec = \"adaptive:EVERY\" or \"adaprec:EVERY\""},
    {"parallel.codec_candidates", R"(["fp32", "fp8-e5m2", "table:1"])",
     "write parallel.codec = \"adaprec:EVERY:TRIAL:CODEC+CODEC\""},
    {"parallel.codec_trial", "20", "write parallel.codec = \"adaprec:EVERY:TRIAL\""},
    {"parallel.codec_budget", "1.0", "write parallel.codec = \"adaptive:EVERY:ERROR\""},
    {"parallel.codec_error", "\"auto\"", "leave it out; the optimizer decides it"},
    {"parallel.codec_goal", "\"bytes\"", "for time write parallel.codec = \"adaptive-time\""},
    {"parallel.powersgd_warmup", "10",
     "use parallel.codec = \"maxmin:4\" with parallel.error_feedback = true"},
    {"parallel.in_flight", "0", "leave it out; the run chooses the limit by measured times"},
    {"parallel.drain_every", "100",
     "leave it out; a smaller train.eval_every or train.checkpoint_every drains more often"},
    {"pruning.distance", "0.1", "leave it out; pruning.to_step is the last step that may prune"},
    {"pruning.penalty", "0.01",
     "leave it out; pruning.from_step and pruning.to_step set how long elsa pulls weights to zero"},
    {"sparse.keep_tiles", "false",
     "write sparse.storage = \"tiles\" where it is \"sparse\"; \"auto\" times it, too"},
    {"sparse.file_index", "\"auto\"",
     "leave it out; docs/formats.md has a script that reads masks from checkpoints"},
    {"model.rotary_scaling", "\"none\"", "write it as model.rotary"},
    {"train.base_density", "1.0",
     "leave it out: optimizer.lr is the rate of a dense network (docs/tuning.md)"},
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
    {"sparse.storage", "sparse:tiles", "write \"tiles\""},
    {"sparse.storage", "auto:tiles", "write \"auto\", which times \"tiles\", too"},
    {"parallel.schedule", "zero-bubble", "write \"zb-h1\""},
});

/// As toml++ writes it, so that texts of equal values are equal.
std::string canonical(std::string_view value) {
  std::ostringstream out;
  toml::parse("v = " + std::string(value)).get("v")->visit([&](const auto& node) { out << node; });
  return out.str();
}

}  // namespace

std::string_view current_key(std::string_view key) {
  return key == "model.rotary_scaling" ? "model.rotary" : key;
}

std::string_view removed_key(std::string_view key) {
  const auto found = std::ranges::find(kRemovedKeys, key, &RemovedKey::key);
  return found == kRemovedKeys.end() ? "" : found->instead;
}

bool was_default(std::string_view key, const std::string& source_text) {
  const auto found = std::ranges::find(kRemovedKeys, key, &RemovedKey::key);
  return found != kRemovedKeys.end() && canonical(found->was) == source_text;
}

std::string_view removed_value(std::string_view key, std::string_view value) {
  const auto found = std::ranges::find_if(kRemovedValues, [&](const RemovedValue& one) {
    return one.key == key && one.value == value;
  });
  return found == kRemovedValues.end() ? "" : found->instead;
}

}  // namespace espalier::config
