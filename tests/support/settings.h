#pragma once
// Settings of test runs in one line: a new option or member needs one more row in a list of ways.
#include <string>
#include <vector>

#include "io/config/config.h"

namespace espalier::testing {

/// Words separated by spaces, applied in order: "section.key=value" of the config, or a name of
/// several settings.
struct RanksWay {
  int ranks = 1;
  std::string settings;
};

/// Names of several settings:
///   prune             once, after step 4; in a storage: prune_sparse, prune_expanded
///   prune_gradually   from step 2 to step 10
///   move_masks        by rigl
///   eight_bits        moments of 8 bits, of parameters that are large enough for them
///   random_rounding   in 16 bits, no master copy: updates are rounded stochastically
///   blocks            prune, with blocks of 16 x 16 and their storage
///   codec:CODEC       codes of gradients, also of small parameters
///   stages:SCHEDULE   two stages, with micro-batches of three sequences
///   family:FAMILY     a decoder with the options that the family may have
void apply_settings(io::Config& config, const std::string& settings);

inline void prune(io::Config& config) { apply_settings(config, "prune"); }
inline void prune_sparse(io::Config& config) { apply_settings(config, "prune_sparse"); }
inline void prune_expanded(io::Config& config) { apply_settings(config, "prune_expanded"); }
inline void prune_gradually(io::Config& config) { apply_settings(config, "prune_gradually"); }
inline void move_masks(io::Config& config) { apply_settings(config, "move_masks"); }
inline void in_two_stages(io::Config& config, const std::string& schedule) {
  apply_settings(config, "stages:" + schedule);
}
/// Of tiny_config's size.
void take_family(io::ModelConfig& model, const std::string& family);
/// Sets the type, such as "bf16". A second word is a family.
void take_type(io::Config& config, const std::string& words);

}  // namespace espalier::testing
