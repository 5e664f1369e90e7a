#include "io/run/metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
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
  check(!std::filesystem::is_directory(path, error), "{} is a directory; name a file",
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

/// The lines of steps up to `last`, unchanged. Unreadable lines (a crash may leave some) are
/// dropped.
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

// Of trace.json: the Chrome trace event format ("JSON object format").

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Names of the process and its threads, in the order in which they are shown.
std::string header_of(int rank) {
  std::string out = fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{0},"tid":0,"args":{{"name":"rank {0}"}}}})"
      ",\n"
      R"({{"ph":"M","name":"process_sort_index","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})",
      rank);
  for (int track = 0; track < kTracks; ++track) {
    out += fmt::format(
        ",\n"
        R"({{"ph":"M","name":"thread_name","pid":{0},"tid":{1},"args":{{"name":"{2}"}}}})"
        ",\n"
        R"({{"ph":"M","name":"thread_sort_index","pid":{0},"tid":{1},"args":{{"sort_index":{1}}}}})",
        rank, track, name_of(static_cast<Track>(track)));
  }
  return out;
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
      check(torn, "{}:{}: the line is not a JSON object with a step; remove the line",
            path.string(), number);
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

/// Times are microseconds from the first event of all ranks. Written in pieces: a long run has
/// hundreds of thousands of events a rank.
void write_trace(const std::filesystem::path& path, std::span<const RankTrace> ranks) {
  double start = std::numeric_limits<double>::infinity();
  for (const RankTrace& rank : ranks) {
    for (const TraceEvent& event : rank.events) {
      start = std::min(start, event.begin + rank.clock_offset);
    }
  }
  AtomicFile file(path);
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  bool first = true;
  const auto add = [&](const std::string& event) {
    text += (first ? "" : ",\n") + event;
    first = false;
    constexpr size_t kPiece = size_t{1} << 20;
    if (text.size() > kPiece) {
      file.append(text);
      text.clear();
    }
  };
  for (const RankTrace& rank : ranks) {
    add(header_of(rank.rank));
    for (const TraceEvent& event : rank.events) {
      add(fmt::format(
          R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
          json_string(event.name), name_of(event.track), rank.rank, static_cast<int>(event.track),
          (event.begin + rank.clock_offset - start) * 1e6, (event.end - event.begin) * 1e6));
    }
  }
  file.append(text + "\n]}\n");
  file.commit();
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
