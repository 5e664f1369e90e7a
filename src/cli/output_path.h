#pragma once
// Checks of output names, before the work: an output replaces no input, no file of a run and
// nothing that is no file, and never lands among the checkpoints of a run.
#include <filesystem>
#include <span>
#include <string>

namespace espalier::cli {

/// Throws Failure if `out` is no place for a file, is one of the files that the command reads (also
/// by links; names of no file are ignored), is a file that a run needs, or lies in the folder
/// checkpoints of a run.
void check_output(const std::filesystem::path& out, std::span<const std::string> inputs);

/// The same for a folder.
void check_output_folder(const std::filesystem::path& out);

/// Whether `folder` is the directory of a run.
bool is_run(const std::filesystem::path& folder);

}  // namespace espalier::cli
