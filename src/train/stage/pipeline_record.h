#pragma once
// What a pipeline did in its last step beside what its schedule predicts: pictures and numbers in
// the run directory.
//
//   pipeline-measured.svg    begin and end of every action on every rank of the first replica
//   pipeline-predicted.svg   the simulator's, with the mean time of each stage's actions, no latency
//
// The difference of both is what messages cost: waiting that the order alone does not explain. Of
// an asynchronous pipeline "the last step" is all since the last drain, and the numbers include
// what each stage's delays were, and how many weights it held for them.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/train/stage/layout.h"
#include "src/train/stage/pipeline.h"
#include "src/train/stage/ranks.h"

namespace espalier::train {

/// Collective over the pipeline. Writes the pictures and returns the numbers on world rank 0; null
/// elsewhere, and when there is no pipeline. Seconds; clocks of one machine agree.
nlohmann::ordered_json record_pipeline(const std::filesystem::path& directory, const Layout& layout,
                                       const Pipeline& pipeline, Ranks& ranks);

}  // namespace espalier::train
