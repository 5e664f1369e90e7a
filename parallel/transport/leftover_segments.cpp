#include "parallel/transport/leftover_segments.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

namespace espalier::parallel {
namespace {

namespace fs = std::filesystem;

/// Prefixes of the names of this user's files: vader_segment.HOST.UID.JOB.RANK (Open MPI 4),
/// sm_segment.HOST.UID.JOB.RANK (Open MPI 5), espalier-UID-JOB.
std::vector<std::string> name_prefixes() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string whole = host.data();
  const std::string first = whole.substr(0, whole.find('.'));
  const auto user = ::getuid();
  std::vector<std::string> prefixes{fmt::format("espalier-{}-", user)};
  for (const char* transport : {"vader", "sm"}) {
    for (const std::string& name : {whole, first}) {
      prefixes.push_back(fmt::format("{}_segment.{}.{}.", transport, name, user));
    }
  }
  return prefixes;
}

std::vector<fs::path> old_files(const fs::path& folder, std::chrono::seconds age) {
  const std::vector<std::string> prefixes = name_prefixes();
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename();
    struct stat status {};
    if (std::ranges::any_of(prefixes,
                            [&](const auto& prefix) { return name.starts_with(prefix); }) &&
        ::lstat(entry->path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == ::getuid() && std::time(nullptr) - status.st_mtime >= age.count()) {
      found.push_back(entry->path());
    }
  }
  return found;
}

/// Removes from `files` those that a process maps.
void erase_mapped(std::vector<fs::path>& files) {
  std::error_code ignored;
  for (fs::directory_iterator process("/proc", ignored), end; process != end;
       process.increment(ignored)) {
    const std::string number = process->path().filename();
    if (number.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream maps(process->path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      std::erase_if(files, [&](const fs::path& file) { return line.ends_with(file.native()); });
    }
  }
}

}  // namespace

int remove_leftover_segments(const fs::path& folder, std::chrono::seconds age) {
  std::vector<fs::path> files = old_files(folder, age);
  if (!files.empty()) {
    erase_mapped(files);
  }
  return static_cast<int>(
      std::ranges::count_if(files, [](const auto& file) { return ::unlink(file.c_str()) == 0; }));
}

}  // namespace espalier::parallel
