// The disk after a loss of power at any moment of a run, after every operation on its
// files and in every order in which a disk may have taken them (tests/support/recorded_files.h:
// the model). After each: `--resume auto` takes the newest checkpoint that was reported, or a later
// one of the same branch; it loads; metrics.jsonl and the event files have every step up to it; and
// the run can begin.
//
// ESPALIER_CRASH_STATES=N visits up to N states an operation (default: a sample of some seconds),
// ESPALIER_RANDOM=SEED samples others.
#include <fcntl.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "io/checkpoint/checkpoint.h"
#include "io/files/raw_file.h"
#include "src/train/checkpoint/run_directory.h"
#include "tests/support/event_files.h"
#include "tests/support/failing_files.h"
#include "tests/support/failure.h"
#include "tests/support/recorded_files.h"
#include "tests/support/support.h"

namespace espalier::testing::crash_consistency_test {
namespace {

namespace fs = std::filesystem;

size_t setting(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoul(text, nullptr, 10);
}

uint64_t hash_of(const std::string& text) { return XXH64(text.data(), text.size(), 0); }

/// A branch of the run: steps with their own losses.
struct Branch {
  int64_t base = 0;                ///< step of the branch before that it continues; 0: none
  std::map<int64_t, double> loss;  /// of its own steps
};

/// Promises of a call of `espalier train`.
struct Promise {
  enum class Kind { starts, began, saved, ended };
  size_t issued = 0;  ///< operations before it
  Kind kind = Kind::starts;
  size_t branch = 0;
  int64_t step = 0;  ///< saved
};

/// A sequence of calls of `espalier train` in one directory, recorded.
class Recording {
 public:
  explicit Recording(const fs::path& root) : root_(root), files_(root) {}

  /// One call. A change of `branch` continues the one before at its checkpoint `resume`, or
  /// replaces it ("none").
  void call(const io::Config& config, size_t branch, const std::string& resume, int64_t stop) {
    const io::FileSystemScope scope(files_);
    if (branch == branches_.size()) {
      const auto step = io::checkpoint_step(resume);
      branches_.push_back({.base = step.value_or(0), .loss = {}});
    }
    promise(Promise::Kind::starts, branch, 0);
    const auto comm = parallel::self_communicator();
    train::TrainerOptions options{.resume = resume, .stop_after = stop, .background_thread = false};
    options.on_note = [&](const std::string& note) {
      constexpr std::string_view kSaved = "checkpoint ";
      if (note.starts_with(kSaved)) {
        const std::string file = note.substr(kSaved.size());
        const int64_t step = *io::checkpoint_step(file);
        promise(Promise::Kind::saved, branch, step);
        saved_[hash_of(io::read_text(file, "checkpoint"))] = {branch, step};
      }
    };
    options.on_step = [&](const train::StepReport& report) {
      branches_[branch].loss[report.step] = report.loss;
    };
    train::Trainer trainer(config, *comm, std::move(options));
    promise(Promise::Kind::began, branch, 0);
    trainer.run();
    promise(Promise::Kind::ended, branch, 0);
    configs_.insert(hash_of(io::read_text(root_ / "run/config.toml", "config")));
  }

  const RecordedFiles& files() const { return files_; }
  const std::vector<Promise>& promises() const { return promises_; }
  const Branch& branch(size_t number) const { return branches_[number]; }
  /// Branch and step of a checkpoint's content.
  std::optional<std::pair<size_t, int64_t>> saved(const std::string& content) const {
    const auto found = saved_.find(hash_of(content));
    return found == saved_.end() ? std::nullopt : std::optional(found->second);
  }

  bool wrote_config(const std::string& content) const {
    return configs_.contains(hash_of(content));
  }

 private:
  void promise(Promise::Kind kind, size_t branch, int64_t step) {
    promises_.push_back(
        {.issued = files_.operations().size(), .kind = kind, .branch = branch, .step = step});
  }

