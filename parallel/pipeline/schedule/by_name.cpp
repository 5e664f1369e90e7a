#include <algorithm>
#include <array>

#include "parallel/pipeline/schedule/builders.h"
#include "src/core/error.h"

namespace espalier::parallel {
namespace {

struct Entry {
  std::string_view name;
  int chunks;  ///< a rank; 0: as the user says
  Schedule (*make)(const ScheduleShape& shape);
};

Schedule h1(const ScheduleShape& shape) { return zero_bubble(shape, ZeroBubble::h1); }
Schedule h2(const ScheduleShape& shape) { return zero_bubble(shape, ZeroBubble::h2); }

constexpr std::array kSchedules{
    Entry{"gpipe", 1, gpipe},
    Entry{"1f1b", 1, one_forward_one_backward},
    Entry{"interleaved", 0, interleaved},
    Entry{"zero-bubble", 1, h1},
    Entry{"zb-h1", 1, h1},
    Entry{"zb-h2", 1, h2},
    Entry{"zb-v", 2, zero_bubble_v},
    Entry{"dualpipe-v", 2, dualpipe_v},
    Entry{"async", 1, asynchronous},
    Entry{"message-driven", 1, nullptr},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kSchedules.size()> names;
  std::ranges::transform(kSchedules, names.begin(), &Entry::name);
  return names;
}();

const Entry& entry(std::string_view name) {
  const auto found = std::ranges::find(kSchedules, name, &Entry::name);
  check(found != kSchedules.end(), "there is no schedule \"{}\": use one of {}", name,
        fmt::join(kNames, ", "));
  return *found;
}

}  // namespace

std::span<const std::string_view> schedule_names() { return kNames; }

int chunks_of(std::string_view name, int virtual_stages) {
  const int chunks = entry(name).chunks;
  return chunks > 0 ? chunks : virtual_stages;
}

Schedule make_schedule(std::string_view name, const ScheduleShape& shape) {
  const Entry& found = entry(name);
  check(shape.ranks >= 1 && shape.micro_batches >= 1 && shape.chunks >= 1,
        "a schedule needs at least one stage, one micro-batch and one chunk a rank, not {}, {} and "
        "{}",
        shape.ranks, shape.micro_batches, shape.chunks);
  require(found.make != nullptr, "the order of message-driven depends on times", name);
  ScheduleShape fixed = shape;
  fixed.chunks = chunks_of(name, shape.chunks);
  return found.make(fixed);
}

}  // namespace espalier::parallel
