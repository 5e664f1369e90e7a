#include "src/core/trace.h"

#include <array>

namespace espalier {
namespace {

constexpr std::array<std::string_view, kTracks> kNames{"compute", "all-reduce", "optimizer", "I/O",
                                                       "pipeline"};
thread_local Trace* t_trace = nullptr;

}  // namespace

std::string_view name_of(Track track) { return kNames.at(static_cast<size_t>(track)); }

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
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
