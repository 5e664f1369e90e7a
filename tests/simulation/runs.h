#pragma once
// Whole trainings with random settings and faults in a simulated world, and what they may end in.
//
//   - the bits of an undisturbed run, or
//   - an error that names a rank or the cause, on every rank that lives, at most two timeouts after
//     the fault; then --resume auto, which faults may disturb again, reaches the bits of an
//     undisturbed run.
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/cases.h"
#include "tests/simulation/world.h"

namespace espalier::simulation {

struct RunOptions {
  uint64_t seed = 1;
  std::string resume = "none";
  int64_t stop_after = 0;
  std::vector<Fault> faults{};
  double disk_seconds = 0;
  bool notices_arrive = true;
  double most_seconds = 1e6;
};
/// Trains once.
Report train(const Case& run, const RunOptions& options);

/// Results of a finished run, for comparison.
struct RunResults {
  std::map<std::string, uint64_t> arrays;  ///< digests of the last checkpoint's arrays
  std::vector<std::string> metrics;        ///< lines of metrics.jsonl, without times
  bool operator==(const RunResults&) const = default;
};
RunResults results_of(const Case& run);

/// The result of all runs of one number.
struct Verdict {
  std::string refusal{};              ///< the settings do not fit together; else empty
  std::string failure{};              ///< the expectation that was not met; else empty
  std::vector<std::string> faults{};  ///< those that happened
  bool failed = false;                ///< the disturbed run ended by an error
  bool named = false;                 ///< an error names the rank of a fault
};
/// Runs the case of a number undisturbed, with faults, and again after an error. From 10^9 on eight
/// numbers share their settings and one undisturbed run, which is kept for the next call.
Verdict try_number(uint64_t number);

}  // namespace espalier::simulation
