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

/// Without the numbers of a scaling.
Settings settings_of(const io::ModelConfig& config) {
  const io::ModelConfig all = complete(config);
  Settings settings;
  const auto add = [&settings](std::string_view key, const auto& value) {
    settings.emplace_back(key, fmt::format("{}", value));
  };
  add("family", all.family);
  add("layers", all.layers);
  add("width", all.width);
  add("heads", all.heads);
  add("vocabulary", all.vocabulary);
  add("tie_embeddings", all.tie_embeddings);
  add("norm", decoder_of(config).block.norm);
  add("family:norm_epsilon", all.norm_epsilon);
  add("kv_heads", all.kv_heads);
  add("head_width", all.head_width);
  add("window", all.window);
  add("full_every", all.full_every);
  settings.emplace_back("family:attention_scale", fmt::format("{:.6g}", all.attention_scale));
  add("mlp_width", all.mlp_width);
  add("family:activation", all.activation);
  add("family:residual", all.residual);
  add("family:biases", all.biases);
  add("rotary:base", all.rotary_base);
  add("rotary:local_base", all.local_rotary_base);
  add("rotary:share", all.rotary_share);
  add("rotary", all.rotary_scaling);
  return settings;
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

io::ModelConfig complete(const io::ModelConfig& config) {
  const model::Decoder made = decoder_of(config);
  const model::Attention::Options& attention = made.block.attention;
  const bool rotates = attention.rotary.width > 0;
  io::ModelConfig all = config;
  all.family = config.kind == "gpt" ? "gpt2" : config.family;
  all.kv_heads = attention.kv_heads > 0 ? attention.kv_heads : attention.heads;
  all.head_width = attention.head_width;
  all.mlp_width = made.block.mlp.hidden;
  all.activation = model::name_of(made.block.mlp.activation);
  all.residual = made.residual();
  all.biases = made.biases();
  all.norm_epsilon = made.block.norm_epsilon;
  all.attention_scale = attention.score_scale();
  all.full_every = config.full_every <= config.layers ? config.full_every : 0;
  if (all.full_every == 1) {  // no block has the window
    all.full_every = all.window = 0;
  }
  all.rotary_base = rotates ? attention.rotary.base : 0;
  all.local_rotary_base = rotates && all.window > 0 ? made.local_rotary_base : 0;
  if (rotates && config.rotary_share == 0) {
    all.rotary_share =
        static_cast<double>(attention.rotary.width) / static_cast<double>(attention.head_width);
  }
  return all;
}

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
             : "factor, context, low, high or gain of model.rotary";
}

}  // namespace espalier::hub