  fs::path root_;
  RecordedFiles files_;
  std::vector<Promise> promises_;
  std::vector<Branch> branches_;
  std::set<uint64_t> configs_;
  std::map<uint64_t, std::pair<size_t, int64_t>> saved_;
};

/// States that a crash may leave after a number of operations.
struct Allowed {
  size_t branch = 0;      ///< that has begun
  int64_t newest = 0;     ///< reported step; 0: none
  bool in_place = false;  ///< a run has begun
  bool replaced = false;  ///< the next run has started, and will replace this one
  bool branches = false;  ///< the next run has started, from `base` of this one
  int64_t base = 0;
  int64_t ended = 0;  ///< runs that have ended

  /// Whether `--resume auto` may take this checkpoint.
  bool takes(size_t of, int64_t step, const Recording& recording) const {
    if (of == branch + 1) {
      return replaced || branches;
    }
    if (branches) {
      return of == branch && step >= base;
    }
    if (replaced) {  // some of its checkpoints are removed
      return of <= branch;
    }
    // Before its first checkpoint a branch is the checkpoint that it continues.
    const int64_t from = recording.branch(branch).base;
    if (newest == 0 && from > 0 && of + 1 == branch) {
      return step == from;
    }
    return of == branch && step >= newest;
  }
  /// Whether `--resume auto` may begin from the start.
  bool starts_afresh(const Recording& recording) const {
    return replaced || (newest == 0 && recording.branch(branch).base == 0);
  }
};

Allowed allowed_after(size_t issued, const Recording& recording) {
  Allowed out;
  for (const Promise& promise : recording.promises()) {
    if (promise.issued > issued) {
      break;
    }
    switch (promise.kind) {
      case Promise::Kind::starts:
        if (out.in_place && promise.branch != out.branch) {
          out.base = recording.branch(promise.branch).base;
          (out.base > 0 ? out.branches : out.replaced) = true;
        }
        break;
      case Promise::Kind::began:
        if (promise.branch != out.branch) {
          out.newest = 0;
        }
        out.branch = promise.branch;
        out.in_place = true;
        out.replaced = out.branches = false;
        break;
      case Promise::Kind::saved:
        out.newest = promise.step;
        break;
      case Promise::Kind::ended:
        ++out.ended;
    }
  }
  return out;
}

class CrashConsistency : public ::testing::Test {
 protected:
  void build(const FileTree& tree) {
    fs::remove_all(state_);
    fs::create_directories(state_);
    fs::create_directories(contents_);
    for (const auto& [path, content] : tree) {
      const fs::path target = state_ / path;
      if (content == nullptr) {
        fs::create_directories(target);
      } else if (path.ends_with(".h5")) {  // never written in place: shared
        const fs::path shared = contents_ / fmt::format("{:016x}", hash_of(*content));
        if (!fs::exists(shared)) {
          std::ofstream(shared, std::ios::binary) << *content;
        }
        fs::create_hard_link(shared, target);
      } else {
        std::ofstream(target, std::ios::binary) << *content;
      }
    }
  }

