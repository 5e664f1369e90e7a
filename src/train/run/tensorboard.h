#pragma once
// What a run with run.tensorboard writes into its event files (docs/formats.md: the tags).
#include <nlohmann/json.hpp>
#include <vector>

#include "io/run/event_file.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The numbers of a line of metrics.jsonl but its step.
io::EventSummary events_of_step(const nlohmann::ordered_json& metrics_line);

/// Of each parameter of this rank that belongs to the network: a histogram of its kept weights, as
/// compute reads them, and its density if `prunable`. Reads the weights once, in pieces of 4 MiB at
/// most; waits for the device. Not collective.
io::EventSummary events_of_weights(const sparse::Store& store, const std::vector<bool>& prunable);

}  // namespace espalier::train
