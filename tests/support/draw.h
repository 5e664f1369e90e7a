#pragma once
// Random choices for tests, determined by a seed, and the range of seeds that a program runs.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "src/core/rng.h"

namespace espalier::testing {

/// A sequence of choices, determined by a seed.
class Draw {
 public:
  explicit Draw(uint64_t number) : number_(number) {}

  bool once_in(uint64_t n) { return next() % n == 0; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  template <class T>
  T of(std::initializer_list<T> all) {
    return all.begin()[next() % all.size()];
  }

 private:
  uint64_t next() { return philox(number_, 0, count_++)[0]; }

  uint64_t number_;
  uint32_t count_ = 0;
};

/// Seeds from `from` to before `to`; ESPALIER_RANDOM=FROM:TO overrides the default.
struct Numbers {
  uint64_t from, to;
  bool from_environment = false;

  Numbers(uint64_t first, uint64_t end) : from(first), to(end) {
    if (const char* others = std::getenv("ESPALIER_RANDOM")) {
      unsigned long first_seed = 0, end_seed = 0;
      EXPECT_EQ(std::sscanf(others, "%lu:%lu", &first_seed, &end_seed), 2) << others;
      from = first_seed;
      to = end_seed;
      from_environment = true;
    }
  }
};

}  // namespace espalier::testing
