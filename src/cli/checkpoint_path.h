#pragma once
// The name that stands for a run's newest checkpoint.
#include <string>

namespace espalier::cli {

/// FOLDER/last.h5, if there is no such file, becomes FOLDER's checkpoint of the highest step, which
/// is not verified. Any other path, and last.h5 of a folder without checkpoints, stays as it is.
/// For CLI::Option::transform, of options that name a checkpoint to read.
std::string newest_for_last(const std::string& path);

}  // namespace espalier::cli
