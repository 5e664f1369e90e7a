#include "src/cli/checkpoint_path.h"

#include <filesystem>

#include "io/checkpoint/checkpoint.h"
#include "io/files/folders.h"

namespace espalier::cli {

std::string newest_for_last(const std::string& path) {
  const std::filesystem::path file(path);
  if (file.filename() != "last.h5" || io::path_exists(file)) {
    return path;
  }
  const auto checkpoints = io::checkpoints_in(file.parent_path());
  return checkpoints.empty() ? path : checkpoints.back().string();
}

}  // namespace espalier::cli
