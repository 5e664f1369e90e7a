#pragma once
// Run directories -> one self-contained HTML page, and one table for the terminal.
//
// A run directory is what `train` leaves: config.toml, metrics.jsonl, summary.json, trace.json. Any
// of them may be absent or end in a torn line (the run is still going, or was killed): the page
// then says so and shows the rest. Only a directory that holds none of them is a Failure. The page
// needs no network and no server. Curves are averaged over buckets of steps and the timeline keeps
// a few steps, so that it stays below about 3 MB however long the runs were. The same directories
// give the same bytes.
#include <filesystem>
#include <span>
#include <string>

namespace espalier::report {

/// The page as a string. Throws Failure for a path that is no run directory.
std::string render_report(std::span<const std::filesystem::path> run_directories);

/// Renders and writes `file` (through a temporary name, so that a reader never sees half a page).
void write_report(std::span<const std::filesystem::path> run_directories,
                  const std::filesystem::path& file);

/// The headline numbers, a row each, the runs side by side; plain text that ends in a newline.
/// Numbers that a run does not have yet are shown as "-". From the second run on, the ratio to the
/// first is given.
std::string summary_table(std::span<const std::filesystem::path> run_directories);

}  // namespace espalier::report
