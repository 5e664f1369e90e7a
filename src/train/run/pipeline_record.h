#pragma once
// Records the last step of a pipeline and its simulation: pictures and numbers in the run
// directory.
//
//   pipeline-measured.svg    begin and end of every action on every rank of the first replica
//   pipeline-predicted.svg   simulated with the mean time of each stage's actions, without latency
//
// The difference is the cost of messages: waiting that the order of actions does not explain. For
// an asynchronous pipeline "the last step" covers all steps since the last drain, and the numbers
// include each stage's delays and the number of weight versions.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/train/run/pipeline.h"
#include "src/train/stage/layout.h"

namespace espalier::train {

/// Collective over the pipeline. Writes the pictures and returns the numbers on world rank 0; null
/// elsewhere, and when there is no pipeline. Seconds; clocks of one machine agree.
nlohmann::ordered_json record_pipeline(const std::filesystem::path& directory, const Layout& layout,
                                       const Pipeline& pipeline, Ranks& ranks);

}  // namespace espalier::train
