#include "tests/simulation/runs.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "io/checkpoint/checkpoint.h"
#include "parallel/pipeline/schedule/registry.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/rng.h"
#include "tests/support/draw.h"

namespace espalier::simulation {
namespace {

using testing::Draw;

bool all_returned(const Report& report) {
  return std::ranges::all_of(
      report.endings, [](const Ending& ending) { return ending.kind == Ending::Kind::returned; });
}

/// Faults of a run whose undisturbed counts are known. A third of them meet its start, of a resumed
/// run half: a crash while a run recovers from one.
std::vector<Fault> draw_faults(Draw& draw, const Report& undisturbed, double timeout,
                               bool resumes) {
  using enum FaultKind;
  std::vector<Fault> faults;
  double patience = 0.6 * timeout;  // waits that no rank may take for a lost one
  const int number = draw.of<int>({0, 1, 1, 1, 1, 1, 2, 2, 3});
  for (int i = 0; i < number; ++i) {
    Fault fault{
        .kind = draw.of<FaultKind>(
            {delay,     delay,      cut,        stall,     stall,    suspend, kill,       kill,
             close,     stop,       drop,       duplicate, flip,     flip,    slow_write, full_disk,
             bad_write, kill_write, kill_write, slow_read, bad_read, bad_read})};
    fault.rank =
        static_cast<int>(draw.between(0, static_cast<int64_t>(undisturbed.counts.size()) - 1));
    const auto rank = static_cast<size_t>(fault.rank);
    const Counts& counts =
        draw.once_in(resumes ? 2 : 3) ? undisturbed.start[rank] : undisturbed.counts[rank];
    fault.at = draw.between(1, std::max<int64_t>(count_of(counts, target_of(fault.kind)), 1));
    fault.bit = static_cast<uint64_t>(draw.between(0, 1 << 20));
    if (fault.kind == delay || fault.kind == stall) {
      const bool harmless = draw.once_in(2);
      fault.seconds = harmless ? patience * static_cast<double>(draw.between(1, 90)) / 100
                               : timeout * static_cast<double>(draw.between(100, 400)) / 100;
      patience -= harmless ? fault.seconds : 0;
    } else if (fault.kind == suspend || fault.kind == slow_write || fault.kind == slow_read) {
      fault.seconds = timeout * static_cast<double>(draw.between(1, 1000)) / 100;
    }
    faults.push_back(fault);
  }
  return faults;
}

/// Whether a run with this fault must go on to its end.
bool harmless(const Fault& fault, double timeout) {
  using enum FaultKind;
  switch (fault.kind) {
    case delay:
    case stall:
      return fault.seconds < timeout;
    case suspend:
    case slow_write:
    case slow_read:
    case stop:
      return true;
    default:
      return false;
  }
}

/// The first expectation that a disturbed run does not meet; empty: it meets all.
std::string broken_promise(const Report& report, const Case& run, const std::vector<Fault>& faults,
                           const Report& undisturbed) {
  const double timeout = run.config.parallel.timeout_s;
  if (!report.violations.empty()) {
    return report.violations.front();
  }
  for (size_t r = 0; r < report.endings.size(); ++r) {
    const Ending& ending = report.endings[r];
    const auto fault_of = [&](std::string_view what) {
      return fmt::format("rank {} {}: {}", r, what, ending.message);
    };
    if (ending.kind == Ending::Kind::bug || ending.kind == Ending::Kind::hung) {
      return fault_of(name_of(ending.kind));
    }
    if (ending.kind != Ending::Kind::failure) {
      continue;
    }
    if (report.faults.empty()) {
      return fault_of("failed without a fault");
    }
    if (std::ranges::all_of(faults, [&](const Fault& f) { return harmless(f, timeout); })) {
      return fault_of("failed though all faults are harmless");
    }
    if (!ending.retryable) {
      return fault_of("says that a retry is of no use");
    }
    const auto says = [&](const char* text) {
      return ending.message.find(text) != std::string::npos;
    };
    const bool disk = says("No space left") || says("Input/output error");
    if (!says("rank") && !(disk && says("/"))) {
      return fault_of("names neither a rank nor a file and the cause");
    }
    if (ending.time > report.fault_end + 2 * timeout + undisturbed.end) {
      return fault_of(fmt::format("failed {:g} s after the fault, with a timeout of {:g} s",
                                  ending.time - report.fault_end, timeout));
    }
  }
  return "";
}

/// All that a person needs to understand a failure.
std::string story(uint64_t number, const Case& run, const std::vector<Fault>& faults,
                  const Report& report) {
  std::string text = fmt::format("{} ranks, {} a machine, run directory {}\n{}faults:\n", run.ranks,
                                 run.ranks_a_node, run.shares_disk ? "shared" : "of rank 0",
                                 config::to_toml(run.config));
  for (const Fault& fault : faults) {
    text += fmt::format("  {}\n", describe(fault));
  }
  text += fmt::format("happened:\n  {}\nends:\n", fmt::join(report.faults, "\n  "));
  for (size_t r = 0; r < report.endings.size(); ++r) {
    const Ending& ending = report.endings[r];
    text += fmt::format("  {:.6f} rank {} {} {}\n", ending.time, r, name_of(ending.kind),
                        ending.message);
  }
  if (!report.waits.empty()) {
    text += fmt::format("waits:\n  {}\n", fmt::join(report.waits, "\n  "));
  }
  text += fmt::format("last events:\n  {}\n", fmt::join(report.recent, "\n  "));
  text += fmt::format("repeat: ESPALIER_RANDOM={}:{} ctest --test-dir build -R simulation", number,
                      number + 1);
  return text;
}

}  // namespace

Report train(const Case& run, const RunOptions& options) {
  return simulate({.seed = options.seed,
                   .ranks = run.ranks,
                   .ranks_a_node = run.ranks_a_node,
                   .faults = options.faults,
                   .disk_seconds = options.disk_seconds,
                   .local_folder = run.shares_disk ? "" : run.config.run.out,
                   .notices_arrive = options.notices_arrive,
                   .most_seconds = options.most_seconds},
                  [&](parallel::Communicator& comm) {
                    train::Trainer trainer(run.config, comm,
                                           {.resume = options.resume,
                                            .stop_after = options.stop_after,
                                            .background_thread = false,
                                            .stop_requested = stop_requested});
                    end_of_start();
                    trainer.run();
                  });
}

RunResults results_of(const Case& run) {
  RunResults results;
  const std::filesystem::path folder = std::filesystem::path(run.config.run.out) / "checkpoints";
  const io::CheckpointReader reader(folder / io::checkpoint_name(run.config.train.steps));
  std::vector<float> values;
  const auto digest = [&](int64_t count, const auto& read) {
    values.resize(static_cast<size_t>(count));
    read(Tensor(values.data(), DType::fp32, Shape{count}));
    return XXH64(values.data(), values.size() * sizeof(float), 0);
  };
  for (const std::string& name : reader.names()) {
    const io::StoredParameter info = reader.info(name);
    results.arrays[name] = digest(info.nnz, [&](const Tensor& out) { reader.values(name, out); });
    const std::vector<uint8_t> index = reader.index(name);
    results.arrays[name + " index " + info.encoding] = XXH64(index.data(), index.size(), 0);
    for (const std::string& kind : info.optimizer) {
      results.arrays[name + " " + kind] =
          digest(info.nnz, [&](const Tensor& out) { reader.optimizer(name, kind, out); });
    }
  }
  for (const nlohmann::json& line : testing::metrics_without_times(run.config)) {
    results.metrics.push_back(line.dump());
  }
  return results;
}

namespace {

/// Of simulations; each run of a number takes the next.
constexpr uint64_t kFirstSeed = 2;

/// The step at which a run is ended in order. An asynchronous pipeline drains there: only at a
/// checkpoint that changes no bit.
int64_t draw_stop(Draw& draw, const io::Config& config) {
  return parallel::schedule_entry(config.parallel.schedule).synchronous ? draw.between(1, 3) : 2;
}

/// The differences of two runs' results; empty: none.
std::string differences(const RunResults& got, const RunResults& want) {
  if (got == want) {
    return "";
  }
  std::string text = "the bits differ from those of an undisturbed run:";
  for (const auto& [name, digest] : want.arrays) {
    const auto found = got.arrays.find(name);
    if (found == got.arrays.end() || found->second != digest) {
      text += fmt::format(" [{}]", name);
    }
  }
  if (got.metrics != want.metrics) {
    text += fmt::format("\nmetrics:\n{}\nundisturbed:\n{}", fmt::join(got.metrics, "\n"),
                        fmt::join(want.metrics, "\n"));
  }
  return text;
}

/// A failure of a run, with all that a person needs to understand it.
std::string failure_text(uint64_t number, const Case& run, const std::vector<Fault>& faults,
                         const Report& report, const std::string& what) {
  return fmt::format("{}\n{}", what, story(number, run, faults, report));
}

/// The undisturbed runs of some settings, and their results.
class Undisturbed {
 public:
  explicit Undisturbed(uint64_t settings) : settings_(settings), run_(draw_case(settings, dir_)) {
    try {
      config::validate(run_.config);
    } catch (const Failure& failure) {
      verdict_.refusal = failure.what();
      return;
    }
    if (train()) {
      results_ = results_of(run_);
    }
  }

