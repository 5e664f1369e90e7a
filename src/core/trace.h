#pragma once
// Trace spans: name, begin and end on one row of the timeline. A span goes to the sink that the
// caller installs for its thread (a rank is a thread or a process); without a sink it costs one
// branch.
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

/// The rows of the timeline.
enum class Track : uint8_t { compute, allreduce, optimizer, io, pipeline };
inline constexpr int kTracks = 5;
std::string_view name_of(Track track);

/// A clock instead of the system's, for a simulation.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() = 0;
  /// Makes `clock` the one of this thread (nullptr: the system's).
  static void install(Clock* clock);
};

/// Seconds since an arbitrary start, monotonic, by the clock of this thread.
double now_seconds();

struct TraceEvent {
  Track track = Track::compute;
  std::string name;
  double begin = 0;  ///< seconds
  double end = 0;    ///< seconds
};

/// Collects spans of one rank up to a limit, which bounds memory in long runs.
class Trace {
 public:
  explicit Trace(size_t limit = 200'000) : limit_(limit) {}
  void add(Track track, std::string_view name, double begin, double end);
  const std::vector<TraceEvent>& events() const { return events_; }
  void clear() { events_.clear(); }

  /// Makes `trace` the sink of this thread (nullptr: off); returns the previous one.
  static Trace* install(Trace* trace);
  static Trace* current();

 private:
  size_t limit_;
  std::vector<TraceEvent> events_;
};

/// Records the interval of its lifetime.
class Span {
 public:
  /// `name` must outlive the span (a literal, or a layer's name).
  Span(Track track, std::string_view name)
      : trace_(Trace::current()), track_(track), name_(name), begin_(trace_ ? now_seconds() : 0) {}
  ~Span() {
    if (trace_ != nullptr) {
      trace_->add(track_, name_, begin_, now_seconds());
    }
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace* trace_;
  Track track_;
  std::string_view name_;
  double begin_;
};

}  // namespace espalier
