#include "src/hub/network_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "src/model/networks/families.h"

namespace espalier::hub {
namespace {

using Settings = std::vector<std::pair<std::string_view, std::string>>;

model::Decoder decoder_of(const io::ModelConfig& config) {
  return config.kind == "gpt" ? model::gpt_of(config, config.vocabulary)
                              : model::decoder_of(config, config.vocabulary);
}

/// With the family's numbers in place of 0 and "auto".
Settings settings_of(const io::ModelConfig& config) {
  const model::Decoder made = decoder_of(config);
  const model::Attention::Options& attention = made.block.attention;
  const model::RotaryOptions& rotary = attention.rotary;
  Settings all;
  const auto add = [&all](std::string_view key, const auto& value) {
    all.emplace_back(key, fmt::format("{}", value));
  };
  add("family", config.kind == "gpt" ? "gpt2" : std::string_view(config.family));
  add("layers", config.layers);
  add("width", config.width);
  add("heads", config.heads);
  add("vocabulary", config.vocabulary);
  add("tie_embeddings", config.tie_embeddings);
  add("norm", made.block.norm);
  add("norm_epsilon", made.block.norm_epsilon);
  add("kv_heads", attention.kv_heads > 0 ? attention.kv_heads : attention.heads);
  add("head_width", attention.head_width);
  add("window", attention.window);
  add("mlp_width", made.block.mlp.hidden);
  add("activation", model::name_of(made.block.mlp.activation));
  add("rotary_base", rotary.base);
  add("rotary_share", rotary.width);
  add("rotary_scaling", rotary.scaling);
  return all;
}

/// The angles by which one position rotates heads: what the keys of a scaling amount to.
std::vector<float> scaled_angles(const io::ModelConfig& config) {
  model::RotaryOptions rotary = decoder_of(config).block.attention.rotary;
  rotary.context = rotary.context > 0 ? rotary.context : rotary.positions;
  rotary.positions = 2;
  const model::RotaryTables tables = model::rotary_tables(rotary);
  std::vector<float> all = tables.cosines;
  all.insert(all.end(), tables.sines.begin(), tables.sines.end());
  return all;
}

}  // namespace

std::string network_difference(const io::ModelConfig& a, const io::ModelConfig& b) {
  const Settings left = settings_of(a);
  const Settings right = settings_of(b);
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (left[i] != right[i]) {
      return fmt::format("model.{}: {} and {}", left[i].first, left[i].second, right[i].second);
    }
  }
  return scaled_angles(a) == scaled_angles(b)
             ? ""
             : "model.rotary_factor, rotary_context, rotary_low, rotary_high or rotary_gain";
}

}  // namespace espalier::hub