  uint64_t settings() const { return settings_; }
  const Case& run() const { return run_; }
  /// A refusal or failure; else there are results.
  const Verdict& verdict() const { return verdict_; }
  const Report& report() const { return report_; }
  const RunResults& results() const { return results_; }
  /// The number of runs.
  uint64_t runs() const { return runs_; }
  /// Where choices depend on times, all runs continue from one checkpoint that has them: a copy.
  bool begins_at_a_checkpoint() const { return run_.timed == TimedChoice::kept; }
  void copy_checkpoint(const std::filesystem::path& to) const {
    std::filesystem::copy(begun_, to, std::filesystem::copy_options::recursive);
  }

 private:
  bool train() {
    if (!begins_at_a_checkpoint()) {
      return train_to(0, "none");
    }
    Draw draw(mix(settings_, 7));
    if (!train_to(draw_stop(draw, run_.config), "none")) {
      return false;
    }
    copy_checkpoint_of_run();
    return train_to(0, "auto");
  }

  void copy_checkpoint_of_run() {
    begun_ = run_.config.run.out + "-begun";
    std::filesystem::copy(run_.config.run.out, begun_, std::filesystem::copy_options::recursive);
  }

  bool train_to(int64_t stop, const std::string& resume) {
    report_ = simulation::train(
        run_, {.seed = mix(settings_, kFirstSeed + runs_++), .resume = resume, .stop_after = stop});
    if (all_returned(report_)) {
      return true;
    }
    const bool refused = std::ranges::all_of(
        report_.endings, [](const Ending& ending) { return ending.kind == Ending::Kind::failure; });
    verdict_ = refused ? Verdict{.refusal = report_.endings[0].message}
                       : Verdict{.failure = failure_text(settings_, run_, {}, report_,
                                                         "failed without a fault")};
    return false;
  }

