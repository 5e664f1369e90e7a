#pragma once
// Runs -> one self-contained HTML page, and one table for the terminal. read_runs (run_data.h)
// reads run directories.
//
// The page says which files of a run are missing or torn, and shows the rest. It needs no network
// and no server. Curves are averaged over buckets of steps and the timeline keeps a few steps, so
// that it stays below about 3 MB however long the runs were. The same runs give the same bytes.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/report/run_data.h"

namespace espalier::report {

/// The answer of a comparison, above its runs.
struct Answer {
  std::vector<std::string> sentences;
  std::vector<std::vector<std::string>> rows;  ///< of a table; the first is its head
};

/// The page as a string.
std::string render_report(std::span<const RunData> runs, const Answer& answer = {});

/// Renders and writes `file` (through a temporary name, so that a reader never sees half a page).
void write_report(std::span<const RunData> runs, const std::filesystem::path& file,
                  const Answer& answer = {});

/// The headline numbers, a row each, the runs side by side; plain text that ends in a newline.
/// Numbers that a run does not have yet are shown as "-". From the second run on, the ratio to the
/// first is given.
std::string summary_table(std::span<const RunData> runs);

}  // namespace espalier::report
