#pragma once
// Rules across fields: what the limits of one field cannot express (width divisible by heads,
// from_step < to_step, ...).
#include "io/config/config.h"

namespace espalier::config {

/// Throws Failure: the cause and the fix.
void validate(const io::Config& config);

}  // namespace espalier::config
