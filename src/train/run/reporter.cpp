#include "src/train/run/reporter.h"

#include <algorithm>
#include <array>

#include "io/files/folders.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/device/wait_hook.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "src/train/exchange/agreement.h"
#include "src/train/memory/host_memory.h"
#include "src/train/run/tensorboard.h"

namespace espalier::train {
namespace {

/// Traced steps: the first ones, and twenty pairs over the run, to cover dense and sparse steps.
bool traced(const io::Config& config, int64_t step) {
  const int64_t spacing = std::max<int64_t>(config.train.steps / 20, 1);
  return config.run.trace && (step < 3 || step % spacing < 2);
}

constexpr int64_t kUntimedSteps = 3;  // libraries choose kernels in the first ones

}  // namespace

Reporter::Reporter(Run& run, const TrainerOptions& options)
    : run_(run),
      git_(options.git),
      system_root_(options.system_root),
      timed_from_(std::max<int64_t>(run.resumed_step, 0)),
      last_saved_(run.resumed_step),
      background_(options.background_thread) {}

void Reporter::write_metrics(const StepReport& report) {
  if (run_.comm.rank() == 0) {
    nlohmann::ordered_json line = metrics_line(report);
    if (!std::exchange(wrote_layout_, true)) {
      line["layout"] = layout_json(run_);
    }
    const parallel::Busy busy(run_.comm);
    run_.directory->write_metrics(line);
    if (run_.config().run.tensorboard) {
      run_.directory->write_events(report.step, events_of_step(line).bytes());
    }
  }
}

void Reporter::write_weight_events(int64_t step) {
  if (!run_.config().run.tensorboard || run_.ranks->replica() > 0) {
    return;
  }
  const Span span(Track::io, "histograms of weights");
  parallel::Communicator& stages = run_.ranks->pipeline();
  const io::EventSummary mine = events_of_weights(run_.stage->store(), run_.pruner->prunable());
  std::array<double, 1> peak{static_cast<double>(run_.backend->arena().total().peak)};
  parallel::all_reduce_small(stages, peak, parallel::Combine::max);
  const auto all = parallel::gather(stages, std::as_bytes(std::span(mine.bytes())));
  if (run_.comm.rank() == 0) {
    io::EventSummary memory;
    memory.add_scalar("memory/peak_bytes", peak[0]);
    std::string summary = memory.bytes();
    for (const auto& one : all) {
      summary.append(reinterpret_cast<const char*>(one.data()), one.size());
    }
    const parallel::Busy busy(run_.comm);
    run_.directory->write_events(step, summary);
  }
}

void Reporter::checkpoint() {
  complete_checkpoint();
  // Ranks may differ in the second condition: the save then copies on none (SaveOptions).
  begin_checkpoint(run_.copies_checkpoints &&
                   has_memory_for_copies(run_.plan->fit.plan.checkpoint_copy,
                                         run_.comm.local_size(), system_root_));
  if (!run_.copies_checkpoints) {
    complete_checkpoint();
  }
}

void Reporter::begin_checkpoint(bool copies) {
  const Span span(Track::io, copies ? "copy for a checkpoint" : "checkpoint");
  // Every checkpoint that stays is of equal and unchanged replicas: older ones are removed below.
  run_.data_parallel->verify_state();
  compare_ranks(run_.stage->store(), run_.ranks->data());
  const RunProgress progress{.step = run_.step,
                             .config = run_.config(),
                             .characters = run_.source->characters(),
                             .codec_choice = all_codec_choices(),
                             .loss_scale = run_.loss_scale.state(),
                             .manifest = run_.manifest,
                             .model_texts = run_.model_texts};
  const RunDirectory& directory = *run_.directory;
  const int64_t keep = run_.config().train.keep_checkpoints;
  pending_.emplace(run_.step, directory.checkpoint_path(run_.step), run_.stage->store(), progress,
                   run_.comm,
                   SaveOptions{.owners = run_.plan->owners,
                               .history = run_.pruner->history(),
                               .copies = copies,
                               .before_commit =
                                   [this, &directory] {
                                     run_.check_data();
                                     directory.sync_metrics();
                                     directory.check_lock();
                                   },
                               .after_commit =
                                   [&directory, keep] {
                                     directory.check_lock();
                                     io::remove_old_checkpoints(directory.checkpoints(), keep);
                                   }},
                   background_);
}

void Reporter::advance_checkpoint() {
  if (pending_ && pending_->save.advance()) {
    report_checkpoint();
  }
}

void Reporter::complete_checkpoint() {
  if (pending_) {
    const Span span(Track::io, "wait for a checkpoint");
    pending_->save.finish();
    report_checkpoint();
  }
}

void Reporter::report_checkpoint() {
  last_saved_ = pending_->step;
  pending_.reset();
  note(fmt::format("checkpoint {}", newest_checkpoint()));
}

/// Gathers the choices of all stages on rank 0. AdaPrec's choice of a codec is the same on all.
std::string Reporter::all_codec_choices() const {
  const std::string mine = run_.data_parallel->codecs().state();
  if (codec_chooser(run_.config()) == CodecChooser::adaprec && !times_codecs(run_.config())) {
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
      note("CUDA graphs: a pass could not be captured and is launched call by call: " + why);
    }
  }
}

void Reporter::trace_step(int64_t step) {
  parallel::WaitHook::run_all();  // reductions that have ended are in the trace
  Trace::install(traced(run_.config(), step) ? &trace_ : nullptr);
  if (run_.operation_times && !warmed_up_ && step >= timed_from_ + kUntimedSteps) {
    run_.operation_times->clear();
    timed_from_ = step;
    warmed_up_ = true;
  }
}

void Reporter::finish(bool finished) {
  parallel::WaitHook::run_all();
  Trace::install(nullptr);
  complete_checkpoint();
  if (last_saved_ != run_.step && run_.config().train.checkpoint_every >= 0) {
    begin_checkpoint(false);
    complete_checkpoint();
  } else {
    compare_ranks(run_.stage->store(), run_.ranks->data());
  }
  if (run_.step == run_.resumed_step) {  // nothing was measured
    std::array<int64_t, 1> restored{};
    if (run_.comm.rank() == 0) {
      const parallel::Busy busy(run_.comm);
      restored[0] = run_.directory->restore_summary(run_.step, finished) ? 1 : 0;
    }
    parallel::broadcast(run_.comm, 0, std::as_writable_bytes(std::span(restored)));
    if (restored[0] != 0) {
      return;
    }
  }
  const auto pipeline =
      record_pipeline(run_.directory->root(), run_.plan->layout, *run_.pipeline, *run_.ranks);
  {
    const parallel::Busy busy(run_.comm);
    run_.directory->check_lock();
    if (run_.comm.rank() == 0) {
      run_.check_data();
    }
  }
  write_summary({.run = run_,
                 .timed_steps = run_.step - timed_from_,
                 .pipeline = pipeline,
                 .finished = finished,
                 .git = git_,
                 .codec_choice = all_codec_choices()});
  if (run_.config().run.trace) {
    write_traces(run_.directory->root() / "trace.json", trace_, run_.comm);
  } else if (run_.comm.rank() == 0) {
    const parallel::Busy busy(run_.comm);
    io::remove_file(run_.directory->root() / "trace.json");  // of an earlier launch
  }
}

}  // namespace espalier::train
