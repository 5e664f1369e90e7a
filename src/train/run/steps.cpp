#include "src/train/run/steps.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/finite.h"
#include "src/core/mirror.h"
#include "src/optim/schedule.h"
#include "src/train/codec_choice/adaprec.h"
#include "src/train/exchange/agreement.h"
#include "src/train/run/divergence.h"

namespace espalier::train {

namespace {

/// The parameters of this rank with non-finite gradients.
std::string where_not_finite(const sparse::Store& store) {
  std::vector<std::string> names;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const Mirror gradient(store.stream(), store.part(store.gradient(), parameter));
    if (!all_finite(gradient.read().host())) {
      names.push_back(parameter.spec.name);
    }
  }
  constexpr size_t kMax = 3;
  const size_t others = names.size() - std::min(names.size(), kMax);
  names.resize(names.size() - others);
  return names.empty() ? ""
                       : fmt::format(", in {}{}", fmt::join(names, ", "),
                                     others > 0 ? fmt::format(" and {} more", others) : "");
}

class StepLoop {
 public:
  StepLoop(Run& run, Reporter& reporter, const TrainerOptions& options)
      : run_(run),
        reporter_(reporter),
        options_(options),
        monitor_(run.config().optimizer),
        adaprec_(make_adaprec()) {
    restart_monitor();
  }

  /// Steps up to `last`, or to the end of a round of AdaPrec that passes it, or until a stop is
  /// requested on any rank; returns whether it was.
  bool run_to(int64_t last) {
    while (run_.step < last && !stopping_) {
      if (adaprec_ && adaprec_->due(run_.step)) {
        train_round();
        continue;
      }
      reporter_.trace_step(run_.step);
      run_.plan->layout.asynchronous() ? train_segment(last) : train_step(last);
    }
    return stopping_;
  }

 private:
  /// One step. On a device the host only enqueues it, then finishes the step before (steps.h).
  void train_step(int64_t last) {
    PendingStep next{.begin = now_seconds()};
    const Sent sent_before = sent_so_far();
    const LossScale& scale = run_.loss_scale;

    next.report.mask_distance = change_masks_if_due();
    next.report.step = run_.step + 1;
    next.report.lr = learning_rate(run_.step);
    next.report.loss_scale = scale.value();
    next.report.sparsity = run_.totals.sparsity.sparsity();
    next.report.trial_seconds = adaprec_ ? adaprec_->take_seconds() : 0;

    run_.stage->set_gradient_scale(scale.value(), scale.skipped());  // for the update
    next.report.times = forward_backward_exchange(run_.step);

    const double update_begin = now_seconds();
    {
      const Span span(Track::optimizer, "update");
      next.update = run_.data_parallel->update(run_.step, next.report.lr);
    }
    next.report.times.update = now_seconds() - update_begin;
    next.sent = sent_so_far() - sent_before;
    ++run_.step;

    if (pending_) {
      evaluate_report_save(finish_step(*std::exchange(pending_, {})));
    }
    if (may_stay_pending(last)) {
      pending_ = std::move(next);
    } else {
      evaluate_report_save(finish_step(std::move(next)));
    }
  }

  /// The gradients of a step, summed over its micro-batches and the replicas: kernels enqueued
  /// afterwards read the sums. In the last micro-batch, gradients are exchanged layer by layer
  /// while backward goes on (Pipeline::layer_done).
  StepTimes forward_backward_exchange(int64_t step) {
    run_.data_parallel->begin_step(step);
    run_.pipeline->forward_backward(step, row_scale(run_.loss_scale.value()));
    const double begin = now_seconds();
    run_.pipeline_reduction->reduce_tied();
    run_.data_parallel->finish_reduce();
    return {.compute = run_.pipeline->times().compute,
            .waited = run_.pipeline->times().waited,
            .collective = now_seconds() - begin};
  }

  /// The steps of an asynchronous schedule up to its next drain: only there have all stages applied
  /// the same updates. Forward, backward, exchange and update are actions of the schedule
  /// (Pipeline::run).
  void train_segment(int64_t last) {
    const double begin = now_seconds();
    const Sent sent_before = sent_so_far();

    run_.data_parallel->verify_state();
    const std::optional<double> mask_distance = change_masks_if_due();

    int64_t end = run_.step + 1;
    while (end < last && !state_is_read_after(end) && end % kDrainEvery != 0) {
      ++end;
    }
    const int64_t steps = end - run_.step;
    std::vector<StepReport> reports =
        finish_segment(run_.pipeline->forward_backward_exchange_update(
            run_.step, steps, row_scale(run_.loss_scale.value()), checks_of_rank()));

    reports.front().mask_distance = mask_distance;
    const double seconds = (now_seconds() - begin) / static_cast<double>(steps);
    const Sent sent = (sent_so_far() - sent_before) / steps;
    for (StepReport& report : reports) {
      add_cost(report, seconds, sent);
      evaluate_report_save(report);
    }
  }

