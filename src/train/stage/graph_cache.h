#pragma once
// Caches captured graphs of repeated device work (core/device.h, Recording; on a GPU: CUDA graphs),
// one per key.
//
//   cache.invalidate_if(changes);         drops graphs captured before `changes` last moved
//   result = cache.run(key, work);        runs `work` directly kWarmUps times (allocations and
//                                         library handles settle), then captures it, then replays
//
// Contract: for one key, `work` launches the same kernels with the same addresses and scalars until
// `changes` or a workspace moves. During capture `work` neither waits nor allocates.
// If capture fails, `work` runs directly until the next change. Host results are those of the
// capture. Cost: a replay is one launch.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/core/stream.h"
#include "src/core/trace.h"

namespace espalier::train {

template <class Key, class Result>
class GraphCache {
 public:
  /// `stream` must outlive it.
  explicit GraphCache(Stream& stream) : stream_(stream) {}

  /// Off at first; stays off without a device.
  void enable(bool on) { on_ = on && stream_.queue() != nullptr && !stream_.arena().dry(); }
  bool on() const { return on_; }

  void invalidate_if(int64_t changes) {
    const Version now{.changes = changes, .workspaces = workspaces()};
    if (now != version_) {
      version_ = now;
      entries_.clear();
    }
  }

  /// `work(capturing)` → Result.
  template <class Work>
  Result run(const Key& key, const Work& work) {
    Entry* entry = on_ ? find(key) : nullptr;
    if (entry == nullptr || entry->failed || entry->runs++ < kWarmUps) {
      return work(false);
    }
    if (entry->graph == nullptr && !capture(*entry, work)) {
      entry->failed = true;
      return work(false);
    }
    const Span span(Track::compute, "replay");
    stream_.queue()->replay(*entry->graph);
    ++replayed_;
    return *entry->result;
  }

  int64_t replayed() const { return replayed_; }
  /// The reason of the first failed capture, once; else empty.
  std::string take_failure() { return std::exchange(failure_, {}); }

 private:
  static constexpr int kWarmUps = 2;  // the second prefetches weights (sparse/store/expander.h)
  static constexpr size_t kMaxEntries = 64;

  struct Entry {
    Key key;
    int runs = 0;
    bool failed = false;
    std::unique_ptr<Recording> graph{};
    std::optional<Result> result{};
  };
  struct Version {
    int64_t changes = -1;
    std::array<const void*, 2> workspaces{};
    bool operator==(const Version&) const = default;
  };

  /// A workspace that grows moves.
  std::array<const void*, 2> workspaces() {
    Stream* const side = stream_.side();
    return on_ ? std::array<const void*, 2>{stream_.workspace(0),
                                            side != nullptr ? side->workspace(0) : nullptr}
               : std::array<const void*, 2>{};
  }

  /// Null: the cache is full.
  Entry* find(const Key& key) {
    auto found = std::ranges::find(entries_, key, &Entry::key);
    if (found == entries_.end()) {
      if (entries_.size() == kMaxEntries) {
        return nullptr;
      }
      found = entries_.insert(found, Entry{.key = key});
    }
    return &*found;
  }

  template <class Work>
  bool capture(Entry& entry, const Work& work) {
    Queue& queue = *stream_.queue();
    std::string why = "the device cannot capture graphs";
    if (queue.begin_recording()) {
      why.clear();
      try {
        entry.result = work(true);
      } catch (const Failure& failure) {
        why = failure.what();
      } catch (...) {
        abandon(queue);
        throw;
      }
      entry.graph = queue.end_recording();
      if (why.empty() && entry.graph != nullptr) {
        return true;
      }
      entry.graph.reset();
      entry.result.reset();
    }
    if (!std::exchange(reported_, true)) {
      failure_ = why.empty() ? "the device rejects the graph" : why;
    }
    return false;
  }

  static void abandon(Queue& queue) noexcept {
    try {
      queue.end_recording();
    } catch (const Error&) {  // follows from the exception in flight
    }
  }

  Stream& stream_;
  bool on_ = false, reported_ = false;
  Version version_;
  std::vector<Entry> entries_;
  int64_t replayed_ = 0;
  std::string failure_;
};

}  // namespace espalier::train
