// The folder of checkpoints: names by step, the newest intact one, and removal of old ones. The
// order of the operations is docs/formats.md's.
#include <algorithm>
#include <charconv>

#include "io/checkpoint/checkpoint.h"
#include "io/files/file_system.h"
#include "io/files/folders.h"
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
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const fs::path& path : entries_of(folder)) {
    if (const auto step = checkpoint_step(path)) {
      found.emplace_back(*step, path);
    }
  }
  std::ranges::sort(found);
  std::vector<fs::path> out;
  for (auto& [step, path] : found) {
    out.push_back(std::move(path));
  }
  return out;
}

fs::path checkpoint_named(const fs::path& path) {
  std::error_code unknown;
  const bool folder = fs::is_directory(path, unknown);
  if (!folder && (path.filename() != "last.h5" || path_exists(path))) {
    return path;
  }
  const fs::path where = folder ? path : path.parent_path();
  for (const fs::path& place : {where / "checkpoints", where}) {
    if (fs::is_directory(place.empty() ? "." : place, unknown)) {
      if (const auto all = checkpoints_in(place.empty() ? "." : place); !all.empty()) {
        return all.back();
      }
    }
  }
  check(!folder,
        "{} is a folder without checkpoints (step-N.h5, in it or in its folder checkpoints){}",
        path.string(),
        path_exists(path / "config.json")
            ? ": make a checkpoint of a Hugging Face model with `espalier import`"
            : "; name a checkpoint, or the directory of a run");
  return path;
}

bool is_unreadable(const Failure& failure) {
  const auto* read = dynamic_cast<const hdf5::ReadFailure*>(&failure);
  return read != nullptr && read->error() == EIO;
}

Damage damage_of(const fs::path& path, FilePart part) {
  const RawFile opens = RawFile::open(path);  // its Failure is none of the content
  try {
    const CheckpointReader reader(path);
    reader.meta();
    for (const std::string& name : reader.names()) {
      reader.info(name);
    }
    for (const CheckpointReader::Verified& dataset : reader.verify_all(part)) {
      if (!dataset.ok) {
        return {.why = dataset.error, .unreadable = dataset.unreadable};
      }
    }
    return {};
  } catch (const Failure& failure) {
    if (failure.retryable() && !is_unreadable(failure)) {
      throw;  // not the file's fault
    }
    return {.why = failure.what(), .unreadable = is_unreadable(failure)};
  }
}

void verify_written_checkpoint(const fs::path& path) {
  RawFile::open(path).forget_cached();
  const Damage damage = damage_of(path);
  if (damage.why.empty()) {
    return;
  }
  const fs::path aside = path.string() + ".damaged";
  publish(path, aside);
  throw Failure(
      fmt::format("checkpoint {} was written but cannot be read back: {}; it is now {}, and no "
                  "earlier checkpoint was removed: check the disk, then repeat the command (train: "
                  "with --resume auto)",
                  path.string(), damage.why, aside.filename().string()),
      true);
}

void NewestIntact::add(const fs::path& path, const Damage& damage) {
  if (damage.why.empty()) {
    file = path;
    return;
  }
  skipped.push_back(fmt::format("skipped damaged checkpoint: {}", damage.why));
  unreadable = unreadable || damage.unreadable;
}

NewestIntact newest_intact_checkpoint(const fs::path& folder) {
  NewestIntact found;
  const auto all = checkpoints_in(folder);
  for (auto path = all.rbegin(); path != all.rend() && !found.file; ++path) {
    found.add(*path, damage_of(*path));
  }
  return found;
}

fs::path set_aside_checkpoints(const fs::path& folder, int64_t step) {
  fs::path aside;
  for (const fs::path& path : checkpoints_in(folder)) {
    if (*checkpoint_step(path) <= step) {
      continue;
    }
    for (int number = 1; aside.empty(); ++number) {
      const fs::path unused = folder / fmt::format("set-aside-{}", number);
      if (make_folder(unused)) {
        aside = unused;
      }
    }
    const fs::path target = aside / path.filename();
    const int error = error_of([&] { return file_system().rename(path, target); });
    check_system(error == 0, error,
                 "checkpoint {} cannot be moved to {}: {}; check the permissions of the folders",
                 path.string(), aside.string(), cause_of(error));
  }
  if (!aside.empty()) {
    // Until both are on the disk a crash may bring the files back, beside those of the new branch.
    sync_folder(aside);
    sync_folder(folder);
  }
  return aside;
}

void remove_old_checkpoints(const fs::path& folder, int64_t keep) {
  require(keep >= 1, "at least one checkpoint stays", keep);
  const auto all = checkpoints_in(folder);
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    remove_file(all[i]);
  }
  remove_abandoned(folder);
}

}  // namespace espalier::io
