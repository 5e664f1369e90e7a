#pragma once
// Lines of metrics.jsonl of a run.
#include "tests/support/support.h"

namespace espalier::testing {

/// Values of metrics.jsonl, step by step in order, without times.
inline std::vector<nlohmann::json> metrics_without_times(const io::Config& config) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(std::filesystem::path(config.run.out) / "metrics.jsonl");
  for (std::string text; std::getline(file, text);) {
    nlohmann::json line = nlohmann::json::parse(text);
    for (const char* time :
         {"step_ms", "tokens_per_s", "compute_ms", "wait_ms", "collective_ms", "update_ms"}) {
      line.erase(time);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace espalier::testing
