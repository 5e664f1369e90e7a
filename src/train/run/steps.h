#pragma once
// The step loop of one rank: new masks, forward and backward with reductions, update, evaluation,
// report, save.
// All ranks run it in step.
//
// On a device a step is enqueued while the previous step runs: forwards, backwards, reductions
// between devices, and the update; the host waits for none of them. Then the previous step is
// finished: its losses and norm have arrived, ranks sum them, and the step is reported. A step is
// finished before anything else is enqueued if the state is read after it. Without a device each
// step is finished immediately.
//
// A step with a non-finite loss or gradient norm changes nothing, and neither does a step that was
// enqueued after it (optim/norm.h). Rows with a non-finite loss have non-finite gradients
// (kernels.h). So the state afterwards is the state before that step.
#include "src/train/run/reporter.h"

namespace espalier::train {

/// Steps up to `last`, or until a stop is requested on any rank; returns whether it was.
bool run_steps(Run& run, Reporter& reporter, const TrainerOptions& options, int64_t last);

}  // namespace espalier::train
