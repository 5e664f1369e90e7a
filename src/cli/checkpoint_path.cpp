#include "src/cli/checkpoint_path.h"

#include <fmt/format.h>

#include <filesystem>

#include "io/checkpoint/checkpoint.h"
#include "src/cli/console.h"
#include "src/core/error.h"

namespace espalier::cli {

std::string checkpoint_path(const std::string& path) {
  if (path.empty()) {
    return path;
  }
  const std::filesystem::path named(path);
  std::filesystem::path file = io::checkpoint_named(named);
  if (file == named && file.filename() == "last.h5" && launched_rank() == 0) {
    const auto beside = io::checkpoints_in(file.has_parent_path() ? file.parent_path() : ".");
    if (!beside.empty()) {
      Progress(true, 0, false)
          .note(fmt::format("{} is a file of its own: the newest checkpoint there is {}",
                            file.string(), beside.back().filename().string()));
    }
  }
  return file.string();
}

std::string resume_path(const std::string& path) {
  return path == "auto" || path == "none" ? path : checkpoint_path(path);
}

std::string tokenizer_path(const std::string& path) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    std::error_code unknown;
    if (std::filesystem::is_regular_file(file, unknown)) {
      return file.string();
    }
  }
  return checkpoint_path(path);
}

void name_checkpoints(io::Config& config) {
  config.train.teacher = checkpoint_path(config.train.teacher);
  config.pruning.file = checkpoint_path(config.pruning.file);
}

}  // namespace espalier::cli
