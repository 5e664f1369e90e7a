#include "tests/support/settings.h"

#include <map>
#include <sstream>

#include "src/config/parse.h"

namespace espalier::testing {

void take_family(io::ModelConfig& model, const std::string& family) {
  model.kind = "decoder";
  model.family = family;
  model.heads = 4;
  model.kv_heads = family == "gpt2" ? 0 : 2;
  model.mlp_width = 48;
  model.window = family == "mistral" || family == "gemma3" ? 5 : 0;
  model.full_every = family == "gemma3" ? 2 : 0;
}

void take_type(io::Config& config, const std::string& words) {
  const size_t space = words.find(' ');
  config.train.dtype = words.substr(0, space);
  if (space != std::string::npos) {
    take_family(config.model, words.substr(space + 1));
  }
}

void apply_settings(io::Config& config, const std::string& settings) {
  static const std::map<std::string, std::string> names{
      {"prune", "pruning.method=magnitude pruning.sparsity=0.75 pruning.at_step=4"},
      {"prune_sparse", "prune sparse.storage=sparse"},
      {"prune_expanded", "prune sparse.storage=expanded"},
      {"prune_gradually",
       "prune pruning.at_step=-1 pruning.from_step=2 pruning.to_step=10 pruning.every=3"},
      {"move_masks", "prune_sparse pruning.method=rigl pruning.at_step=0 pruning.every=3"},
      {"eight_bits", "prune_sparse model.width=64 pruning.sparsity=0.5 optimizer.state_bits=8"},
      {"blocks", "prune pruning.method=block pruning.block=16 sparse.storage=block"}};
  std::istringstream words(settings);
  for (std::string word; words >> word;) {
    if (const auto named = names.find(word); named != names.end()) {
      apply_settings(config, named->second);
    } else if (word == "random_rounding") {
      config.train.master_copy = config.train.dtype == "fp32";
    } else if (word.starts_with("codec:")) {
      config.parallel.codec.fallback = word.substr(6);
      config.parallel.codec_min_size = 64;
    } else if (word.starts_with("stages:")) {
      apply_settings(config,
                     "parallel.pipeline=2 parallel.partition=[2,2] train.micro_batch=3 "
                     "parallel.schedule=" +
                         word.substr(7));
    } else if (word.starts_with("family:")) {
      take_family(config.model, word.substr(7));
    } else {
      config::set_member(config, word);
    }
  }
}

}  // namespace espalier::testing
