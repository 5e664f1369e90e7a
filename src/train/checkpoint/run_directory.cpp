#include "src/train/checkpoint/run_directory.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/checkpoint/checkpoint.h"
#include "io/files/folders.h"
#include "io/files/raw_file.h"
#include "io/run/parse_json.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/train/checkpoint/newest_checkpoint.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {

namespace fs = std::filesystem;

namespace {

/// Empty if the file is missing or cannot be read.
std::string text_or_empty(const fs::path& file) {
  try {
    return io::path_exists(file) ? io::read_text(file, "run", io::kMaxConfig) : "";
  } catch (const Failure&) {
    return "";
  }
}

/// Empty if a text is: without an earlier attempt storages are timed again, so this is no error.
std::optional<RunDirectory::Attempt> attempt_of(const std::string& config,
                                                const std::string& manifest) {
  if (config.empty() || manifest.empty()) {
    return {};
  }
  try {
    return RunDirectory::Attempt{.config = config::parse_saved(config, "config.toml"),
                                 .manifest = manifest_of(manifest, "manifest.json")};
  } catch (const Failure&) {
    return {};
  }
}

}  // namespace

void check_not_of_run(std::string_view name, const std::string& input, const fs::path& run) {
  const fs::path inside = fs::weakly_canonical(input).lexically_relative(fs::weakly_canonical(run));
  check(inside.empty() || (*inside.begin() != "checkpoints" && *inside.begin() != "tensorboard" &&
                           std::ranges::find(kRunFiles, inside.string()) == kRunFiles.end()),
        "{} = \"{}\" is a file of the run directory {}, which this run writes; copy it elsewhere, "
        "or set another run.out",
        name, input, run.string());
}

std::optional<fs::path> run_of_checkpoints(const fs::path& path) {
  for (fs::path folder = path; folder.has_relative_path(); folder = folder.parent_path()) {
    const fs::path run = folder.parent_path();
    if (folder.filename() == "checkpoints" &&
        (io::path_exists(run / "manifest.json") || io::path_exists(run / "metrics.jsonl"))) {
      return run;
    }
  }
  return {};
}

RunDirectory::RunDirectory(const fs::path& root, const std::string& resume,
                           parallel::Communicator& comm)
    : root_(root), writes_(comm.rank() == 0) {
  on_first_rank(comm, [&] {
    std::error_code missing;
    const auto around = run_of_checkpoints(fs::weakly_canonical(fs::absolute(root_), missing));
    check(!around,
          "run directory {} lies among the checkpoints of the run {}; name another one with --out",
          root_.string(), around ? around->string() : "");
    lock_.emplace(root_);
    if (!lock_->warning().empty()) {
      notes_.push_back(lock_->warning());
    }
    decide(resume);
  });
  std::string config;  // of an earlier attempt
  std::string manifest;
  if (resume == "auto") {
    resume_newest(comm);
    if (writes_ && !resume_file_) {
      const parallel::Busy busy(comm);
      config = text_or_empty(root_ / "config.toml");
      manifest = text_or_empty(root_ / "manifest.json");
    }
  }
  const std::string file = broadcast_text(comm, resume_file_ ? resume_file_->string() : "");
  if (!file.empty()) {
    resume_file_ = file;
  } else if (resume == "auto") {
    config = broadcast_text(comm, config);
    earlier_ = attempt_of(config, broadcast_text(comm, manifest));
  }
}

void RunDirectory::decide(const std::string& resume) {
  if (resume.empty()) {
    check(!holds_run(),
          "{} holds a run already: continue it with --resume auto, replace it with --resume none, "
          "or name another directory with --out",
          root_.string());
  } else if (resume == "none") {
    replaces_ = true;
  } else if (resume != "auto") {
    resume_from(resume);
  }
}

void RunDirectory::resume_newest(parallel::Communicator& comm) {
  io::NewestIntact newest = newest_intact_checkpoint(checkpoints(), comm);
  on_first_rank(comm, [&] {
    if (!newest.file && !newest.skipped.empty()) {
      throw Failure(
          fmt::format("no checkpoint of {} is intact: {}; copy one from a backup, or name "
                      "another directory with --out",
                      root_.string(), fmt::join(newest.skipped, "; ")),
          newest.unreadable);
    }
  });
  resume_file_ = std::move(newest.file);
  continues_ = resume_file_.has_value();
  std::ranges::move(newest.skipped, std::back_inserter(notes_));
  replaces_ = !resume_file_;
}

