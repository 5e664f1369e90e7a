#pragma once
// The numbers that describe a run, most important first; one list for the page and the terminal.
// Losses, speed and bytes come from metrics.jsonl, where it has them: summary.json may be of an
// earlier launch. Medians are over the settled steps (io/run/metrics.h).
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/report/run_data.h"

namespace espalier::report {

enum class Better { lower, higher, neither };

struct Cell {
  std::optional<double> value;  ///< for ratios; absent for text and for unknown numbers
  std::string text = "-";
};

struct Headline {
  std::string label;
  std::string hint;  ///< one sentence on how it is measured
  Better better = Better::neither;
  bool major = false;       ///< a card on the page, a row of the terminal's table
  std::vector<Cell> cells;  ///< one a run
};

std::vector<Headline> headlines(std::span<const RunData> runs);

/// Bytes of all-reduces that rank 0 sends in a step, if known.
std::optional<double> allreduce_bytes(const RunData& run);
/// The same of messages between stages.
std::optional<double> p2p_bytes(const RunData& run);

/// 1234567.0 -> "1,234,567".
std::string grouped(double value);
/// 1234567.0 -> "1.23 MB" (powers of 1000).
std::string bytes_text(double bytes);

}  // namespace espalier::report
