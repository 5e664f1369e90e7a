#include "io/files/folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>

#include "io/files/file_system.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// Whether the process runs. A process that has ended but that its parent has not awaited does not:
/// it may stay for ever where process 1 of a container awaits no orphans.
bool is_running(pid_t process) {
  if (::kill(process, 0) != 0 && errno == ESRCH) {
    return false;
  }
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string status(std::istreambuf_iterator<char>(file), {});  // PID (COMMAND) STATE …
  const size_t command_end = status.rfind(')');
  if (command_end == std::string::npos || command_end + 2 >= status.size()) {
    return true;  // no /proc
  }
  const char state = status[command_end + 2];
  return state != 'Z' && state != 'X';
}

}  // namespace

bool path_exists(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    return true;
  }
  const int error = errno;
  check_system(error == ENOENT || error == ENOTDIR, error, "{} cannot be examined: {}",
               path.string(), cause_of(error));
  return false;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), &::closedir);
  int error = open == nullptr ? errno : 0;
  if (error == ENOENT) {
    return entries;
  }
  while (error == 0) {
    errno = 0;
    const dirent* entry = ::readdir(open.get());
    if (entry == nullptr) {
      error = errno;
      break;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      entries.push_back(folder / name);
    }
  }
  check_system(error == 0, error,
               "folder {} cannot be read: {}; check the path and its permissions", folder.string(),
               cause_of(error));
  std::ranges::sort(entries);
  return entries;
}

void sync_folder(const fs::path& folder) {
  FileSystem& system = file_system();
  int handle = -1;
  int error = error_of([&] { return handle = system.open(folder, O_RDONLY | O_DIRECTORY); });
  if (error == 0) {
    error = error_of([&] { return system.sync(handle); });
    system.close(handle);
  }
  // EINVAL: a file system that cannot flush folders.
  check_system(error == 0 || error == EACCES || error == EINVAL, error,
               "folder {} cannot be flushed to the disk: {}; check the disk", folder.string(),
               cause_of(error));
}

bool make_folder(const fs::path& path) {
  const int error = error_of([&] { return file_system().make_folder(path); });
  check_system(error == 0 || error == EEXIST, error,
               "folder {} cannot be created: {}; check the path and its permissions", path.string(),
               cause_of(error));
  if (error == 0) {
    sync_folder(folder_of(path));
  }
  return error == 0;
}

void check_folder(const fs::path& folder) {
  fs::path at = folder.empty() ? "." : folder;
  struct stat status {};
  while (::lstat(at.c_str(), &status) != 0) {
    const int error = errno;
    check_system((error == ENOENT || error == ENOTDIR) && folder_of(at) != at, error,
                 "folder {} cannot be used: {}: {}; check the path and its permissions",
                 folder.string(), at.string(), cause_of(error));
    at = folder_of(at);
  }
  const bool link = S_ISLNK(status.st_mode);
  if (::stat(at.c_str(), &status) != 0) {
    const int error = errno;
    std::error_code unreadable;
    check(!link || error != ENOENT,
          "{} is a link to {}, which does not exist; make that folder, remove the link, or name "
          "another output",
          at.string(), fs::read_symlink(at, unreadable).string());
    check_system(false, error, "folder {} cannot be used: {}; check the path and its permissions",
                 at.string(), cause_of(error));
  }
  check(S_ISDIR(status.st_mode),
        "{} is a file, and {} needs a folder there; name another output, or move the file",
        at.string(), folder.string());
  const int error = ::access(at.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  check_system(error == 0, error,
               "folder {} cannot be written: {}; change its permissions, or name another output",
               at.string(), cause_of(error));
}

void make_folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  std::error_code unknown;
  if (folder.empty() || fs::is_directory(folder, unknown)) {
    return;
  }
  check_folder(folder);
  make_folder_of(folder);
  make_folder(folder);
}

void check_replaceable(const fs::path& path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  check(!exists || !S_ISDIR(status.st_mode), "{} is a folder; name a file, for example {}",
        path.string(), (path / "NAME").string());
  const bool other = exists && !S_ISREG(status.st_mode);
  check(!other, "{} is not an ordinary file and is not replaced; name another output file",
        path.string());
}

fs::path make_way_for(const fs::path& path) {
  check_replaceable(path);
  make_folder_of(path);
  for (const fs::path& abandoned : abandoned_of(path)) {
    file_system().unlink(abandoned);  // if it stays, it does no harm
  }
  fs::path temporary = temporary_name(path);
  const int error = error_of([&] { return file_system().unlink(temporary); });
  check_system(error == 0 || error == ENOENT, error,
               "{} cannot be written: {}; check the path and the permissions of its folder",
               path.string(), cause_of(error));
  return temporary;
}

void publish(const fs::path& temporary, const fs::path& path) {
  const fs::path folder = folder_of(path);
  const int error = error_of([&] { return file_system().rename(temporary, path); });
  check_system(error == 0, error, "{} cannot be renamed to {}: {}; check the disk",
               temporary.string(), path.string(), cause_of(error));
  sync_folder(folder);
}

void remove_file(const fs::path& path) {
  const int error = error_of([&] { return file_system().unlink(path); });
  check_system(error == 0 || error == ENOENT, error,
               "{} cannot be removed: {}; check the permissions of its folder", path.string(),
               cause_of(error));
}

std::string host_name() {
  std::string name(256, '\0');
  ::gethostname(name.data(), name.size() - 1);
  name.resize(name.find('\0'));
  std::ranges::replace(name, '/', '_');
  return name;
}

fs::path temporary_name(const fs::path& path) {
  return path.string() + fmt::format(".tmp-{}-{}", ::getpid(), host_name());
}

bool is_abandoned(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t mark = name.rfind(".tmp-");
  if (mark == std::string::npos) {
    return false;
  }
  constexpr size_t kMark = 5;
  pid_t owner = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + mark + kMark, end, owner);
  return error == std::errc() && owner > 0 &&
         std::string_view(rest, end) == fmt::format("-{}", host_name()) && !is_running(owner);
}

std::vector<fs::path> abandoned_of(const fs::path& path) {
  std::vector<fs::path> entries;
  try {
    entries = entries_of(folder_of(path));
  } catch (const Failure&) {
    return {};  // the write itself says what is wrong with the folder
  }
  const std::string begin = path.filename().string() + ".tmp-";
  std::erase_if(entries, [&](const fs::path& entry) {
    return !entry.filename().string().starts_with(begin) || !is_abandoned(entry);
  });
  return entries;
}

void remove_abandoned(const fs::path& folder) {
  for (const fs::path& path : entries_of(folder)) {
    if (is_abandoned(path)) {
      file_system().unlink(path);  // if it stays, it does no harm
    }
  }
}

}  // namespace espalier::io
