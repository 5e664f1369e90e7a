// All-reduce and gradient buckets. Every result is compared, bit for bit, with the sum in rank order
// that this rank computes alone: so the transports agree with each other, too.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "parallel/bucketer.h"
#include "parallel/sum.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "tests/ranks.h"

namespace espalier::parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Differs at every element of every rank and step, over many magnitudes: another order rounds otherwise.
float value(int rank, int step, int64_t i) {
  const uint64_t bits =
      mix(mix(static_cast<uint64_t>(step), static_cast<uint64_t>(rank)), static_cast<uint64_t>(i));
  return std::ldexp(static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F,
                    static_cast<int>(bits % 24));
}

std::vector<float> values(int rank, int step, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    x[i] = value(rank, step, i);
  }
  return x;
}

std::vector<float> expected_sum(int ranks, int step, int64_t count) {
  std::vector<float> sum = values(0, step, count);
  for (int r = 1; r < ranks; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = sum[i] + value(r, step, i);
    }
  }
  return sum;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

TEST(Sum, IsTheSameWhoeverIsOverwritten) {
  for (const int64_t count : {0, 1, 5, 2047, 2048, 2049, 10'000}) {
    for (const int ranks : {2, 3, 5}) {
      const std::vector<float> expected = expected_sum(ranks, 0, count);
      for (int target = 0; target < ranks; ++target) {
        std::vector<std::vector<float>> inputs;
        std::vector<const float*> pointers;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(values(r, 0, count));
          pointers.push_back(inputs.back().data());
        }
        sum_in_order(pointers, inputs[target].data(), count);
        EXPECT_TRUE(same_bits(inputs[target], expected)) << count << " " << ranks << " " << target;
      }
    }
  }
}

TEST(AllReduce, SumsInRankOrder) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    AllReduce small_pieces(comm, arena, {.piece_bytes = 4096, .staging_bytes = 64 << 10});
    AllReduce usual(comm, arena);
    int step = 0;
    for (const int64_t count : {0, 1, 2, 15, 16, 17, 113, 1000, 4096, 100'003}) {
      for (AllReduce* reduction : {&small_pieces, &usual}) {
        std::vector<float> x = values(comm.rank(), ++step, count);
        reduction->start(x, step);
        reduction->wait();
        EXPECT_TRUE(same_bits(x, expected_sum(comm.size(), step, count))) << count;
        EXPECT_TRUE(reduction->progress()) << "done stays done";
        EXPECT_TRUE(reduction->missing().empty());
      }
    }
  });
}

TEST(AllReduce, LargeArraysNeedLittleMemoryAndTheBytesOfTheFormula) {
  on_ranks([](Communicator& comm) {
    constexpr int64_t kCount = 1'000'001;
    Arena arena;
    AllReduce reduction(comm, arena);
    std::vector<float> x = values(comm.rank(), 3, kCount);
    const Sent before = comm.sent(Traffic::allreduce);
    reduction.start(x, 0);
    reduction.wait();
    EXPECT_TRUE(same_bits(x, expected_sum(comm.size(), 3, kCount)));
    EXPECT_LE(arena.use(Memory::communication).peak, AllReduceOptions{}.staging_bytes);
    double bytes = static_cast<double>(comm.sent(Traffic::allreduce).bytes - before.bytes);
    all_reduce_small(comm, {&bytes, 1}, Combine::sum);
    EXPECT_EQ(bytes, 2.0 * (comm.size() - 1) * kCount * sizeof(float));
  });
}

