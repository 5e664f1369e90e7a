// The folder of checkpoints: names by step, the latest one, and removal of old ones.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "io/checkpoint/checkpoint.h"
#include "io/files/raw_file.h"
#include "src/core/error.h"

namespace espalier::io {

namespace fs = std::filesystem;

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:06}.h5", step); }

std::optional<int64_t> checkpoint_step(const fs::path& path) {
  const std::string name = path.filename().string();
  int64_t step = -1;
  constexpr size_t kPrefix = 5;  // "step-"
  if (name.size() > kPrefix) {
    std::from_chars(name.data() + kPrefix, name.data() + name.size(), step);
  }
  return step >= 0 && name == checkpoint_name(step) ? std::optional(step) : std::nullopt;
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) {
    return {};
  }
  std::vector<std::pair<int64_t, fs::path>> found;
  fs::directory_iterator entries(folder, error);
  check(!error, "folder {} cannot be read: {}; check the path and its permissions", folder.string(),
        error.message());
  for (const auto& entry : entries) {
    if (const auto step = checkpoint_step(entry.path())) {
      found.emplace_back(*step, entry.path());
    }
  }
  std::ranges::sort(found);
  std::vector<fs::path> out;
  for (auto& [step, path] : found) {
    out.push_back(std::move(path));
  }
  return out;
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  const auto all = checkpoints_in(folder);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

void prune_checkpoints(const fs::path& folder, int64_t keep) {
  require(keep >= 1, "at least one checkpoint stays", keep);
  const auto all = checkpoints_in(folder);
  std::error_code error;
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    fs::remove(all[i], error);
    check(!error, "old checkpoint {} cannot be removed: {}; check the permissions of its folder",
          all[i].string(), error.message());
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const int64_t owner = temporary_owner(entry.path());
    const bool gone = owner > 0 && ::kill(static_cast<pid_t>(owner), 0) != 0 && errno == ESRCH;
    if (gone) {
      std::error_code ignored;  // it may be another's, and it does no harm
      fs::remove(entry.path(), ignored);
    }
  }
}

}  // namespace espalier::io
