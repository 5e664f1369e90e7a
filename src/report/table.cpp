#include <algorithm>

#include "src/core/error.h"
#include "src/report/headline.h"
#include "src/report/report.h"

namespace espalier::report {
namespace {

/// Columns of one table: first left-aligned, the rest right-aligned, two blanks between.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t column = 1; column < row.size(); ++column) {
      line += fmt::format("  {:>{}}", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string ratio_text(const Cell& cell, const Cell& first) {
  if (!cell.value || !first.value || *first.value == 0) {
    return "";
  }
  return fmt::format("x {:.3g}", *cell.value / *first.value);
}

}  // namespace

std::string summary_table(std::span<const RunData> runs) {
  std::vector<std::vector<std::string>> rows{{""}};
  for (size_t run = 0; run < runs.size(); ++run) {
    rows[0].push_back(runs[run].name + (runs[run].complete() ? "" : " (so far)"));
    if (run > 0) {
      rows[0].emplace_back("");
    }
  }
  for (const Headline& line : headlines(runs)) {
    if (!line.major) {
      continue;
    }
    std::vector<std::string> row{line.label};
    for (size_t run = 0; run < runs.size(); ++run) {
      row.push_back(line.cells[run].text);
      if (run > 0) {
        row.push_back(ratio_text(line.cells[run], line.cells[0]));
      }
    }
    rows.push_back(std::move(row));
  }
  return aligned(rows);
}

}  // namespace espalier::report
