#pragma once
// Names of checkpoints, for all commands and keys that read one.
#include <string>

#include "io/config/config.h"

namespace espalier::cli {

/// io::checkpoint_named, for CLI::Option::transform. Notes a file last.h5 among the checkpoints of
/// a run: it hides the newest one.
std::string checkpoint_path(const std::string& path);

/// The same for --resume, where "auto" and "none" are no paths.
std::string resume_path(const std::string& path);

/// Of an option that names a tokenizer: the tokenizer.json or tokenizer.model of a folder, else as
/// checkpoint_path.
std::string tokenizer_path(const std::string& path);

/// checkpoint_path for the keys of a config that name checkpoints.
void name_checkpoints(io::Config& config);

}  // namespace espalier::cli