TEST(AllReduce, SpecialValuesHaveTheSameBitsOnAllRanks) {
  on_ranks([](Communicator& comm) {
    using Limits = std::numeric_limits<float>;
    const std::array<float, 6> kinds{Limits::quiet_NaN(),  Limits::infinity(),
                                     -Limits::infinity(),  -0.0F,
                                     Limits::denorm_min(), Limits::max()};
    std::vector<float> x;
    for (size_t i = 0; i < 216; ++i) {
      x.push_back(kinds[(i * (static_cast<size_t>(comm.rank()) + 1) + i / 6) % kinds.size()]);
    }
    Arena arena;
    AllReduce reduction(comm, arena);
    reduction.start(x, 0);
    reduction.wait();
    std::vector<float> all(x.size() * static_cast<size_t>(comm.size()));
    all_gather(comm, std::as_bytes(std::span(x)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_TRUE(
          same_bits(x, std::span(all).subspan(static_cast<size_t>(r) * x.size(), x.size())));
    }
  });
}

TEST(AllReduce, ConcurrentOnesFinishInAnyOrder) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    constexpr int kMany = 5;
    std::vector<std::unique_ptr<AllReduce>> reductions;
    std::vector<std::vector<float>> data;
    for (int i = 0; i < kMany; ++i) {
      const AllReduceOptions options{.piece_bytes = 8192, .staging_bytes = 128 << 10};
      reductions.push_back(std::make_unique<AllReduce>(comm, arena, options));
      data.push_back(values(comm.rank(), i, 20'000 + i));
    }
    for (int i = 0; i < kMany; ++i) {  // each rank starts them in another order
      const int which = (i + comm.rank()) % kMany;
      reductions[which]->start(data[which], which);
      reductions[comm.rank() % kMany]->progress();
    }
    for (int i = kMany; i-- > 0;) {
      comm.wait_until(
          [&] {
            bool all = true;
            bool moved = false;
            for (auto& reduction : reductions) {
              const Progress progress = reduction->advance();
              all &= progress == Progress::done;
              moved |= progress == Progress::moved;
            }
            return all ? Progress::done : moved ? Progress::moved : Progress::stuck;
          },
          [&] { return reductions[0]->missing(); }, "summing");
    }
    for (int i = 0; i < kMany; ++i) {
      EXPECT_TRUE(same_bits(data[i], expected_sum(comm.size(), i, 20'000 + i)));
    }
  });
}

TEST(AllReduce, NamesTheRankThatDoesNotTakePart) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    const auto part = comm.split(0, comm.rank());
    const int silent = comm.size() - 1;
    Arena arena;
    std::vector<float> x(1000, 1.0F);
    AllReduce reduction(*part, arena);
    if (comm.rank() != silent) {
      part->set_timeout(0.3);
      reduction.start(x, 0);
      try {
        reduction.wait();
        ADD_FAILURE() << "it cannot be done";
      } catch (const PeerLost& error) {
        EXPECT_THAT(error.ranks(), testing::Contains(silent));
        EXPECT_THAT(error.what(), HasSubstr("while summing gradients"));
      }
    }
    barrier(comm);
  });
}

TEST(AllReduce, RefusesASecondArrayWhileBusy) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    Arena arena;
    AllReduce reduction(comm, arena);
    std::vector<float> x(100'000, 1.0F);
    reduction.start(x, 0);
    if (!reduction.progress()) {
      EXPECT_THROW(reduction.start(x, 1), Bug);
    }
    reduction.wait();
    EXPECT_EQ(x.back(), static_cast<float>(comm.size()));
  });
}

