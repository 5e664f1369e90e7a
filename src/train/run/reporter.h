#pragma once
// Writes the results of a run: metrics, TensorBoard's events, checkpoints, summary, traces, notes.
#include <optional>
#include <string>

#include "src/core/trace.h"
#include "src/train/checkpoint/checkpoint_save.h"
#include "src/train/run/summary.h"

namespace espalier::train {

class Reporter {
 public:
  /// `run` must outlive it.
  Reporter(Run& run, const TrainerOptions& options);
  ~Reporter() { Trace::install(nullptr); }
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void note(const std::string& text) const { run_.note(text); }
  void write_metrics(const StepReport& report);
  /// Collective over the pipeline of the first replica; other ranks and runs without
  /// run.tensorboard do nothing. Gathers histograms, not weights: at most 4 KB a parameter.
  void write_weight_events(int64_t step);
  /// Collective. Begins to save the state, after the save before has ended. In the background it
  /// goes on in the calls of `advance_checkpoint`, else it ends here.
  void checkpoint();
  /// Collective, after each step.
  void advance_checkpoint();
  /// Collective. Waits for the end of a save.
  void complete_checkpoint();
  /// Path of the newest checkpoint that has been saved; "none" if there is none.
  std::string newest_checkpoint() const;
  /// Reports notes about chosen codecs and failed graph captures since the last call.
  void note_choices();
  /// Records or stops the trace for the step after `step`.
  void trace_step(int64_t step);
  /// Collective: the last checkpoint, pictures of the pipeline, summary.json and trace.json.
  void finish(bool finished);

 private:
  std::string all_codec_choices() const;
  void begin_checkpoint(bool copies);
  void report_checkpoint();

  Run& run_;
  std::string git_;
  std::filesystem::path system_root_;
  Trace trace_;
  int64_t timed_from_;         ///< step since which Run::operation_times counts
  bool warmed_up_ = false;     ///< ... without the first steps
  bool wrote_layout_ = false;  ///< metrics.jsonl has the layout of this launch
  int64_t last_saved_;         ///< step of the newest checkpoint; -1: none
  Background background_;
  /// A checkpoint that is not saved yet.
  struct Pending {
    template <class... Arguments>
    explicit Pending(int64_t of, Arguments&&... arguments)
        : step(of), save(std::forward<Arguments>(arguments)...) {}
    int64_t step;
    CheckpointSave save;
  };
  std::optional<Pending> pending_;
};

}  // namespace espalier::train
