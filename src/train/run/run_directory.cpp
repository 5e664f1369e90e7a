#include "src/train/run/run_directory.h"

#include "io/checkpoint/checkpoint.h"
#include "src/config/dump.h"
#include "src/train/exchange/agreement.h"

namespace espalier::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

RunDirectory::RunDirectory(const fs::path& root, const std::string& resume,
                           parallel::Communicator& comm)
    : root_(root), writes_(comm.rank() == 0) {
  std::string error;
  if (writes_) {
    try {
      lock_.emplace(root_);
      decide(resume);
    } catch (const Failure& failure) {
      error = failure.what();
    }
  }
  agree(comm, error);
  const std::string file = broadcast_text(comm, resume_file_ ? resume_file_->string() : "");
  if (!file.empty()) {
    resume_file_ = file;
  }
}

void RunDirectory::decide(const std::string& resume) {
  if (resume.empty()) {
    refuse_existing();
  } else if (resume == "none") {
    replaces_ = true;
  } else if (resume == "auto") {
    resume_file_ = io::latest_checkpoint(checkpoints());
    replaces_ = !resume_file_;
  } else {
    check(fs::exists(resume), "--resume {}: there is no such file; use auto, none or a checkpoint",
          resume);
    resume_file_ = resume;
  }
}

void RunDirectory::refuse_existing() const {
  check(!fs::exists(root_ / "metrics.jsonl") && !io::latest_checkpoint(checkpoints()),
        "{} holds a run already: continue it with --resume auto, replace it with --resume none, or "
        "name another directory with --out",
        root_.string());
}

void RunDirectory::remove_existing() const {
  for (const char* name :
       {"metrics.jsonl", "summary.json", "trace.json", "config.toml", "report.html"}) {
    fs::remove(root_ / name);
  }
  for (const fs::path& checkpoint : io::checkpoints_in(checkpoints())) {
    fs::remove(checkpoint);
  }
}

fs::path RunDirectory::checkpoint_path(int64_t step) const {
  return checkpoints() / io::checkpoint_name(step);
}

void RunDirectory::begin(const io::Config& config, int64_t resumed_step) {
  if (writes_) {
    if (replaces_) {
      remove_existing();
    }
    io::write_text_atomically(root_ / "config.toml", config::to_toml(config));
    metrics_.emplace(root_ / "metrics.jsonl", resumed_step);
  }
}

void RunDirectory::write_metrics(const nlohmann::ordered_json& line) {
  if (metrics_) {
    metrics_->write(line);
  }
}

}  // namespace espalier::train
