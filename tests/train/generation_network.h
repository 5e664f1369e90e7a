#pragma once
// A small network with random weights, pruned or not, for the tests of src/train/generation.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/core/rng.h"
#include "src/kernels/backend.h"
#include "src/train/stage/stage.h"
#include "tests/support/support.h"

namespace espalier::train::generation_test {

inline constexpr int64_t kVocabulary = 61;
inline constexpr int64_t kContext = 40;
using Tokens = std::vector<int32_t>;

struct Setting {
  std::string storage = "dense";  ///< of pruned weights; empty: nothing is pruned
  std::string dtype = "fp32";
  std::string family{};  ///< of a decoder; empty: the GPT
  int64_t window = 0;
  bool generation = true;
  int threads = 2;
};

inline io::Config config_of(const Setting& setting) {
  io::Config config;
  config.model.kind = "gpt";
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 48;
  config.model.context = kContext;
  if (!setting.family.empty()) {
    config.model.kind = "decoder";
    config.model.width = 64;
    config.model.family = setting.family;
    config.model.heads = 4;
    config.model.kv_heads = setting.family == "gpt2" || setting.family == "opt" ? 0 : 2;
    config.model.head_width = setting.family.starts_with("gemma") ? 16 : 0;
    config.model.window = setting.window;
    config.model.full_every = setting.family == "gemma3" ? 2 : 0;
  }
  config.train.dtype = setting.dtype;
  config.sparse.storage.fallback = setting.storage.empty() ? "dense" : setting.storage;
  config.sparse.block = setting.storage == "block" ? 8 : 0;
  return config;
}

inline ProblemShape problem_of(const io::Config& config) {
  return {.classes = kVocabulary,
          .features = config.model.context,
          .rows = config.model.context,
          .input_dtype = DType::int32};
}

/// Keeps two thirds of the blocks of 8 x 8 elements.
inline sparse::Mask mask_of(const sparse::ParameterSpec& spec, const sparse::Mask& all) {
  sparse::Mask mask = all;
  const int64_t cols = spec.shape.cols();
  for (int64_t i = 0; spec.prunable && i < mask.size(); ++i) {
    const uint64_t block =
        mix(std::hash<std::string>()(spec.name), static_cast<uint64_t>(i / cols / 8));
    mask.set(i, mix(block, static_cast<uint64_t>(i % cols / 8)) % 3 != 0);
  }
  return mask;
}

/// A network with random weights, larger than initial ones: predictions depend on all tokens.
struct Network {
  Network(const Setting& setting, const io::Config& of)
      : config(of),
        stream(arena, kernels::usable_threads(setting.threads)),
        stage(config, problem_of(config), stream, kernels::by_name("auto"),
              {.micro_batch = 3, .training = false, .generation = setting.generation}) {
    sparse::Store& store = stage.store();
    store.initialise(5, [](const sparse::Parameter& parameter) {
      return parameter.spec.shape.rank() == 2 ? 6.0 : 1.0;
    });
    if (!setting.storage.empty()) {
      std::vector<sparse::Mask> masks = store.masks();
      for (size_t p = 0; p < masks.size(); ++p) {
        masks[p] = mask_of(store.parameters()[p].spec, masks[p]);
      }
      store.set_masks(masks);
    }
  }
  explicit Network(const Setting& setting) : Network(setting, config_of(setting)) {}

  io::Config config;
  Arena arena;
  Stream stream;
  Stage stage;
};

inline Tokens prompt_of(uint64_t seed, size_t length) {
  Tokens prompt;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(mix(seed, i) % kVocabulary));
  }
  return prompt;
}

/// Logits of the token after `tokens`, without a cache.
inline std::vector<float> predicted(Network& network, std::span<const int32_t> tokens) {
  const size_t seen = std::min<size_t>(tokens.size(), kContext);
  const auto logits = network.stage.predict(tokens.last(seen)).span<const float>();
  return {logits.begin(), logits.end()};
}

}  // namespace espalier::train::generation_test
