#pragma once
// Whether two [model] sections describe the same network, whatever they write out or leave to the
// family.
#include <string>

#include "io/config/config.h"

namespace espalier::hub {

/// The first key of [model] by which two networks of kinds "gpt" and "decoder" differ, with both
/// values ("model.window: 512 and 0"); empty: they compute the same. Contexts, which should be
/// equal, and dropout are not compared. Throws Failure for keys that contradict each other.
std::string network_difference(const io::ModelConfig& a, const io::ModelConfig& b);

}  // namespace espalier::hub
