// trace.json: the Chrome trace event format ("JSON object format"), times in microseconds from the
// first event of all ranks. Written in pieces: a long run has hundreds of thousands of events a
// rank.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "io/files/raw_file.h"
#include "io/run/metrics.h"

namespace espalier::io {
namespace {

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

}  // namespace espalier::io
