#include "src/core/trace.h"

#include <array>

namespace espalier {
namespace {

constexpr std::array<std::string_view, kTracks> kTrackNames{"compute", "all-reduce", "optimizer",
                                                            "I/O", "pipeline"};
thread_local Trace* t_trace = nullptr;
thread_local Clock* t_clock = nullptr;

}  // namespace

std::string_view name_of(Track track) { return kTrackNames.at(static_cast<size_t>(track)); }

void Clock::install(Clock* clock) { t_clock = clock; }

double now_seconds() {
  if (t_clock != nullptr) {
    return t_clock->seconds();
  }
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

void Trace::add(Track track, std::string_view name, double begin, double end) {
  if (events_.size() < limit_) {
    events_.push_back({track, std::string(name), begin, end});
  }
}

Trace* Trace::install(Trace* trace) {
  Trace* previous = t_trace;
  t_trace = trace;
  return previous;
}

Trace* Trace::current() { return t_trace; }

}  // namespace espalier
