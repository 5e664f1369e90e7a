#include "io/run/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "io/files/file_system.h"
#include "io/files/folders.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"

namespace espalier::io {
namespace {

using nlohmann::json;

/// A string that is not UTF-8 must not stop a run: its bad bytes are replaced.
std::string dump(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

constexpr std::string_view kMetrics = "metrics file";

bool has_step(const json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

/// The lines of steps up to `last`, unchanged, and the last one's step. Unreadable lines (a crash
/// may leave some) are dropped.
std::string lines_up_to(const std::string& text, int64_t last, int64_t& last_step) {
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json parsed = parse_json(line);
    if (has_step(parsed) && parsed["step"].get<int64_t>() <= last) {
      kept += line + "\n";
      last_step = parsed["step"].get<int64_t>();
    }
  }
  return kept;
}

/// The text before zeros, which a crash leaves where a write was not on the disk.
std::string_view before_zeros(std::string_view text) {
  const size_t zeros = text.find('\0');
  return zeros == text.npos || text.find_first_not_of('\0', zeros) != text.npos
             ? text
             : text.substr(0, zeros);
}

/// The first `most` bytes of a file, or fewer; empty, with errno, if it cannot be read.
std::optional<std::string> beginning_of(int file, size_t most) {
  std::string text(most, '\0');
  const ssize_t got =
      uninterrupted([&] { return file_system().read(file, text.data(), text.size(), 0); });
  if (got < 0) {
    return {};
  }
  text.resize(static_cast<size_t>(got));
  return text;
}

/// Whether a file has the line that a RunLock writes, or as much of it as a crash has left; and one
/// name, or another's file may be meant. Throws Failure if the file, at `path`, cannot be read.
bool is_lock_file(int file, const std::filesystem::path& path) {
  struct stat status {};
  constexpr size_t kMax = 512;
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1 ||
      status.st_size > static_cast<off_t>(kMax)) {
    return false;
  }
  const std::optional<std::string> content = beginning_of(file, kMax);
  const int error = errno;
  check_system(content.has_value(), error, "{} cannot be read: {}; check the disk", path.string(),
               cause_of(error));
  const std::string_view text = before_zeros(*content);
  const std::string_view after =
      text.substr(std::min(text.find_first_not_of("0123456789"), text.size()));
  constexpr std::string_view kAfter = " on ";
  constexpr std::string_view kHolder = ", holder ";
  const size_t holder = text.find(kHolder);
  if (holder != text.npos) {
    const std::string_view number = text.substr(holder + kHolder.size());
    if (number.size() > 16 || number.find_first_not_of("0123456789abcdef") != number.npos) {
      return false;
    }
  }
  return (text.empty() || after.size() < text.size()) &&
         (after.starts_with(kAfter) || kAfter.starts_with(after));
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

MetricsWriter::MetricsWriter(const std::filesystem::path& path, int64_t resumed_step)
    : file_(path, [&] {
        const bool resumes = resumed_step >= 0 && path_exists(path);
        write_text_atomically(
            path, resumes ? lines_up_to(read_text(path, kMetrics), resumed_step, last_step_) : "");
        return RawFile::open_to_write(path);
      }()) {}

void MetricsWriter::write(const nlohmann::ordered_json& line) {
  require(line.is_object() && line.contains("step") && line["step"].is_number_integer(),
          "a metrics line has a step");
  file_.append(dump(line, -1) + "\n");
}

std::vector<json> read_metrics(const std::filesystem::path& path) {
  const std::string text = read_text(path, kMetrics);
  std::vector<json> out;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    json parsed = parse_json(line);
    const bool torn = lines.eof() || line.find('\0') != line.npos;  // eof: no newline after it
    if (has_step(parsed)) {
      out.push_back(std::move(parsed));
    } else {
      check(torn, "{}:{}: the line is not a JSON object with a step; remove the line",
            path.string(), number);
    }
  }
  return out;
}

size_t settled_from(size_t steps, const std::function<bool(size_t)>& changed) {
  if (steps == 0) {
    return 0;
  }
  size_t first = steps - 1;
  while (first > 0 && !changed(first)) {
    --first;
  }
  return first + (steps - first) / 2;
}

std::span<const json> settled(std::span<const json> lines) {
  std::vector<bool> changed(lines.size());
  const json* layout = nullptr;  // only the first line of a launch has it
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto found = lines[i].find("layout");
    if (found != lines[i].end() && (layout == nullptr || *found != *layout)) {
      layout = &*found;
      changed[i] = true;
    }
    if (i > 0 && lines[i].value("sparsity", json()) != lines[i - 1].value("sparsity", json())) {
      changed[i] = true;
    }
  }
  return lines.subspan(settled_from(lines.size(), [&](size_t i) { return bool(changed[i]); }));
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
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
    for (size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& event = rank.events[i];
      const std::string arguments =
          rank.arguments.empty() ? "" : ",\"args\":" + dump(rank.arguments[i], -1);
      add(fmt::format(
          R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}{}}})",
          json_string(event.name), name_of(event.track), rank.rank, static_cast<int>(event.track),
          (event.begin + rank.clock_offset - start) * 1e6, (event.end - event.begin) * 1e6,
          arguments));
    }
  }
  file.append(text + "\n]}\n");
  file.commit();
}

