#include "tests/support/settings.h"

#include <sstream>

#include "src/config/parse.h"

namespace espalier::testing {

void apply_settings(io::Config& config, const std::string& settings) {
  std::istringstream words(settings);
  for (std::string word; words >> word;) {
    if (word == "prune") {
      prune(config);
    } else if (word == "prune_sparse") {
      prune_sparse(config);
    } else if (word == "prune_expanded") {
      prune_expanded(config);
    } else if (word == "prune_gradually") {
      prune_gradually(config);
    } else if (word == "move_masks") {
      move_masks(config);
    } else if (word == "random_rounding") {
      config.train.master_copy = config.train.dtype == "fp32";
    } else if (word == "blocks") {
      prune(config);
      config.pruning.method = "block";
      config.pruning.block = 16;
      config.sparse.storage.fallback = "block";
    } else if (word.starts_with("codec:")) {
      config.parallel.codec.fallback = word.substr(6);
      config.parallel.codec_min_size = 64;
    } else if (word.starts_with("stages:")) {
      in_two_stages(config, word.substr(7));
    } else if (word.starts_with("family:")) {
      take_family(config.model, word.substr(7));
    } else {
      config::apply_override(config, word);
    }
  }
}

}  // namespace espalier::testing