  /// Whether the host may enqueue another step before it finishes the last one.
  bool may_stay_pending(int64_t last) const {
    return run_.stage->stream().queue() != nullptr && !run_.loss_scale.dynamic() &&
           run_.step < last && !stopping_ && !state_is_read_after(run_.step);
  }

  bool state_is_read_after(int64_t step) const {
    const io::Config& config = run_.config();
    auto every = [step](int64_t interval) { return interval > 0 && step % interval == 0; };
    return every(config.train.eval_every) || every(config.train.checkpoint_every) ||
           (run_.plan->layout.grid.data > 1 && every(config.parallel.check_every)) ||
           run_.pruner->due(step) || (adaprec_ && adaprec_->due(step));
  }

  /// Returns the distance of the masks from earlier ones, of methods that measure it.
  std::optional<double> change_masks_if_due() {
    Pruner& pruner = *run_.pruner;
    if (trial_ != nullptr || !pruner.due(run_.step) || (run_.step == 0 && run_.starts_pruned)) {
      return {};
    }
    const Span span(Track::optimizer, "new masks");
    run_.data_parallel->verify_state();
    const double before = run_.totals.sparsity.sparsity();
    constexpr double kSafeScale = 1024;  // probed gradients must not overflow, and update nothing
    const double scale = row_scale(std::min(run_.loss_scale.value(), kSafeScale));
    Change change = pruner.change(run_.step, run_.ranks->data(), [&](const PassSamples& of) {
      run_.pipeline->probe(run_.step + of.batch, {.first = of.first, .count = of.count}, scale);
      run_.pipeline_reduction->reduce_tied();
    });
    if (!change.masks) {
      run_.data_parallel->record_state(run_.step);
      return change.distance;
    }
    restart_monitor();
    run_.count_totals();
    std::array<double, 1> grown{static_cast<double>(change.grown)};
    parallel::all_reduce_small(run_.ranks->pipeline(), grown, parallel::Combine::sum);
    change.grown = static_cast<int64_t>(grown[0]);
    for (const std::string& note : change.notes) {
      reporter_.note(note);
    }
    const double after = run_.totals.sparsity.sparsity();
    if (change.grown > 0 && after >= before) {
      reporter_.note(
          fmt::format("masks moved after step {}: {} elements are new", run_.step, change.grown));
    }
    if (after != before || (change.grown == 0 && after > 0)) {
      reporter_.note(
          fmt::format("{} after step {}: sparsity {:.4f} -> {:.4f} ({} of {} parameters kept)",
                      after < before ? "masks grew" : "pruned", run_.step, before, after,
                      run_.totals.kept, run_.totals.size));
    }
    return change.distance;
  }

  /// At the start and after masks have changed.
  void restart_monitor() {
    const Stage& stage = *run_.stage;
    monitor_.restart(stage.parametrization().largest_lr_factor(stage.store().parameters()));
  }

  /// Bytes sent by this rank.
  struct Sent {
    int64_t all = 0, allreduce = 0, p2p = 0;
    Sent operator-(const Sent& other) const {
      return {all - other.all, allreduce - other.allreduce, p2p - other.p2p};
    }
    Sent operator+(const Sent& other) const {
      return {all + other.all, allreduce + other.allreduce, p2p + other.p2p};
    }
    Sent operator/(int64_t steps) const { return {all / steps, allreduce / steps, p2p / steps}; }
  };
  Sent sent_so_far() const {
    using parallel::Traffic;
    return {.all = run_.comm.sent().bytes,
            .allreduce = run_.comm.sent(Traffic::allreduce).bytes,
            .p2p = run_.comm.sent(Traffic::point_to_point).bytes};
  }
  void add_cost(StepReport& report, double seconds, const Sent& sent) const {
    report.seconds = seconds;
    report.predictions_per_s = static_cast<double>(run_.plan->rows_per_step()) / seconds;
    report.of_images = run_.plan->problem.classifies_images();
    report.bytes_sent = sent.all;
    report.allreduce_bytes = sent.allreduce;
    report.p2p_bytes = sent.p2p;
  }