RunLock::RunLock(const std::filesystem::path& run_directory)
    : path_(run_directory / ".lock"),
      holder_(fmt::format("{} on {}, holder {:08x}{:08x}", ::getpid(), host_name(),
                          std::random_device()(), std::random_device()())) {
  const std::filesystem::path& path = path_;
  make_folder_of(path);
  // An earlier process may have made the folder, and ended before its name was on the disk.
  sync_folder(run_directory / "..");
  FileSystem& system = file_system();
  int error = error_of(
      [&] { return file_ = system.open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK); });
  check_system(error == 0, error, "{} cannot be opened: {}; if it is a link, remove it",
               path.string(), cause_of(error));
  error = error_of([&] { return system.lock(file_); });
  try {
    if (error == EWOULDBLOCK) {
      const std::string holder = beginning_of(file_, 256).value_or("");
      throw Failure(fmt::format("run directory {} is in use by process {}; wait for it, stop it, "
                                "or choose another directory with --out",
                                run_directory.string(),
                                holder.empty() ? "(unknown)" : holder.substr(0, holder.find(','))),
                    true);
    }
    espalier::check(is_lock_file(file_, path),
                    "{} is no lock file of a run: it is left as it is; move it, or choose another "
                    "directory",
                    path.string());
    write_holder();
  } catch (const std::exception&) {
    system.close(std::exchange(file_, -1));
    throw;
  }
  if (error != 0) {
    warning_ = fmt::format(
        "{} cannot be locked ({}): nothing keeps a second run out of {}, start none there",
        path.string(), cause_of(error), run_directory.string());
  }
}

/// The old text is off the disk before the new one is written: a crash leaves no mixture, which
/// would look like another's file.
void RunLock::write_holder() const {
  FileSystem& system = file_system();
  int error = error_of([&] { return system.resize(file_, 0); });
  if (error == 0) {
    error = error_of([&] { return system.sync(file_); });
    error = error == EINVAL ? 0 : error;  // a file system that knows no fsync
  }
  ssize_t put = 0;
  if (error == 0) {
    error = error_of([&] { return put = system.write(file_, holder_.data(), holder_.size(), 0); });
  }
  if (error == 0 && put < static_cast<ssize_t>(holder_.size())) {
    error = ENOSPC;
  }
  check_system(error == 0, error, "{} cannot be written: {}; {}", path_.string(), cause_of(error),
               kWriteAdvice);
}

void RunLock::check() const {
  const std::string found = read_text(path_, "lock file");
  espalier::check(
      found == holder_,
      "run directory {} was taken over by process {}: this process stops and leaves the "
      "directory as it is; let the other one go on, or end it and resume",
      path_.parent_path().string(), found.substr(0, found.find(',')));
}

RunLock::RunLock(RunLock&& other) noexcept
    : path_(std::move(other.path_)),
      holder_(std::move(other.holder_)),
      file_(std::exchange(other.file_, -1)),
      warning_(std::move(other.warning_)) {}

RunLock::~RunLock() {
  if (file_ >= 0) {
    // Releases the lock. The file stays: removing it would race with the next run.
    file_system().close(file_);
  }
}

}  // namespace espalier::io
