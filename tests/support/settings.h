#pragma once
// Settings of test runs in one line: a new option or member needs one more row in a list of ways.
#include <string>
#include <vector>

#include "tests/support/ways.h"

namespace espalier::testing {

/// Words separated by spaces, applied in order: "section.key=value" of the config, or a name of
/// several settings.
struct RanksWay {
  int ranks = 1;
  std::string settings;
};

/// Names of several settings: those of ways.h, and
///   random_rounding   in 16 bits, no master copy: updates are rounded stochastically
///   blocks            prune, with blocks of 16 x 16 and their storage
///   codec:CODEC       codes of gradients, also of small parameters
///   stages:SCHEDULE   two stages
///   family:FAMILY     a decoder
void apply_settings(io::Config& config, const std::string& settings);

}  // namespace espalier::testing