void RunDirectory::resume_from(const fs::path& file) {
  check(io::path_exists(file), "--resume {}: there is no such file; use auto, none or a checkpoint",
        file.string());
  std::error_code error;
  const fs::path own = fs::weakly_canonical(checkpoints(), error);
  const fs::path from = error ? "" : fs::weakly_canonical(file, error).parent_path();
  check_system(!error, error.value(), "--resume {}: {}; check the path", file.string(),
               error.message());
  // Not one below it: metrics.jsonl no longer has the steps of a branch that was set aside.
  continues_ = from == own;
  // As with "auto", a run that ended before it saved anything is replaced.
  replaces_ = !continues_ && holds_run() && !holds_results();
  check(continues_ || replaces_ || !holds_run(),
        "{} holds a run already, and {} is not one of its checkpoints (those set aside are of "
        "branches that it gave up): name another directory with --out",
        root_.string(), file.string());
  resume_file_ = file;
}

bool RunDirectory::holds_results() const {
  return io::path_exists(root_ / "summary.json") || !io::checkpoints_in(checkpoints()).empty();
}

bool RunDirectory::holds_run() const {
  const fs::path metrics = root_ / "metrics.jsonl";
  std::error_code unknown;  // then the size is -1, and counts as steps
  return (io::path_exists(metrics) && fs::file_size(metrics, unknown) > 0) || holds_results();
}

/// Checkpoints first, and off the disk before anything else is: a crash leaves the earlier run, or
/// no run, but no checkpoint without its metrics or beside those of the new run.
void RunDirectory::remove_existing() const {
  const auto old = io::checkpoints_in(checkpoints());
  std::ranges::for_each(old, io::remove_file);
  if (!old.empty()) {
    io::sync_folder(checkpoints());
  }
  for (const std::string_view name : kRunFiles) {
    io::remove_file(root_ / name);
  }
  io::remove_file(root_ / "report.html");
  io::remove_event_files(events());
}

void RunDirectory::set_aside_later(int64_t step) {
  if (const fs::path aside = io::set_aside_checkpoints(checkpoints(), step); !aside.empty()) {
    notes_.push_back(fmt::format(
        "checkpoints after step {} are of a branch that this run gives up: set aside in {}", step,
        aside.string()));
  }
}

void RunDirectory::unfinish_summary() const {
  const fs::path file = root_ / "summary.json";
  if (!io::path_exists(file)) {
    return;
  }
  auto summary = io::parse_json<nlohmann::ordered_json>(io::read_text(file, "summary"));
  if (summary.is_object()) {
    summary["finished"] = false;
    io::write_json_atomically(file, summary);
  }
}

bool RunDirectory::restore_summary(int64_t step, bool finished) const {
  const fs::path file = root_ / "summary.json";
  if (!io::path_exists(file)) {
    return false;
  }
  auto summary = io::parse_json<nlohmann::ordered_json>(io::read_text(file, "summary"));
  if (!summary.is_object() || summary.value("steps", nlohmann::ordered_json()) != step) {
    return false;
  }
  summary["finished"] = finished;
  io::write_json_atomically(file, summary);
  return true;
}

fs::path RunDirectory::checkpoint_path(int64_t step) const {
  return checkpoints() / io::checkpoint_name(step);
}

void RunDirectory::begin(const io::Config& config, const Manifest& manifest, int64_t resumed_step) {
  if (writes_) {
    io::remove_abandoned(root_);
    io::remove_abandoned(checkpoints());
    if (replaces_) {
      remove_existing();
    } else if (resume_file_) {
      set_aside_later(resumed_step);
      unfinish_summary();
    }
    io::write_text_atomically(root_ / "config.toml", config::to_toml(config));
    io::write_json_atomically(root_ / "manifest.json", json_of(manifest));
    metrics_.emplace(root_ / "metrics.jsonl", resumed_step);
    if (config.run.tensorboard) {
      events_.emplace(events(), std::max<int64_t>(resumed_step, 0) + 1);
    }
    if (const int64_t last = metrics_->last_step(); continues_ && last < resumed_step) {
      notes_.push_back(fmt::format(
          "{} ends at step {}, and the run goes on after step {}: the lines between are lost, the "
          "training is not",
          (root_ / "metrics.jsonl").string(), last, resumed_step));
    }
  }
}

void RunDirectory::sync_metrics() const {
  if (metrics_) {
    metrics_->sync();
  }
  if (events_) {
    events_->sync();
  }
}

void RunDirectory::check_lock() const {
  if (lock_) {
    lock_->check();
  }
}

void RunDirectory::write_metrics(const nlohmann::ordered_json& line) {
  check_lock();
  if (metrics_) {
    metrics_->write(line);
  }
}

void RunDirectory::write_events(int64_t step, std::string_view summary) {
  if (events_) {
    check_lock();
    events_->write(step, summary);
  }
}

}  // namespace espalier::train
