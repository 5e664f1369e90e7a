#pragma once
// [model] of kinds "gpt" and "decoder", whatever it writes out or leaves to the family.
#include <string>

#include "io/config/config.h"

namespace espalier::hub {

/// With the family and its numbers in place of 0 and "auto". Throws Failure for keys that
/// contradict each other.
io::ModelConfig complete(const io::ModelConfig& config);

/// The first key by which two networks differ, with both values ("model.window: 5 and 0"); empty:
/// they compute the same. Contexts, which should be equal, and dropout are not compared.
std::string network_difference(const io::ModelConfig& a, const io::ModelConfig& b);

}  // namespace espalier::hub
