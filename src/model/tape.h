#pragma once
// The tape of one micro-batch: a stack of arena memory (category `activation`) that holds saved
// activations and temporaries.
//
// Layers push and save in forward, and read saved tensors in backward. `Scope` drops temporaries,
// `clear` ends the micro-batch. A dry tape has no memory and only measures: a stage runs one dry
// pass and then allocates the high-water mark.
#include <any>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/core/arena.h"

namespace espalier::model {

class Tape {
 public:
  /// `bytes` of memory; with `dry`, none, and pushes never run out.
  Tape(Arena& arena, size_t bytes, bool dry = false);

  /// Uninitialised memory for `name`, until the enclosing Scope ends or `clear`.
  Tensor push(std::string_view name, DType dtype, const Shape& shape);

  /// Drops on destruction all that was pushed since construction.
  class Scope {
   public:
    explicit Scope(Tape& tape) : tape_(tape), top_(tape.top_) {}
    ~Scope() { tape_.drop(top_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape& tape_;
    size_t top_;
  };

  /// Saves a struct of views for the backward of a layer; one for each layer.
  template <class Saved>
  void save(const void* layer, Saved saved) {
    saved_[layer] = std::move(saved);
  }
  template <class Saved>
  const Saved& saved(const void* layer) const {
    const auto found = saved_.find(layer);
    require(found != saved_.end(), "backward follows a forward of the same layer");
    return std::any_cast<const Saved&>(found->second);
  }

  void clear();

  /// State after a pass. A replayed graph writes the same memory; `restore` then puts this state
  /// back. Not for a dry tape.
  struct Contents {
    size_t top = 0;
    std::unordered_map<const void*, std::any> saved;
  };
  Contents contents() const { return {.top = top_, .saved = saved_}; }
  void restore(const Contents& contents);

  size_t high_water() const { return high_water_; }
  using ByName = std::map<std::string, size_t, std::less<>>;
  /// Dry tape: bytes at the high-water mark by name, e.g. "attention qkv".
  const ByName& peak_by_name() const { return peak_; }

 private:
  /// One push of a dry tape.
  struct Entry {
    size_t begin = 0;
    ByName::iterator name{};
    size_t bytes = 0;
  };
  void drop(size_t top);
  void count(std::string_view name, size_t begin);

  Buffer memory_;
  size_t capacity_;
  bool dry_;
  size_t top_ = 0;
  size_t high_water_ = 0;
  std::unordered_map<const void*, std::any> saved_;
  std::vector<Entry> entries_;  ///< live ones, ascending
  ByName live_, peak_;          ///< bytes by name, now and at the high-water mark
};

}  // namespace espalier::model