// A gradient of parameters of very different sizes.
const std::vector<int64_t> kBoundaries{3, 5'000, 5'000, 5'001, 30'000, 30'100, 45'000, 61'234};

TEST(Buckets, AreCutAtParametersAndNotTooSmall) {
  on_ranks(
      [](Communicator& comm) {
        Arena arena;
        GradientBuckets buckets(comm, arena, {.bucket_bytes = 4 * 5'001});
        std::vector<float> flat = values(comm.rank(), 0, 61'234);
        buckets.begin(flat, kBoundaries);
        if (comm.size() == 1) {
          EXPECT_TRUE(buckets.bucket_ends().empty());
        } else {
          EXPECT_THAT(buckets.bucket_ends(), ElementsAre(5'001, 30'000, 45'000, 61'234));
        }
        if (comm.size() > 1) {
          EXPECT_THROW(buckets.begin(flat, kBoundaries), Bug) << "the step is not finished";
        }
        buckets.ready(5'000);
        EXPECT_THROW(buckets.ready(4'999), Bug) << "what is final stays final";
        buckets.finish();
        EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), 0, 61'234)));
      },
      {.timeout = 60});
}

TEST(Buckets, SumTheSameWheneverTheyAreReady) {
  on_ranks([](Communicator& comm) {
    for (const bool overlap : {true, false}) {
      for (const size_t bytes : {size_t{4}, size_t{20'000}, size_t{1} << 30U}) {
        Arena arena;
        GradientBuckets buckets(comm, arena, {.bucket_bytes = bytes, .overlap = overlap});
        for (int step = 0; step < 3; ++step) {
          const std::vector<float> gradient = values(comm.rank(), step, 61'234);
          std::vector<float> flat(gradient.size(), std::numeric_limits<float>::quiet_NaN());
          buckets.begin(flat, kBoundaries);
          int64_t begin = 0;
          for (const int64_t end : kBoundaries) {  // backward fills the gradient little by little
            std::copy(gradient.begin() + begin, gradient.begin() + end, flat.begin() + begin);
            begin = end;
            if ((end + comm.rank()) % 3 == 0) {
              std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
            if ((end + step) % 2 == 0) {
              buckets.ready(end);
            }
            buckets.progress();
          }
          buckets.finish();
          EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), step, 61'234)));
        }
      }
    }
  });
}

TEST(Buckets, AloneTheyDoNothing) {
  const auto self = self_communicator();
  Arena arena;
  GradientBuckets buckets(*self, arena);
  std::vector<float> flat = values(0, 0, 1000);
  buckets.begin(flat, {});
  buckets.ready(500);
  buckets.finish();
  EXPECT_TRUE(same_bits(flat, values(0, 0, 1000)));
  EXPECT_EQ(self->sent().messages, 0);
  EXPECT_EQ(arena.total().peak, 0U);
}

TEST(Buckets, EmptyGradient) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    GradientBuckets buckets(comm, arena);
    buckets.begin({}, {});
    buckets.finish();
    EXPECT_EQ(comm.sent(Traffic::allreduce).bytes % 4, 0);
  });
}

TEST(Buckets, TraceOneSpanEachThatDoNotOverlap) {
  on_ranks([](Communicator& comm) {
    Trace trace;
    Trace* previous = Trace::install(&trace);
    Arena arena;
    GradientBuckets buckets(comm, arena, {.bucket_bytes = 4});
    std::vector<float> flat = values(comm.rank(), 0, 61'234);
    buckets.begin(flat, kBoundaries);
    buckets.finish();
    Trace::install(previous);
    ASSERT_EQ(trace.events().size(), buckets.bucket_ends().size());
    EXPECT_EQ(trace.events().size(), comm.size() == 1 ? 0U : 7U);
    double last = 0;
    for (const TraceEvent& event : trace.events()) {
      EXPECT_EQ(event.track, Track::allreduce);
      EXPECT_GE(event.begin, last);
      EXPECT_GE(event.end, event.begin);
      last = event.end;
    }
  });
}

/// Another algorithm behind the same interface: all send everything to all.
class Naive final : public Reduction {
 public:
  explicit Naive(Communicator& comm) : comm_(comm) {}
  void start(std::span<float> data, int /*number*/) override {
    std::vector<float> all(data.size() * static_cast<size_t>(comm_.size()));
    all_gather(comm_, std::as_bytes(data), std::as_writable_bytes(std::span(all)));
    std::vector<const float*> versions;
    for (size_t at = 0; at < all.size(); at += data.size()) {
      versions.push_back(all.data() + at);
    }
    sum_in_order(versions, data.data(), static_cast<int64_t>(data.size()));
  }
  Progress advance() override { return Progress::done; }
  std::vector<int> missing() const override { return {}; }

 private:
  Communicator& comm_;
};

TEST(Buckets, TakeAnotherReduction) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    GradientBuckets buckets(comm, arena, {.bucket_bytes = 4, .in_flight = 1},
                            [](Communicator& c, Arena&) { return std::make_unique<Naive>(c); });
    std::vector<float> flat = values(comm.rank(), 0, 61'234);
    buckets.begin(flat, kBoundaries);
    buckets.ready(40'000);
    buckets.finish();
    EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), 0, 61'234)));
  });
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) { return espalier::run_rank_tests(argc, argv); }