  /// Resumes with "auto", up to the first step, in the state on the disk. Returns what is wrong;
  /// empty: nothing.
  std::string resume(const io::Config& config, const Allowed& allowed,
                     const Recording& recording) const {
    const auto comm = parallel::self_communicator();
    const fs::path root = state_ / "run";
    const fs::path metrics = root / "metrics.jsonl";
    const std::string reported =
        fmt::format("step {} of branch {} was reported", allowed.newest, allowed.branch);
    train::RunDirectory directory(root, "auto", *comm);
    const auto file = directory.resume_file();
    if (!file) {
      if (!allowed.starts_afresh(recording)) {
        return "starts afresh: " + reported;
      }
      directory.begin(config, {}, -1);
      return io::read_metrics(metrics).empty() && shown_events(root / "tensorboard", true).empty()
                 ? ""
                 : "a fresh run has metrics";
    }
    const auto found = recording.saved(io::read_text(*file, "checkpoint"));
    if (!found) {
      return file->string() + " was never written so";
    }
    const auto [branch, step] = *found;
    if (!allowed.takes(branch, step, recording) ||
        io::CheckpointReader(*file).meta().step != step) {
      return fmt::format("takes step {} of branch {}: {}", step, branch, reported);
    }
    if (!recording.wrote_config(io::read_text(root / "config.toml", "config"))) {
      return "config.toml is not as it was written";
    }
    io::read_metrics(metrics);  // `espalier report` of the crashed run
    directory.begin(config, {}, step);
    const auto lines = io::read_metrics(metrics);
    const auto events = shown_events(root / "tensorboard", true);
    if (lines.size() != static_cast<size_t>(step) || events.size() != lines.size()) {
      return fmt::format("{} lines of metrics and {} events for {} steps", lines.size(),
                         events.size(), step);
    }
    for (int64_t at = 1; at <= step; ++at) {
      size_t owner = branch;
      while (owner > 0 && at <= recording.branch(owner).base) {
        --owner;
      }
      const auto& line = lines[at - 1];
      const double loss = recording.branch(owner).loss.at(at);
      if (line["step"] != at || line["loss"] != loss) {
        return "other metrics: " + line.dump();
      }
      if (!events.contains(at) ||
          events.at(at).scalars.at("train/loss") != static_cast<float>(loss)) {
        return fmt::format("other events of step {}", at);
      }
    }
    if (fs::exists(root / "summary.json") &&
        read_json(root / "summary.json")["finished"].get<bool>()) {
      return "a run that goes on is finished";
    }
    // The next attempt takes the same checkpoint.
    return io::checkpoints_in(directory.checkpoints()).back() == *file ? "" : "takes another then";
  }

  /// Two branches of a run and a run that replaces it, each with a break.
  Recording record(bool background = true) {
    config_ = tiny_config(folder_);
    config_.model.layers = config_.model.heads = 1;
    config_.model.width = config_.model.context = 8;
    config_.optimizer.kind = "sgd";  // few arrays: quick to verify
    config_.optimizer.momentum = 0;
    config_.train.global_batch = 2;
    config_.train.steps = 20;
    config_.train.checkpoint_every = 5;
    config_.train.keep_checkpoints = 2;
    config_.train.checkpoint_background = background;
    config_.run.tensorboard = true;
    const fs::path root = folder_ / "recorded";
    fs::remove_all(root);
    fs::create_directories(root);
    config_.run.out = root / "run";
    Recording recording(root);
    recording.call(config_, 0, "auto", 12);
    recording.call(config_, 0, "auto", 0);
    io::Config branched = config_;
    branched.optimizer.lr *= 2;
    recording.call(branched, 1, root / "run/checkpoints/step-000015.h5", 17);
    recording.call(branched, 1, "auto", 0);
    io::Config other = config_;
    other.train.seed += 1;
    recording.call(other, 2, "none", 10);
    recording.call(other, 2, "auto", 0);
    return recording;
  }

  struct Result {
    size_t states = 0;
    std::string wrong;  ///< the first state that does not resume; empty: all do
  };
  /// Visits the states of the disk after `first` operations and later, if the disk forgets the
  /// flushes that `is_lost` names.
  Result visit(const Recording& recording, size_t most,
               const std::function<bool(const FileOperation&)>& is_lost = {}) {
    FailingFiles fast;  // none does
    const io::FileSystemScope scope(fast);
    std::vector<FileOperation> operations = recording.files().operations();
    size_t first = is_lost ? operations.size() : 0;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (is_lost && operations[i].kind == FileOperation::Kind::sync && is_lost(operations[i])) {
        operations[i].kind = FileOperation::Kind::none;
        first = std::min(first, i);
      }
    }
    CrashStates states(std::move(operations), most, setting("ESPALIER_RANDOM", 1));
    Result result;
    while (!states.done() && result.wrong.empty()) {
      // The allowed states depend on the promises so far.
      const auto promised = std::ranges::count_if(
          recording.promises(),
          [&](const Promise& promise) { return promise.issued <= states.issued() + 1; });
      states.advance(static_cast<uint64_t>(promised), [&](const FileTree& tree) {
        if (states.issued() <= first || !result.wrong.empty()) {
          return;
        }
        ++result.states;
        build(tree);
        try {
          result.wrong = resume(config_, allowed_after(states.issued(), recording), recording);
        } catch (const std::exception& error) {
          result.wrong = error.what();
        }
        if (!result.wrong.empty()) {
          result.wrong += fmt::format("\nafter {} operations:", states.issued());
          for (const auto& [path, content] : tree) {
            result.wrong += fmt::format("\n{:8} {}", content ? content->size() : 0, path);
          }
        }
      });
    }
    return result;
  }

