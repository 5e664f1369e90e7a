#include "io/run/metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <utility>

#include "io/files/raw_file.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

using nlohmann::json;

std::string cause() { return std::generic_category().message(errno); }

/// A string that is not UTF-8 must not stop a run: its bad bytes are replaced.
std::string dump(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string slurp(const std::filesystem::path& path) {
  std::error_code error;
  check(!std::filesystem::is_directory(path, error), "{} is a directory, not a file",
        path.string());
  std::ifstream file(path, std::ios::binary);
  check(file.good(), "{} cannot be read: {}", path.string(), cause());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool has_step(const json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

/// The lines of steps up to `last`, unchanged. Unreadable lines (a crash may leave some) are dropped.
std::string lines_up_to(const std::string& text, int64_t last) {
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json parsed = json::parse(line, nullptr, false);
    if (has_step(parsed) && parsed["step"].get<int64_t>() <= last) {
      kept += line + "\n";
    }
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t resumed_step)
    : path_(std::move(path)) {
  std::error_code missing;
  const bool resumes = resumed_step >= 0 && std::filesystem::exists(path_, missing);
  write_text_atomically(path_, resumes ? lines_up_to(slurp(path_), resumed_step) : "");
  file_.open(path_, std::ios::app);
  check(file_.good(), "{} cannot be opened: {}", path_.string(), cause());
}

void MetricsWriter::write(const nlohmann::ordered_json& line) {
  require(line.is_object() && line.contains("step") && line["step"].is_number_integer(),
          "a metrics line has a step");
  file_ << dump(line, -1) << std::endl;
  check(file_.good(), "{} cannot be written: {}", path_.string(), cause());
}

std::vector<json> read_metrics(const std::filesystem::path& path) {
  const std::string text = slurp(path);
  std::vector<json> out;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    json parsed = json::parse(line, nullptr, false);
    const bool torn = lines.eof();  // no newline after it
    if (has_step(parsed)) {
      out.push_back(std::move(parsed));
    } else {
      check(torn, "{}:{}: no JSON object with a step; remove the line", path.string(), number);
    }
  }
  return out;
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.commit();
}

void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& value) {
  write_text_atomically(path, dump(value, 2) + "\n");
}

RunLock::RunLock(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / ".lock";
  make_folder_of(path);
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  check(file_ >= 0, "{} cannot be opened: {}", path.string(), cause());
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    std::string holder(64, '\0');
    const ssize_t got = ::pread(file_, holder.data(), holder.size(), 0);
    ::close(std::exchange(file_, -1));
    holder.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    fail(
        "run directory {} is in use by process {}; wait for it, stop it, or choose another "
        "directory with --out",
        run_directory.string(), holder.empty() ? "(unknown)" : holder);
  }
  // Any other error: a file system without locks. The run continues without one.
  std::string host(64, '\0');
  ::gethostname(host.data(), host.size() - 1);
  const std::string holder = fmt::format("{} on {}", ::getpid(), host.c_str());
  const bool noted =
      ::ftruncate(file_, 0) == 0 &&
      ::pwrite(file_, holder.data(), holder.size(), 0) == static_cast<ssize_t>(holder.size());
  const std::string why = cause();
  if (!noted) {
    ::close(std::exchange(file_, -1));
    fail("{} cannot be written: {}", path.string(), why);
  }
}

RunLock::RunLock(RunLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

RunLock::~RunLock() {
  if (file_ >= 0) {
    ::close(
        file_);  // releases the lock; the file stays, because removing it races with the next run
  }
}

}  // namespace espalier::io
