#pragma once
// Work that is asked of a device again and again with the same calls: recorded, and asked for in
// one call from then on (core/device.h, Recording; on a GPU a CUDA graph).
//
//   replays.rest_on(changes);          recordings from before a change are dropped
//   result = replays.run(key, work);   work(false) asks for its calls, as ever: the first kPlain
//                                      times, in which memory and libraries come to be there
//                                      work(true) asks once more, for the recording, which is then
//                                      replayed; later it is replayed alone, with the same result
//
// Work under one key asks for the same kernels, addresses and numbers every time, while `changes`
// and the workspaces of the stream stay: that is the caller's to see to. A result is what the work
// left on the host. While it is recorded nothing else happens: no waiting, no memory taken. What
// cannot be recorded throws Failure, or gives none: then nothing was done, it is asked for as
// ever, and its key is given up until the next change.
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
class Replays {
 public:
  /// `stream` must outlive it.
  explicit Replays(Stream& stream) : stream_(stream) {}

  /// Where there is a device; off at first.
  void use(bool on) { on_ = on && stream_.queue() != nullptr && !stream_.arena().dry(); }
  bool on() const { return on_; }

  void rest_on(int64_t changes) {
    const Ground now{.changes = changes, .workspaces = workspaces()};
    if (now != ground_) {
      ground_ = now;
      entries_.clear();
    }
  }

  /// `work(recorded)` → Result.
  template <class Work>
  Result run(const Key& key, const Work& work) {
    Entry* entry = on_ ? find(key) : nullptr;
    if (entry == nullptr || entry->given_up || entry->asked++ < kPlain) {
      return work(false);
    }
    if (entry->recording == nullptr && !record(*entry, work)) {
      entry->given_up = true;
      return work(false);
    }
    const Span span(Track::compute, "replay");
    stream_.queue()->replay(*entry->recording);
    ++replayed_;
    return *entry->result;
  }

  int64_t replayed() const { return replayed_; }
  /// What to tell the user since the last call: that, or why, something is not recorded. Once.
  std::string take_news() { return std::exchange(news_, {}); }

 private:
  static constexpr int kPlain = 2;  // the second may know what comes next, and use other queues
  static constexpr size_t kMost = 64;

  struct Entry {
    Key key;
    int asked = 0;
    bool given_up = false;
    std::unique_ptr<Recording> recording{};
    std::optional<Result> result{};
  };
  struct Ground {
    int64_t changes = -1;
    std::array<const void*, 2> workspaces{};
    bool operator==(const Ground&) const = default;
  };

  /// They grow, and then are elsewhere.
  std::array<const void*, 2> workspaces() {
    Stream* const side = stream_.side();
    return on_ ? std::array<const void*, 2>{stream_.workspace(0),
                                            side != nullptr ? side->workspace(0) : nullptr}
               : std::array<const void*, 2>{};
  }

  /// Null: there are too many.
  Entry* find(const Key& key) {
    auto found = std::ranges::find(entries_, key, &Entry::key);
    if (found == entries_.end()) {
      if (entries_.size() == kMost) {
        return nullptr;
      }
      found = entries_.insert(found, Entry{.key = key});
    }
    return &*found;
  }

  template <class Work>
  bool record(Entry& entry, const Work& work) {
    Queue& queue = *stream_.queue();
    std::string why = "the device records nothing";
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
      entry.recording = queue.end_recording();
      if (why.empty() && entry.recording != nullptr) {
        return true;
      }
      entry.recording.reset();
      entry.result.reset();
    }
    if (!std::exchange(told_, true)) {
      news_ = why.empty() ? "the device does not take the recording" : why;
    }
    return false;
  }

  static void abandon(Queue& queue) noexcept {
    try {
      queue.end_recording();
    } catch (const Error&) {  // what comes of what is thrown already
    }
  }

  Stream& stream_;
  bool on_ = false, told_ = false;
  Ground ground_;
  std::vector<Entry> entries_;
  int64_t replayed_ = 0;
  std::string news_;
};

}  // namespace espalier::train