  /// An enqueued step and its results so far.
  struct PendingStep {
    double begin = 0;  ///< seconds
    StepReport report{};
    optim::PendingUpdate update{};
    Sent sent{};
  };
  /// Throws if the step ends the run; the state is then that before this step.
  StepReport finish_step(PendingStep pending) {
    const Span span(Track::optimizer, "loss and norm");
    const int64_t step = pending.report.step - 1;
    const Sent sent_before = sent_so_far();
    const Pipeline::Losses losses = run_.pipeline->take_losses(step);
    const optim::StepResult update = run_.stage->result(pending.update);
    std::array<double, 2> sums{losses.targets, stop_requested() ? 1.0 : 0.0};
    parallel::all_reduce_small(run_.comm, sums, parallel::Combine::sum);
    std::array<double, 1> taught{losses.teacher};
    sum_teacher_losses(taught);
    const double loss = sums[0] / static_cast<double>(run_.plan->rows_per_step());
    if (!std::isfinite(loss)) {
      reporter_.complete_checkpoint();
      throw Diverged(text_of_loss(step, loss));
    }
    if (!run_.loss_scale.update(update.applied)) {
      restore_gradients(step);
      reporter_.complete_checkpoint();
      throw Diverged(text_of_norm(step, update.gradient_norm));
    }
    if (!update.applied) {
      reporter_.note(fmt::format(
          "step {} was skipped: gradients overflowed at loss scale {}; the next loss scale is {}",
          step + 1, pending.report.loss_scale, run_.loss_scale.value()));
    }
    stopping_ = stopping_ || sums[1] > 0;
    StepReport& report = pending.report;
    report.loss = loss;
    report.teacher_loss = teacher_loss(taught[0]);
    report.grad_norm = update.gradient_norm;
    const double now = now_seconds();
    add_cost(report, now - std::max(pending.begin, std::exchange(finished_, now)),
             pending.sent + (sent_so_far() - sent_before));
    return report;
  }

  /// Its steps begin with step `run_.step`.
  std::vector<StepReport> finish_segment(std::span<const Pipeline::Outcome> outcomes) {
    std::vector<double> sums;
    std::vector<double> taught;
    for (const Pipeline::Outcome& outcome : outcomes) {
      sums.insert(sums.end(), {outcome.losses.targets, outcome.squares});
      taught.push_back(outcome.losses.teacher);
    }
    sums.push_back(stop_requested() ? 1 : 0);
    parallel::all_reduce_small(run_.comm, sums, parallel::Combine::sum);
    sum_teacher_losses(taught);
    stopping_ = sums.back() > 0;
    const auto steps = static_cast<double>(outcomes.size());
    const parallel::RunTimes& times = run_.pipeline->times();
    const double exchange = run_.pipeline->exchange_seconds();
    std::vector<StepReport> reports;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      reports.push_back({.step = run_.step + 1,
                         .loss = sums[2 * i] / static_cast<double>(run_.plan->rows_per_step()),
                         .lr = learning_rate(run_.step),
                         .grad_norm = std::sqrt(sums[2 * i + 1] / run_.plan->layout.grid.data),
                         .times = {.compute = times.compute / steps,
                                   .waited = times.waited / steps,
                                   .collective = exchange / steps,
                                   .update = (times.reduced - exchange) / steps},
                         .sparsity = run_.totals.sparsity.sparsity(),
                         .teacher_loss = teacher_loss(taught[i]),
                         .val_loss = {}});
      ++run_.step;
    }
    run_.data_parallel->record_state(run_.step);
    return reports;
  }

  bool has_teacher() const { return !run_.config().train.teacher.empty(); }
  /// Collective with a teacher. Sums over all ranks.
  void sum_teacher_losses(std::span<double> sums) {
    if (has_teacher()) {
      parallel::all_reduce_small(run_.comm, sums, parallel::Combine::sum);
    }
  }
  /// The mean over the rows of a step.
  std::optional<double> teacher_loss(double sum) const {
    return has_teacher() ? std::optional(sum / static_cast<double>(run_.plan->rows_per_step()))
                         : std::nullopt;
  }

