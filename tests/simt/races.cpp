#include "tests/simt/races.h"

#include <fmt/format.h>

#include <algorithm>

namespace espalier::simt {

RaceDetector::Actor RaceDetector::add(std::string name) {
  const std::lock_guard lock(mutex_);
  actors_.push_back({.name = std::move(name), .clock = {}, .marks = {}});
  for (Known& actor : actors_) {
    actor.clock.resize(actors_.size(), 0);
  }
  return actors_.size() - 1;
}

void RaceDetector::join(Clock& to, const Clock& from) {
  for (size_t i = 0; i < from.size(); ++i) {  // a mark may be older than an actor
    to[i] = std::max(to[i], from[i]);
  }
}

void RaceDetector::operation(Actor by, const std::string& name, const std::vector<Touch>& touches) {
  const std::lock_guard lock(mutex_);
  join(clock(by), clock(kHost));  // the host has enqueued the operation
  ++clock(by)[by];
  const auto now =
      std::make_shared<const Operation>(Operation{.name = name, .by = by, .time = clock(by)[by]});
  for (const Touch& touch : touches) {
    const bool dense = touch.rows <= 1 || touch.stride == touch.bytes;
    Touch row = touch;
    row.bytes = dense ? touch.bytes * std::max<size_t>(touch.rows, 1) : touch.bytes;
    for (size_t r = 0; r < (dense ? 1 : touch.rows); ++r) {
      access(now, row, reinterpret_cast<uintptr_t>(touch.data) + r * touch.stride);
    }
  }
}

/// Splits the cell that covers `at`, so that a cell begins there.
void RaceDetector::cut(uintptr_t at) {
  auto next = cells_.upper_bound(at);
  if (next == cells_.begin()) {
    return;
  }
  auto cell = std::prev(next);
  if (cell->first < at && cell->second.end > at) {
    Cell rest = cell->second;
    cell->second.end = at;
    cells_.emplace(at, std::move(rest));
  }
}

/// Calls visit(cell) for cells that together cover [begin, end); creates missing cells.
template <class Visit>
void RaceDetector::for_cells(uintptr_t begin, uintptr_t end, const Visit& visit) {
  cut(begin);
  cut(end);
  uintptr_t at = begin;
  while (at < end) {
    auto cell = cells_.lower_bound(at);
    if (cell == cells_.end() || cell->first > at) {
      const uintptr_t until = cell == cells_.end() ? end : std::min(end, cell->first);
      cell = cells_.emplace(at, Cell{.end = until, .write = {}, .reads = {}}).first;
    }
    visit(cell->second);
    at = cell->second.end;
  }
}

void RaceDetector::access(const std::shared_ptr<const Operation>& now, const Touch& touch,
                          uintptr_t begin) {
  for_cells(begin, begin + touch.bytes, [&](Cell& cell) {
    expect_before(cell.write, *now, touch, true);
    if (touch.writes) {
      for (const Access& read : cell.reads) {
        expect_before(read, *now, touch, false);
      }
      cell.write = {.operation = now, .operand = touch.operand};
      cell.reads.clear();
      return;
    }
    std::erase_if(cell.reads, [&](const Access& read) { return read.operation->by == now->by; });
    cell.reads.push_back({.operation = now, .operand = touch.operand});
  });
}

void RaceDetector::expect_before(const Access& earlier, const Operation& now, const Touch& touch,
                                 bool write) {
  if (earlier.operation == nullptr ||
      clock(now.by)[earlier.operation->by] >= earlier.operation->time) {
    return;
  }
  const auto text = [&](const std::string& name, Actor by, bool writes,
                        const std::string& operand) {
    return fmt::format("{} on {}, which {} {}", name, actors_[by].name, writes ? "writes" : "reads",
                       operand);
  };
  reports_.emplace(
      fmt::format("race: {}, is not ordered after {}",
                  text(now.name, now.by, touch.writes, touch.operand),
                  text(earlier.operation->name, earlier.operation->by, write, earlier.operand)),
      true);
}

void RaceDetector::marked(Actor queue, Mark mark) {
  const std::lock_guard lock(mutex_);
  join(clock(queue), clock(kHost));
  std::erase_if(actors_[queue].marks,
                [&](const auto& known) { return known.second[queue] <= clock(kHost)[queue]; });
  actors_[queue].marks[mark] = clock(queue);
}

/// Null: the host has already waited for this mark.
const RaceDetector::Clock* RaceDetector::clock_of(Actor queue, Mark mark) const {
  const auto found = actors_[queue].marks.find(mark);
  return found == actors_[queue].marks.end() ? nullptr : &found->second;
}

void RaceDetector::followed(Actor queue, Actor other, Mark mark) {
  const std::lock_guard lock(mutex_);
  if (const Clock* before = clock_of(other, mark)) {
    join(clock(queue), *before);
  }
}

void RaceDetector::waited(Actor queue, Mark mark) {
  const std::lock_guard lock(mutex_);
  if (const Clock* before = clock_of(queue, mark)) {
    join(clock(kHost), *before);
  }
}

void RaceDetector::synchronized(Actor queue) {
  const std::lock_guard lock(mutex_);
  join(clock(kHost), clock(queue));
  actors_[queue].marks.clear();
}

void RaceDetector::forget(const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  cut(begin);
  cut(begin + bytes);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(begin + bytes));
}

std::vector<std::string> RaceDetector::take_reports() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> taken;
  for (auto& [text, fresh] : reports_) {
    if (fresh) {
      taken.push_back(text);
      fresh = false;
    }
  }
  return taken;
}

}  // namespace espalier::simt
