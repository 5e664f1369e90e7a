#pragma once
// Names of files on the command line. Outputs are checked before the work: an output replaces no
// input, no file of a run and nothing that is no file, and never lands among the checkpoints of a
// run.
#include <filesystem>
#include <span>
#include <string>

#include "io/config/config.h"
#include "io/tokenizer/tokenizer.h"

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

/// Throws Failure if the file is missing, holds no tokenizer, or one that is not supported.
io::Tokenizer open_tokenizer(const std::string& path);

/// Throws Failure if `out` is no place for a file, is one of the files that the command reads (also
/// by links; names of no file are ignored), is a file that a run needs, or lies in the folder
/// checkpoints of a run.
void check_output(const std::filesystem::path& out, std::span<const std::string> inputs);

/// The same for a folder.
void check_output_folder(const std::filesystem::path& out);

/// Whether `folder` is the directory of a run.
bool is_run(const std::filesystem::path& folder);

}  // namespace espalier::cli