  /// Recomputes the gradients of a step that changed nothing, if a later step, enqueued after it,
  /// has overwritten them. Collective.
  void restore_gradients(int64_t step) {
    if (std::exchange(run_.step, step) > step + 1) {
      forward_backward_exchange(step);
      parallel::barrier(run_.comm);  // no rank ends while another waits for its messages
    }
  }

  void evaluate_report_save(const StepReport& report) {
    if (trial_ != nullptr) {
      trial_->push_back(report);
    } else {
      evaluate_report_save(report, report.step - 1);
    }
  }

  /// Of the present state; `since`: the step of the report before. Evaluates and saves if any step
  /// between them is due: there is no state of the others.
  void evaluate_report_save(StepReport report, int64_t since) {
    const io::Config& config = run_.config();
    auto every = [&](int64_t interval) {
      return interval > 0 && report.step / interval > since / interval;
    };
    if (every(config.train.eval_every) || report.step >= config.train.steps) {
      const Validation found = evaluate(config.train.eval_batches);
      report.val_loss = found.loss;
      report.val_top1 = found.top1;
      report.val_top5 = found.top5;
    }
    report_step(report);
    if (report.val_loss) {
      reporter_.write_weight_events(report.step);
    }
    if (every(config.parallel.check_every) && run_.plan->layout.grid.data > 1) {
      compare_ranks(run_.stage->store(), run_.ranks->data());
    }
    reporter_.advance_checkpoint();
    if (every(config.train.checkpoint_every)) {
      reporter_.checkpoint();
    }
    reporter_.note_choices();
  }

  void report_step(const StepReport& report) {
    reporter_.write_metrics(report);
    check_validation(report);
    if (const auto warning = monitor_.add({.step = report.step,
                                           .loss = report.loss,
                                           .gradient_norm = report.grad_norm,
                                           .lr = report.lr})) {
      reporter_.note(*warning);
    }
    if (options_.on_step) {
      options_.on_step(report);
    }
  }

  /// Means over the predictions.
  struct Validation {
    double loss = 0;
    std::optional<double> top1{}, top5{};
  };
  Validation evaluate(int64_t batches) {
    const Span span(Track::compute, "evaluation");
    const kernels::Uncounted uncounted(run_.operation_times.get());
    const int64_t samples = evaluation_samples(*run_.source, run_.config(), batches);
    // Contiguous shares of the replicas, as even as possible.
    const int64_t replicas = run_.plan->layout.grid.data;
    const int64_t first = samples * run_.ranks->replica() / replicas;
    const int64_t end = samples * (run_.ranks->replica() + 1) / replicas;
    const Pipeline::Losses own = run_.pipeline->evaluate(first, end - first);
    // Counts are exact in double.
    std::array<double, 3> total{own.targets, static_cast<double>(own.top1),
                                static_cast<double>(own.top5)};
    parallel::all_reduce_small(run_.comm, total, parallel::Combine::sum);
    const ProblemShape& problem = run_.plan->problem;
    const auto predictions = static_cast<double>(samples * problem.rows);
    Validation found{.loss = total[0] / predictions};
    if (problem.classifies_images()) {
      found.top1 = total[1] / predictions;
      if (problem.classes > 5) {
        found.top5 = total[2] / predictions;
      }
    }
    return found;
  }

  /// The factor of the loss of one row at this loss scale.
  double row_scale(double loss_scale) const {
    return loss_scale / static_cast<double>(run_.plan->rows_per_step());
  }
  double learning_rate(int64_t step) const {
    return optim::learning_rate(run_.config().optimizer, step, run_.config().train.steps);
  }

  bool stop_requested() const { return options_.stop_requested && options_.stop_requested(); }

  /// All ranks have the same loss. It is the only sign of a last update that spoils the weights.
  void check_validation(const StepReport& report) {
    if (report.val_loss && !std::isfinite(*report.val_loss)) {
      reporter_.complete_checkpoint();
      throw Diverged(
          fmt::format("the validation loss is {} after step {}: training has diverged, nothing was "
                      "saved; lower "
                      "optimizer.lr, set optimizer.clip, or check the data. Newest checkpoint: {}",
                      *report.val_loss, report.step, reporter_.newest_checkpoint()));
    }
  }

  /// In a segment each rank fails alone: it waits for no checkpoint, because the others may not.
  Pipeline::Checks checks_of_rank() {
    return {.loss =
                [this](int64_t step, double loss) {
                  if (!std::isfinite(loss)) {
                    throw Failure(text_of_loss(step, loss));
                  }
                },
            .norm = [this](int64_t step, double norm) { throw Failure(text_of_norm(step, norm)); }};
  }