  TempDir folder_;
  io::Config config_;
  fs::path state_ = folder_ / "state";
  fs::path contents_ = folder_ / "contents";
};

TEST_F(CrashConsistency, EveryStateOfTheDiskResumes) {
  std::array<std::vector<int>, 2> order;
  for (const bool background : {true, false}) {
    const Recording recording = record(background);
    const auto& operations = recording.files().operations();
    ASSERT_EQ(allowed_after(operations.size(), recording).ended, 6);
    const size_t states = setting("ESPALIER_CRASH_STATES", background ? 4 : 2);
    const Result result = visit(recording, states);
    EXPECT_EQ(result.wrong, "");
    EXPECT_GT(result.states, 100 * states);
    std::printf("crash states: %zu, after %zu operations\n", result.states, operations.size());
    for (const FileOperation& operation : operations) {
      order.at(background ? 1 : 0).push_back(operation.node);
    }
  }
  EXPECT_NE(order[0], order[1]) << "in the background, steps go on between the writes";
}

/// The model and the checks above are strict enough to see each flush that a run relies on.
TEST_F(CrashConsistency, AMissingFlushIsFound) {
  const Recording recording = record();
  std::map<int, std::string> names{{0, "."}};
  for (const FileOperation& operation : recording.files().operations()) {
    if (operation.kind == FileOperation::Kind::create ||
        operation.kind == FileOperation::Kind::make_folder) {
      names[operation.node] = operation.name;
    }
  }
  for (const std::string file : {".", "run", "checkpoints", "set-aside-1", "step-", "metrics.jsonl",
                                 "config.toml", "summary.json", "tensorboard", "events."}) {
    const Result result = visit(recording, 4, [&](const FileOperation& flush) {
      return names.at(flush.node).starts_with(file);
    });
    EXPECT_NE(result.wrong, "") << file;
    std::printf("without flushes of %s, after %zu states: %s\n", file.c_str(), result.states,
                result.wrong.substr(0, result.wrong.find('\n')).c_str());
  }
}

/// Processes of other numbers and machines have held the lock before.
TEST_F(CrashConsistency, ALockIsTakenInEveryState) {
  const fs::path root = folder_ / "recorded";
  fs::create_directories(root);
  RecordedFiles files(root);
  {
    const io::FileSystemScope scope(files);
    { const io::RunLock lock(root / "run"); }
    const std::string other = "4194304 on a-machine-with-a-longer-name-than-this";
    const int file = files.open(root / "run/.lock", O_RDWR);
    files.resize(file, 0);
    files.sync(file);
    files.write(file, other.data(), other.size(), 0);
    files.close(file);
    { const io::RunLock lock(root / "run"); }
  }
  FailingFiles fast;
  const io::FileSystemScope scope(fast);
  for (const bool flushes : {true, false}) {
    std::vector<FileOperation> operations = files.operations();
    for (FileOperation& operation : operations) {
      const bool of_file = operation.kind == FileOperation::Kind::sync && operation.node > 1;
      operation.kind = of_file && !flushes ? FileOperation::Kind::none : operation.kind;
    }
    int refused = 0;
    for (CrashStates states(std::move(operations), 1000, 1); !states.done();) {
      states.advance(0, [&](const FileTree& tree) {
        build(tree);
        refused += failure_of([&] { const io::RunLock lock(state_ / "run"); }).empty() ? 0 : 1;
      });
    }
    EXPECT_EQ(refused > 0, !flushes) << refused;
  }
}

}  // namespace
}  // namespace espalier::testing::crash_consistency_test
