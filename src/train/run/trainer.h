#pragma once
// The training loop of one rank: a step of the pipeline (micro-batches, all-reduce under backward)
// → update → metrics, evaluation, checkpoints, pruning. All ranks run it in step; what they must
// agree on (loss, stop, masks, parameter bits) is compared or summed over the communicators.
#include <functional>
#include <memory>
#include <optional>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/train/codec_choice/adaprec.h"
#include "src/train/exchange/exchange.h"
#include "src/train/masks/pruner.h"
#include "src/train/memory/budget.h"
#include "src/train/run/loss_scale.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/source.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/pipeline.h"
#include "src/train/stage/stage.h"
#include "src/train/stage/stage_link.h"

namespace espalier::train {

/// Where a step's time goes on one rank, in seconds; with a device, the time in which it asks for
/// that.
struct StepTimes {
  double compute = 0;     ///< forwards and backwards
  double waited = 0;      ///< for messages of the pipeline: bubbles, and what messages cost
  double collective = 0;  ///< for sums of gradients, once backward has ended
  double update = 0;      ///< optimizer, with ZeRO-1 values of other ranks
};

/// What one step did; a line of metrics.jsonl.
struct StepReport {
  int64_t step = 0;  ///< steps done, from 1
  double loss = 0;   ///< mean over the global batch, before the update
  double lr = 0;
  double grad_norm = 0;  ///< not finite: the step was left out (loss_scale.h)
  double loss_scale = 1;
  double seconds = 0;  ///< since it began, or the step before was finished
  double tokens_per_s = 0;
  StepTimes times;
  int64_t bytes_sent = 0;  ///< by rank 0 in this step
  int64_t allreduce_bytes = 0;
  int64_t p2p_bytes = 0;
  double sparsity = 0;
  double trial_seconds = 0;  ///< of AdaPrec's trials before this step
  std::optional<double> val_loss;
};

struct TrainerOptions {
  std::string resume;      ///< see RunDirectory
  std::string init;        ///< weights and masks to start from
  int64_t stop_after = 0;  ///< end the call after this step of the run; 0: train.steps
  std::string git;         ///< for summary.json
  const kernels::Kernels* kernels = nullptr;        ///< instead of run.backend's
  std::function<bool()> stop_requested;             ///< polled once a step
  std::function<void(const StepReport&)> on_step;   ///< after each step
  std::function<void(const std::string&)> on_note;  ///< pruning, checkpoints, warnings
};

/// Parameters of all stages.
struct Totals {
  int64_t size = 0, kept = 0;
  Sparsity sparsity;  ///< of the prunable ones
};

struct RunResult {
  int64_t steps = 0;
  bool finished = false;  ///< false: stopped early, by request or stop_after
  double final_val_loss = 0;
};

class Trainer {
 public:
  /// Collective. Opens data and run directory, builds the stage, loads what is to be loaded.
  Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options);
  ~Trainer();

  /// Trains to the end, or until asked to stop; leaves a checkpoint and summary.json either way.
  RunResult run();

  Stage& stage() { return *stage_; }
  Exchange& exchange() { return *exchange_; }
  Arena& arena() { return backend_->arena(); }
  /// What was planned and chosen before anything was allocated.
  const Fit& fit() const { return fit_; }
  const Layout& layout() const { return layout_; }
  /// Of the whole network.
  const Totals& totals() const { return totals_; }

 private:
  void start();
  void open_data();
  void time_layers();
  void plan();
  void link_stages();
  void tell_stage_link() const;
  void make_stage(const std::shared_ptr<Shards>& shards);
  void load_start();
  void settle_storages();
  io::Vocabulary saved_characters() const;
  std::vector<int64_t> saved_partition() const;
  void prune_if_due();
  void train_step(int64_t last);
  void train_segment(int64_t last);
  bool is_seen_after(int64_t step) const;
  template <class Thrown>
  void check_loss(int64_t step, double loss) const;
  template <class Thrown>
  void fail_of_norm(int64_t step, double norm) const;
  void tell_codecs();
  void tell_recordings();
  std::string all_codec_choices();
  bool stop_requested() const;
  /// Bytes by this rank.
  struct Sent {
    int64_t all = 0, allreduce = 0, p2p = 0;
    Sent operator-(const Sent& other) const {
      return {all - other.all, allreduce - other.allreduce, p2p - other.p2p};
    }
    Sent operator+(const Sent& other) const {
      return {all + other.all, allreduce + other.allreduce, p2p + other.p2p};
    }
  };
  Sent sent_so_far() const;
  /// A step that has been asked for, and what is known of it already.
  struct AskedStep {
    StepReport report;
    optim::AskedUpdate update;
    Sent sent;
    double begin = 0;  ///< seconds
  };
  AskedStep ask_step();
  StepReport finish_step(AskedStep asked);
  void recall_gradients(int64_t step);
  Pipeline::Step pipeline_step(Exchange* exchange);
  void count_totals();
  Owners owners() const;
  /// {mean loss, somebody wants to stop}
  std::pair<double, bool> combine(double loss_sum);
  double evaluate(int64_t batches);
  void train_trial(int64_t step);
  void make_adaprec();
  void after_step(StepReport report);
  void checkpoint();
  void finish(bool finished);
  void record_trace(bool on);
  bool traced(int64_t step) const;
  void note(const std::string& text) const;

  io::Config config_;
  parallel::Communicator& comm_;
  TrainerOptions options_;
  ProblemShape problem_;
  std::vector<std::unique_ptr<model::Layer>> layers_;  ///< of the whole network, to ask, not to run
  std::vector<sparse::ParameterSpec> network_;         ///< their parameters
  LayerTimes layer_times_;
  Start start_;
  Layout layout_;
  StageLink stage_link_;
  bool sums_on_device_ = false;  ///< as far as is known before the plan
  std::unique_ptr<Ranks> ranks_;
  Totals totals_;
  int64_t rank_samples_ = 0;  ///< of a global batch
  int64_t micro_batch_ = 0;
  Fit fit_;
  bool started_pruned_ = false;  ///< the pruning before the first step is done
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Pruner> pruner_;
  Trace trace_;
  std::unique_ptr<StageSums> stage_sums_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Pipeline> pipeline_;
  LossScale loss_scale_;
  std::unique_ptr<AdaPrec> adaprec_;  ///< with codec "adaprec" only
  std::optional<AskedStep> asked_;    ///< the one that is not finished
  double finished_ = 0;               ///< seconds, when the last one was
  int64_t step_ = 0;                  ///< steps done, or asked for
  int64_t last_saved_ = -1;           ///< step of the newest checkpoint
  bool stopping_ = false;
};

}  // namespace espalier::train