  std::string text_of_loss(int64_t step, double loss) const {
    return fmt::format(
        "the loss is {} at step {}: training has diverged, stopped before the update; lower "
        "optimizer.lr, set optimizer.clip, or check the data. Newest checkpoint: {}",
        std::isnan(loss) ? "NaN" : "infinite", step + 1, reporter_.newest_checkpoint());
  }

  std::string text_of_norm(int64_t step, double norm) const {
    return fmt::format(
        "the gradient norm is {} at step {}{}: stopped before the update; the newest checkpoint is "
        "{}. Lower optimizer.lr{}, set optimizer.clip, or look at the data",
        norm, step + 1, where_not_finite(run_.stage->store()), reporter_.newest_checkpoint(),
        run_.config().train.loss_scale > 1 ? " or train.loss_scale" : "");
  }

  // Rounds of AdaPrec (codec_choice/adaprec.h).

  /// Null without codec "adaprec".
  std::unique_ptr<AdaPrec> make_adaprec() {
    const io::Config& config = run_.config();
    if (codec_chooser(config) != CodecChooser::adaprec || run_.plan->layout.grid.data == 1) {
      return nullptr;
    }
    // a tenth of an evaluation: a trial's curve has several points
    const int64_t all = config.train.eval_batches > 0
                            ? config.train.eval_batches
                            : run_.source->validation_samples() / config.train.global_batch;
    const int64_t batches = std::max<int64_t>(all / 10, 1);
    AdaPrec::Callbacks trials{
        .use =
            [this](const std::string& codec) {
              trial_ = &trials_[codec];
              trial_->clear();
              run_.data_parallel->codecs().use(codec);
              run_.data_parallel->codecs().prepare();  // not within the time of a step
            },
        .train = [this](int64_t step) { train_trial_step(step); },
        .evaluate = [this, batches] { return evaluate(batches).loss; },
        .progress =
            [this] {
              return AdaPrec::Progress{.step = run_.step,
                                       .codec = run_.data_parallel->codecs().state(),
                                       .loss_scale = run_.loss_scale.state()};
            },
        .restore =
            [this](const AdaPrec::Progress& progress) {
              run_.step = progress.step;
              run_.data_parallel->codecs().restore(progress.codec, true);
              run_.loss_scale.restore(progress.loss_scale);
              run_.data_parallel->clear_state_check();
            },
        .bits = [this] { return run_.data_parallel->codecs().bits(); },
        .stopping = [this] { return stopping_; }};
    return std::make_unique<AdaPrec>(config, run_.comm, run_.stage->store(), std::move(trials),
                                     run_.resumed_step);
  }

  /// A round; then reports the steps of the chosen trial.
  void train_round() {
    const int64_t begin = run_.step;
    run_.data_parallel->verify_state();
    const AdaPrec::Round round = adaprec_->round(begin);
    reporter_.note(round.note);
    std::vector<StepReport> reports = std::exchange(trials_, {})[round.codec];
    trial_ = nullptr;
    if (reports.empty()) {
      return;  // stopped
    }
    reports.front().trial_seconds = adaprec_->take_seconds();
    for (size_t i = 0; i + 1 < reports.size(); ++i) {
      report_step(reports[i]);
    }
    evaluate_report_save(reports.back(), begin);
  }

  void train_trial_step(int64_t step) {
    require(run_.step == step, "trials continue from the restored step", run_.step, step);
    run_.data_parallel->clear_state_check();  // AdaPrec restored it
    train_step(step + 1);
    run_.stage->stream().synchronize();  // its time includes the update and the gather of values
    run_.data_parallel->clear_state_check();
  }

  Run& run_;
  Reporter& reporter_;
  const TrainerOptions& options_;
  DivergenceMonitor monitor_;
  std::optional<PendingStep> pending_;  ///< the step that is not finished
  double finished_ = 0;                 ///< time at which the last step was finished
  bool stopping_ = false;
  std::unique_ptr<AdaPrec> adaprec_;
  std::map<std::string, std::vector<StepReport>> trials_;  ///< of a round, by codec
  std::vector<StepReport>* trial_ = nullptr;               ///< of the trial that runs
};

}  // namespace

bool run_steps(Run& run, Reporter& reporter, const TrainerOptions& options, int64_t last) {
  return StepLoop(run, reporter, options).run_to(last);
}

}  // namespace espalier::train