  uint64_t settings_;
  testing::TempDir dir_;
  Case run_;
  std::filesystem::path begun_;
  uint64_t runs_ = 0;
  Report report_;
  RunResults results_;
  Verdict verdict_;
};

/// From kShared on, groups of numbers share settings, and with them the undisturbed run: a third of
/// the time of a number.
constexpr uint64_t kShared = 1'000'000'000;
constexpr uint64_t kGroup = 8;
uint64_t settings_of(uint64_t number) {
  return number < kShared ? number : number - number % kGroup;
}

/// The disturbed runs of one number.
class Trial {
 public:
  Trial(uint64_t number, const Undisturbed& undisturbed)
      : number_(number),
        draw_(mix(number, 7)),
        undisturbed_(undisturbed),
        disturbed_(undisturbed.run()),
        reference_(undisturbed.report()),
        seeds_(kFirstSeed + undisturbed.runs()) {
    disturbed_.config.run.out += "-disturbed";
  }
  ~Trial() {
    std::error_code ignored;
    std::filesystem::remove_all(disturbed_.config.run.out, ignored);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  Verdict run() {
    if (undisturbed_.begins_at_a_checkpoint()) {
      draw_stop(draw_, disturbed_.config);  // that of the undisturbed run
      undisturbed_.copy_checkpoint(disturbed_.config.run.out);
      begun_ = true;
    }
    if (run_disturbed()) {
      compare();
    }
    return verdict_;
  }

 private:
  bool fail(const Case& run, const std::vector<Fault>& faults, const Report& report,
            const std::string& what) {
    verdict_.failure = failure_text(number_, run, faults, report, what);
    return false;
  }

  /// A run without faults up to `stop`; 0: to the end.
  bool train_to(const Case& run, int64_t stop, const std::string& resume, Report& report) {
    report = train(run, {.seed = mix(number_, seeds_++), .resume = resume, .stop_after = stop});
    return all_returned(report) || fail(run, {}, report, "failed without a fault");
  }

  bool run_disturbed() {
    if (!begun_ && draw_.once_in(4)) {  // the disturbed run resumes one that was ended in order
      Report report;
      begun_ = true;
      if (!train_to(disturbed_, draw_stop(draw_, disturbed_.config), "none", report)) {
        return false;
      }
    }
    const int runs = draw_.of<int>({1, 1, 2, 2, 3});
    bool finished = false;
    for (int i = 0; i < runs && !finished; ++i) {
      if (!disturb(finished)) {
        return false;
      }
    }
    Report report;
    return finished || train_to(disturbed_, 0, "auto", report);
  }

  bool disturb(bool& finished) {
    const double timeout = disturbed_.config.parallel.timeout_s;
    const std::vector<Fault> faults = draw_faults(draw_, reference_, timeout, begun_);
    double most = 100 * timeout + 10 * reference_.end;
    for (const Fault& fault : faults) {
      most += fault.seconds;
    }
    const Report report = train(disturbed_, {.seed = mix(number_, seeds_++),
                                             .resume = begun_ ? "auto" : "none",
                                             .faults = faults,
                                             .notices_arrive = !draw_.once_in(4),
                                             .most_seconds = most});
    begun_ = true;
    if (const std::string broken = broken_promise(report, disturbed_, faults, reference_);
        !broken.empty()) {
      return fail(disturbed_, faults, report, broken);
    }
    verdict_.faults.insert(verdict_.faults.end(), report.faults.begin(), report.faults.end());
    for (const Ending& ending : report.endings) {
      verdict_.failed = verdict_.failed || ending.kind == Ending::Kind::failure;
      verdict_.named = verdict_.named || std::ranges::find_first_of(
                                             ending.lost, report.fault_ranks) != ending.lost.end();
    }
    const bool stops = std::ranges::any_of(
        faults, [](const Fault& fault) { return fault.kind == FaultKind::stop; });
    finished = all_returned(report) && !stops;
    return true;
  }

  void compare() {
    const RunResults& want = undisturbed_.results();
    const RunResults got = results_of(disturbed_);
    const std::string what = disturbed_.timed != TimedChoice::in_rounds ? differences(got, want)
                             : got.metrics.size() == want.metrics.size()
                                 ? ""
                                 : fmt::format("{} lines of metrics instead of {}",
                                               got.metrics.size(), want.metrics.size());
    if (!what.empty()) {
      verdict_.failure =
          fmt::format("{}\n{}", what, story(number_, disturbed_, {}, {.faults = verdict_.faults}));
    }
  }

  uint64_t number_;
  Draw draw_;
  const Undisturbed& undisturbed_;
  Case disturbed_;
  const Report& reference_;
  uint64_t seeds_;
  bool begun_ = false;  ///< the disturbed run has a checkpoint, or had the chance to write one
  Verdict verdict_;
};

}  // namespace

Verdict try_number(uint64_t number) {
  static std::unique_ptr<const Undisturbed> undisturbed;  // of the number before
  if (undisturbed == nullptr || undisturbed->settings() != settings_of(number)) {
    undisturbed.reset();
    undisturbed = std::make_unique<const Undisturbed>(settings_of(number));
  }
  const Verdict& verdict = undisturbed->verdict();
  return verdict.refusal.empty() && verdict.failure.empty() ? Trial(number, *undisturbed).run()
                                                            : verdict;
}

}  // namespace espalier::simulation
