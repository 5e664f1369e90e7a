#pragma once
// The four kinds of methods, as overloads for their variant (registry.h). Each kind has a file.
//
//   start       its work in a run (work.h)
//   validate    throws Failure for settings that do not fit together, or not to the run
//   reads       whether it reads a key of [pruning] beyond those of every method
#include "pruning/registry.h"
#include "pruning/work.h"

namespace espalier::pruning {

std::unique_ptr<Work> start(const OneShot& kind, RunSettings settings, const Weights& weights);
std::unique_ptr<Work> start(const Moving& kind, RunSettings settings, const Weights& weights);
std::unique_ptr<Work> start(const Learning& kind, RunSettings settings, const Weights& weights);
std::unique_ptr<Work> start(const Calibrated& kind, RunSettings settings, const Weights& weights);

void validate(const OneShot& kind, const io::PruningConfig& config, const RunFacts& run);
void validate(const Moving& kind, const io::PruningConfig& config, const RunFacts& run);
void validate(const Learning& kind, const io::PruningConfig& config, const RunFacts& run);
void validate(const Calibrated& kind, const io::PruningConfig& config, const RunFacts& run);

bool reads(const OneShot& kind, const io::PruningConfig& config, std::string_view key);
bool reads(const Moving& kind, const io::PruningConfig& config, std::string_view key);
bool reads(const Learning& kind, const io::PruningConfig& config, std::string_view key);
bool reads(const Calibrated& kind, const io::PruningConfig& config, std::string_view key);

}  // namespace espalier::pruning
