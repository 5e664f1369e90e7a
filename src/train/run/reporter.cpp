#include "src/train/run/reporter.h"

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/wait_hook.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/snapshot.h"
#include "src/train/run/summary.h"

namespace espalier::train {
namespace {

/// Traced steps: the first ones, and twenty pairs over the run, to cover dense and sparse steps.
bool traced(const io::Config& config, int64_t step) {
  const int64_t spacing = std::max<int64_t>(config.train.steps / 20, 1);
  return config.run.trace && (step < 3 || step % spacing < 2);
}

}  // namespace

Reporter::Reporter(Run& run, std::string git)
    : run_(run), git_(std::move(git)), last_saved_(run.resumed_step) {}

void Reporter::write_metrics(const StepReport& report) {
  run_.directory->write_metrics(metrics_line(report));
}

void Reporter::checkpoint() {
  const Span span(Track::io, "checkpoint");
  const Progress progress{.step = run_.step,
                          .config = run_.config(),
                          .characters = run_.source->characters(),
                          .codec_choice = all_codec_choices(),
                          .loss_scale = run_.loss_scale.state()};
  const auto path = run_.directory->checkpoint_path(run_.step);
  save(path, run_.stage->store(), progress, run_.comm, run_.plan->owners,
       &run_.data_parallel->low_rank());
  last_saved_ = run_.step;
  if (run_.comm.rank() == 0) {
    io::prune_checkpoints(run_.directory->checkpoints(), run_.config().train.keep_checkpoints);
  }
  note(fmt::format("checkpoint {}", path.string()));
}

/// Gathers the choices of all stages on rank 0. AdaPrec's choice is the same on all.
std::string Reporter::all_codec_choices() const {
  const std::string mine = run_.data_parallel->codecs().state();
  if (codec_chooser(run_.config()) == CodecChooser::adaprec && run_.plan->layout.grid.data > 1) {
    return mine;
  }
  std::string all;
  for (const auto& one : parallel::gather(run_.ranks->pipeline(), std::as_bytes(std::span(mine)))) {
    all.append(reinterpret_cast<const char*>(one.data()), one.size());
  }
  return all;
}

std::string Reporter::newest_checkpoint() const {
  return last_saved_ < 0 ? "none" : run_.directory->checkpoint_path(last_saved_).string();
}

void Reporter::note_choices() {
  if (const std::string text = run_.data_parallel->codecs().take_notes(); !text.empty()) {
    note(run_.plan->layout.pipelined() ? fmt::format("stage {}: {}", run_.ranks->stage(), text)
                                       : text);
  }
  for (const auto& part : run_.stage->parts()) {
    if (const std::string why = part->take_graph_failure(); !why.empty()) {
      note("run.graphs: a pass could not be captured and is launched call by call: " + why);
    }
  }
}

void Reporter::trace_step(int64_t step) {
  parallel::WaitHook::run_all();  // reductions that have ended are in the trace
  Trace::install(traced(run_.config(), step) ? &trace_ : nullptr);
}

void Reporter::finish(bool finished) {
  parallel::WaitHook::run_all();
  Trace::install(nullptr);
  if (last_saved_ != run_.step && run_.config().train.checkpoint_every >= 0) {
    checkpoint();
  }
  compare_ranks(run_.stage->store(), run_.ranks->data());
  const auto pipeline =
      record_pipeline(run_.directory->root(), run_.plan->layout, *run_.pipeline, *run_.ranks);
  write_summary({.run = run_, .pipeline = pipeline, .finished = finished, .git = git_});
  if (run_.config().run.trace) {
    write_traces(run_.directory->root() / "trace.json", trace_, run_.comm);
  }
}

}  // namespace espalier::train
