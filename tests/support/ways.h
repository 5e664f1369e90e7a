#pragma once
// Training variants for tests of whole runs, as changes of a config.
#include <string>
#include <vector>

#include "io/config/config.h"

namespace espalier::testing {

struct Way {
  std::string name;
  void (*apply)(io::Config& config) = nullptr;
};

/// Makes a network of tiny_config's size a decoder of this family, with the options that the family
/// may have.
inline void take_family(io::ModelConfig& model, const std::string& family) {
  model.kind = "decoder";
  model.family = family;
  model.heads = 4;
  model.kv_heads = family == "gpt2" ? 0 : 2;
  model.mlp_width = 48;
  model.window = family == "mistral" || family == "gemma3" ? 5 : 0;
  model.full_every = family == "gemma3" ? 2 : 0;
}

/// Sets the type, such as "bf16". A second word is a family.
inline void take_type(io::Config& config, const std::string& words) {
  const size_t space = words.find(' ');
  config.train.dtype = words.substr(0, space);
  if (space != std::string::npos) {
    take_family(config.model, words.substr(space + 1));
  }
}

inline void prune(io::Config& config) {
  config.pruning.method = "magnitude";
  config.pruning.sparsity = 0.75;
  config.pruning.at_step = 4;
}

inline void prune_sparse(io::Config& config) {
  prune(config);
  config.sparse.storage.fallback = "sparse";
}

inline void prune_expanded(io::Config& config) {
  prune(config);
  config.sparse.storage.fallback = "expanded";
}

inline void prune_gradually(io::Config& config) {
  prune(config);
  config.pruning.at_step = -1;
  config.pruning.from_step = 2;
  config.pruning.to_step = 10;
  config.pruning.every = 3;
}

inline void move_masks(io::Config& config) {
  prune_sparse(config);
  config.pruning.method = "rigl";
  config.pruning.at_step = 0;
  config.pruning.every = 3;
}

inline void set_eight_bits(io::Config& config) {
  prune_sparse(config);
  config.model.width = 64;  // parameters that are large enough for coded moments
  config.pruning.sparsity = 0.5;
  config.optimizer.state_bits = 8;
}

/// Cuts the network into stages on two ranks, with micro-batches of three sequences.
inline void in_two_stages(io::Config& config, const std::string& schedule) {
  config.parallel.pipeline = 2;
  config.parallel.partition = {2, 2};
  config.parallel.schedule = schedule;
  config.train.micro_batch = 3;
}

}  // namespace espalier::testing
