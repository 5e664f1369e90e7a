// All-reduce: bits, bytes, memory, concurrency, faults.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "parallel/reduction/sra.h"
#include "parallel/reduction/sum.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::allreduce_mpi_test {
namespace {

template <class T>
void sums_into_any_input() {
  for (const int64_t count : {0, 1, 5, 31, 2047, 2048, 2049, 10'000}) {
    for (const int ranks : {1, 2, 3, 4, 5}) {
      const std::vector<T> expected = expected_of<T>(ranks, 0, count);
      for (int target = 0; target < ranks; ++target) {
        std::vector<std::vector<T>> inputs;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(values_of<T>(r, 0, count));
        }
        std::vector<Tensor> views;
        for (std::vector<T>& input : inputs) {
          views.push_back(flat_of(input));
        }
        sum_in_order(views, views[target]);
        EXPECT_TRUE(same_bits(inputs[target], expected)) << count << " " << ranks << " " << target;
      }
    }
  }
}

TEST(Sum, IsTheSameForAnyOverwrittenInput) {
  sums_into_any_input<float>();
  sums_into_any_input<bf16>();
  sums_into_any_input<fp16>();
}

TEST(Sum, OfSixteenBitsIsRoundedOnceToNearestEven) {
  // Magnitudes so close to each other that fp32 holds every partial sum: the only correct result is
  // the exact sum in double, rounded here by another method. Many of the sums are ties.
  constexpr int64_t kCount = 20'011;
  const auto input = [](int rank, int64_t i) {
    const float x = value(rank, 77, i);
    const int magnitude = static_cast<int>((rank + i) % 9);
    return to_float(to_bf16(x == 0 ? 1.0F : std::ldexp(x, magnitude - std::ilogb(x))));
  };
  for (const int ranks : {2, 3, 7}) {
    std::vector<std::vector<bf16>> inputs(static_cast<size_t>(ranks));
    std::vector<Tensor> views;
    for (int r = 0; r < ranks; ++r) {
      for (int64_t i = 0; i < kCount; ++i) {
        inputs[r].push_back(to_bf16(input(r, i)));
      }
      views.push_back(flat_of(inputs[r]));
    }
    sum_in_order(views, views[0]);
    int ties = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      double exact = 0;
      for (int r = 0; r < ranks; ++r) {
        exact += input(r, i);
      }
      const double last_place = exact == 0 ? 1 : std::ldexp(1.0, std::ilogb(exact) - 7);
      const double reference = std::nearbyint(exact / last_place) * last_place;
      EXPECT_EQ(to_float(inputs[0][i]), reference) << ranks << " ranks, element " << i;
      ties += std::abs(exact / last_place - std::trunc(exact / last_place)) == 0.5 ? 1 : 0;
    }
    EXPECT_GT(ties, 100);
  }
}

TEST(Sum, RefusesArraysThatDiffer) {
  std::vector<float> x(4);
  std::vector<float> longer(5);
  std::vector<bf16> other(4);
  EXPECT_THROW(sum_in_order(std::array{flat_of(x), flat_of(longer)}, flat_of(x)), Bug);
  EXPECT_THROW(sum_in_order(std::array{flat_of(x), flat_of(other)}, flat_of(x)), Bug);
  EXPECT_THROW(sum_in_order({}, flat_of(x)), Bug);
}

template <class T>
void sums_in_rank_order() {
  on_ranks([](Communicator& comm) {
    Arena arena;
    SraReduction small_pieces(comm, arena, {.piece_bytes = 4096, .staging_bytes = 64 << 10});
    SraReduction usual(comm, arena);
    int step = 0;
    for (const int64_t count : {0, 1, 2, 15, 16, 17, 33, 113, 1000, 4096, 100'003}) {
      for (SraReduction* reduction : {&small_pieces, &usual}) {
        std::vector<T> x = values_of<T>(comm.rank(), ++step, count);
        reduction->start({.data = flat_of(x), .number = step});
        reduction->wait();
        EXPECT_TRUE(same_bits(x, expected_of<T>(comm.size(), step, count))) << count;
        EXPECT_EQ(reduction->advance(), Progress::done) << "done stays done";
        EXPECT_TRUE(reduction->missing().empty());
      }
    }
  });
}

TEST(AllReduce, SumsInRankOrder) { sums_in_rank_order<float>(); }
TEST(AllReduce, SumsSixteenBitsInRankOrder) {
  sums_in_rank_order<bf16>();
  sums_in_rank_order<fp16>();
}

template <class T>
void large_array_needs_little(Communicator& comm) {
  constexpr int64_t kCount = 1'000'001;
  Arena arena;
  SraReduction reduction(comm, arena);
  std::vector<T> x = values_of<T>(comm.rank(), 3, kCount);
  const Sent before = comm.sent(Traffic::allreduce);
  reduction.start({.data = flat_of(x)});
  reduction.wait();
  EXPECT_TRUE(same_bits(x, expected_of<T>(comm.size(), 3, kCount)));
  EXPECT_LE(arena.use(Memory::communication).peak, PieceOptions{}.staging_bytes);
  double bytes = static_cast<double>(comm.sent(Traffic::allreduce).bytes - before.bytes);
  all_reduce_small(comm, {&bytes, 1}, Combine::sum);
  EXPECT_EQ(bytes, 2.0 * (comm.size() - 1) * kCount * sizeof(T));
}

TEST(AllReduce, LargeArraysNeedLittleMemoryAndTheBytesOfTheFormula) {
  on_ranks(large_array_needs_little<float>);
  on_ranks(large_array_needs_little<bf16>);
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
    SraReduction reduction(comm, arena);
    reduction.start({.data = flat_of(x)});
    reduction.wait();
    EXPECT_TRUE(equal_everywhere(comm, x));
  });
}

TEST(AllReduce, ConcurrentOnesFinishInAnyOrder) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    constexpr int kMany = 5;
    std::vector<std::unique_ptr<SraReduction>> reductions;
    std::vector<std::vector<float>> data;
    for (int i = 0; i < kMany; ++i) {
      const PieceOptions options{.piece_bytes = 8192, .staging_bytes = 128 << 10};
      reductions.push_back(std::make_unique<SraReduction>(comm, arena, options));
      data.push_back(values(comm.rank(), i, 20'000 + i));
    }
    for (int i = 0; i < kMany; ++i) {  // each rank starts them in another order
      const int which = (i + comm.rank()) % kMany;
      reductions[which]->start({.data = flat_of(data[which]), .number = which});
      reductions[comm.rank() % kMany]->advance();
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

TEST(AllReduce, RefusesASecondArrayWhileBusy) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    Arena arena;
    SraReduction reduction(comm, arena);
    std::vector<float> x(100'000, 1.0F);
    reduction.start({.data = flat_of(x)});
    if (reduction.advance() != Progress::done) {
      EXPECT_THROW(reduction.start({.data = flat_of(x), .number = 1}), Bug);
    }
    reduction.wait();
    EXPECT_EQ(x.back(), static_cast<float>(comm.size()));
  });
}

}  // namespace
}  // namespace espalier::parallel::allreduce_mpi_test
