// Matrices that are sent as two thin factors: exact if the sum has that low a rank, the same bits
// on all ranks, the bytes of the formula, and error feedback that keeps the remainder.
#include <gmock/gmock.h>

#include <cmath>
#include <memory>

#include "parallel/reduction/flat.h"
#include "parallel/reduction/powersgd/reduction.h"
#include "parallel/reduction/registry.h"
#include "parallel/wire/codec.h"
#include "tests/parallel/low_rank_array.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/parallel/silent_rank.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::powersgd_mpi_test {
namespace {

/// State of one rank that reduces an array of `count` elements.
struct Reducer {
  Reducer(Communicator& among, int64_t count, std::vector<LowRankMatrix> matrices,
          const std::string& rest = "sra")
      : stream(arena, 1),
        low_rank(kernels::by_name("cpu"), stream),
        wire(kernels::by_name("cpu"), stream),
        error(static_cast<size_t>(count)),
        reduction(among, arena, low_rank, make_reduction(rest, among, arena)),
        comm(among) {
    low_rank.set_matrices(std::move(matrices));
    low_rank.set_feedback(flat_of(error));
  }
  template <class T>
  void run(std::vector<T>& x, SliceJob job = {}) {
    job.data = flat_of(x);
    reduction.start(job);
    reduction.wait(comm);
  }
  /// Kept errors summed over all ranks.
  std::vector<double> errors() {
    std::vector<double> sum(error.begin(), error.end());
    all_reduce_small(comm, sum, Combine::sum);
    return sum;
  }

  Arena arena;
  Stream stream;
  LowRank low_rank;
  Wire wire;
  std::vector<float> error;
  LowRankReduction reduction;
  Communicator& comm;
};

TEST(LowRankSum, OfRankROrLessIsExact) {
  on_ranks([](Communicator& comm) {
    constexpr int64_t kRows = 60;
    constexpr int64_t kCols = 45;
    if (comm.size() == 1) {
      return;
    }
    Reducer reducer(comm, kRows * kCols, {{.rows = kRows, .cols = kCols, .rank = 8, .key = 3}});
    for (int step = 0; step < 3; ++step) {
      // Each rank has its own matrix of rank one: up to seven.
      std::vector<double> want(kRows * kCols);
      std::vector<float> x(kRows * kCols);
      for (int rank = 0; rank < comm.size(); ++rank) {
        const auto u = gradient(rank, 10 + step, kRows);
        const auto v = gradient(rank, 20 + step, kCols);
        for (int64_t i = 0; i < kRows * kCols; ++i) {
          const float product = u[i / kCols] * v[i % kCols];
          want[i] += double{product};
          x[i] = rank == comm.rank() ? product : x[i];
        }
      }
      reducer.run(x);
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs(want[i] - double{x[i]}));
      }
      EXPECT_LT(worst, 2e-5);
      const auto lacking = reducer.errors();
      EXPECT_THAT(lacking, ::testing::Each(::testing::DoubleNear(0, 2e-5)));
    }
  });
}

template <class T>
void mixed_sums(Communicator& comm, const std::string& rest) {
  const Mixed mixed = mixed_array();
  Reducer reducer(comm, mixed.count, mixed.matrices, rest);
  constexpr bool kNarrow = std::is_same_v<T, bf16>;
  reducer.wire.set_segments(segments_of(mixed, plain_format(kNarrow ? DType::bf16 : DType::fp32)));
  for (int step = 0; step < 3; ++step) {
    std::vector<T> x = values_of<T>(comm.rank(), step, mixed.count);
    const std::vector<T> mine = x;
    reducer.run(x, {.number = step, .wire = &reducer.wire});
    if (comm.size() == 1) {
      EXPECT_TRUE(same_bits(x, mine));
      continue;
    }
    std::vector<T> whole = x;
    if (rest == "hierarchical") {  // padding belongs to no matrix
      for (size_t m = 0; m < mixed.matrices.size(); ++m) {
        std::fill_n(whole.begin() + mixed.between[m].end(), 5, T{});
      }
    }
    EXPECT_TRUE(equal_everywhere(comm, whole));
    // Elements outside the matrices are summed as without matrices.
    if (rest == "sra") {
      const std::vector<T> want = expected_of<T>(comm.size(), step, mixed.count);
      for (const Range& range : mixed.between) {
        const auto at = static_cast<size_t>(range.first);
        const auto n = static_cast<size_t>(range.count);
        EXPECT_TRUE(same_bits(std::span<const T>(x).subspan(at, n),
                              std::span<const T>(want).subspan(at, n)));
      }
    }
  }
}

TEST(LowRankSum, HasTheSameBitsOnAllRanksInAnyShapeAndType) {
  on_ranks(
      [](Communicator& comm) {
        for (const std::string rest : {"sra", "ring", "all-to-all", "hierarchical"}) {
          SCOPED_TRACE(rest);
          mixed_sums<float>(comm, rest);
          mixed_sums<bf16>(comm, rest);
        }
      },
      {.timeout = 60, .ranks_a_node = 2});
}

/// As in reduction_mpi_test.cpp for other codecs: sent plus kept values equal the input, for
/// matrices and for the elements encoded beside them.
TEST(LowRankSum, ErrorFeedbackKeepsTheErrorOfTheSums) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    const Mixed mixed = mixed_array();
    for (const std::string codec : {"fp32", "maxmin:2", "sign"}) {
      SCOPED_TRACE(codec);
      Reducer reducer(comm, mixed.count, mixed.matrices);
      reducer.wire.set_segments(segments_of(mixed, format_of(parallel::parse_codec(codec))));
      reducer.wire.set_feedback(flat_of(reducer.error));
      std::vector<double> lacks(static_cast<size_t>(mixed.count));
      for (int step = 0; step < 5; ++step) {
        std::vector<float> x = gradient(comm.rank(), step, mixed.count);
        for (int rank = 0; rank < comm.size(); ++rank) {
          const auto one = gradient(rank, step, mixed.count);
          std::ranges::transform(lacks, one, lacks.begin(), std::plus<>());
        }
        reducer.run(x, {.number = step, .wire = &reducer.wire});
        std::ranges::transform(lacks, x, lacks.begin(), std::minus<>());
      }
      const std::vector<double> kept = reducer.errors();
      const auto compare = [&](const Range& range, bool loses) {
        double worst = 0;
        double most = 0;
        for (int64_t i = range.first; i < range.end(); ++i) {
          worst = std::max(worst, std::abs(lacks[i] - kept[i]));
          most = std::max(most, std::abs(kept[i]));
        }
        EXPECT_LT(worst, 1e-4);
        EXPECT_EQ(most > 1e-3, loses) << range.first;
      };
      for (const LowRankMatrix& matrix : reducer.low_rank.matrices()) {
        compare({.first = matrix.first, .count = matrix.count()},
                matrix.rank < std::min(matrix.rows, matrix.cols));
      }
      for (const Range& range : mixed.between) {
        compare(range, codec != "fp32");
      }
    }
  });
}

TEST(LowRankSum, SendsTheBytesOfTheFormula) {
  on_ranks([](Communicator& comm) {
    const int p = comm.size();
    // Factors that divide evenly among ranks, in whole cache lines.
    const int64_t rows = 16 * p;
    const int64_t cols = 32 * p;
    constexpr int64_t kRank = 3;
    const int64_t vector = 64 * p;
    Reducer reducer(comm, rows * cols + vector,
                    {{.first = vector, .rows = rows, .cols = cols, .rank = kRank, .key = 1}});
    reducer.wire.set_segments({{.first = 0, .count = vector, .format = plain_format(DType::fp32)}});
    std::vector<float> x = gradient(comm.rank(), 1, rows * cols + vector);
    const Sent before = comm.sent(Traffic::allreduce);
    reducer.run(x, {.wire = &reducer.wire});
    EXPECT_EQ(comm.sent(Traffic::allreduce).bytes - before.bytes,
              2 * (p - 1) * 4 * (kRank * (rows + cols) + vector) / p);
    // Only the factors, without other segments.
    reducer.wire.set_segments({});
    const Sent then = comm.sent(Traffic::allreduce);
    reducer.run(x, {.wire = &reducer.wire});
    EXPECT_EQ(comm.sent(Traffic::allreduce).bytes - then.bytes,
              2 * (p - 1) * 4 * kRank * (rows + cols) / p);
  });
}

/// With the same gradient each time and no error feedback, Q converges to the directions of the
/// largest singular values.
TEST(LowRankSum, ApproachesTheBestOfItsRank) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kSize = 24;
    Reducer reducer(comm, kSize * kSize, {{.rows = kSize, .cols = kSize, .rank = 2, .key = 9}});
    double lost = 0;
    for (int step = 0; step < 30; ++step) {
      std::ranges::fill(reducer.error, 0.0F);
      std::vector<float> x(kSize * kSize);  // singular values 8, 4, 2, 1, 1/2 ... over all ranks
      for (int64_t i = 0; i < kSize; ++i) {
        x[i * kSize + (i + 5) % kSize] = std::ldexp(1.0F, static_cast<int>(3 - i));
      }
      const std::vector<float> mine = x;
      reducer.run(x);
      lost = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double lacking = double{mine[i]} - double{x[i]} / comm.size();
        lost += lacking * lacking;
      }
      if (step == 0) {
        EXPECT_GT(lost, 5.5);
      }
    }
    EXPECT_NEAR(lost, 16.0 / 3, 1e-3);  // 4 + 1 + 1/4 + ...
  });
}

TEST(LowRankSum, ZerosStayZerosAndQComesBackAfterThem) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kRows = 30;
    constexpr int64_t kCols = 20;
    Reducer reducer(comm, kRows * kCols, {{.rows = kRows, .cols = kCols, .rank = 4, .key = 2}});
    std::vector<float> x(kRows * kCols);
    reducer.run(x);
    EXPECT_TRUE(std::ranges::all_of(x, [](float one) { return one == 0; }));
    EXPECT_TRUE(std::ranges::all_of(reducer.error, [](float one) { return one == 0; }));
    // Rank one: three columns depend on the first. Then rank four: all columns are needed.
    for (const int64_t rank : {1, 4}) {
      std::vector<float> product(kRows * kCols);
      for (int64_t k = 0; k < rank; ++k) {
        const auto u = gradient(50, static_cast<int>(k), kRows);
        const auto v = gradient(51, static_cast<int>(k), kCols);
        for (int64_t i = 0; i < kRows * kCols; ++i) {
          product[i] += u[i / kCols] * v[i % kCols];
        }
      }
      x = product;
      reducer.run(x);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(x[i], static_cast<float>(comm.size()) * product[i], 3e-6 * comm.size());
      }
    }
  });
}

TEST(LowRankSum, NonFiniteValuesReachAllRanksButNotTheFeedback) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kRows = 30;
    constexpr int64_t kCols = 20;
    constexpr int64_t kCount = kRows * kCols;
    for (const float bad : {NAN, INFINITY, -INFINITY, 3e38F}) {
      Reducer reducer(comm, 2 * kCount,
                      {{.rows = kRows, .cols = kCols, .rank = 4, .key = 2},
                       {.first = kCount, .rows = kRows, .cols = kCols, .rank = 4, .key = 5}});
      std::vector<float> x = gradient(comm.rank(), 3, 2 * kCount);
      if (comm.rank() == comm.size() - 1) {
        std::fill_n(x.begin() + 100, 40, bad);
      }
      reducer.run(x);
      const auto finite = [](float one) { return std::isfinite(one); };
      EXPECT_TRUE(std::ranges::none_of(std::span(x).first(kCount), finite)) << bad;
      EXPECT_TRUE(std::ranges::all_of(std::span(x).last(kCount), finite)) << "the other matrix";
      EXPECT_TRUE(std::ranges::all_of(reducer.error, finite));
      std::vector<float> next = gradient(comm.rank(), 4, 2 * kCount);
      reducer.run(next);
      EXPECT_TRUE(std::ranges::all_of(next, finite)) << "the step after it";
      EXPECT_TRUE(equal_everywhere(comm, next));
    }
  });
}

/// ZeRO-1: elements outside the matrices are summed for their owner, matrices for all ranks.
TEST(LowRankSum, OfSlicesIsThatOfAll) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    const Mixed mixed = mixed_array();
    Reducer whole(comm, mixed.count, mixed.matrices);
    Reducer sliced(comm, mixed.count, mixed.matrices);
    std::vector<int64_t> edges{0};
    for (int rank = 1; rank < comm.size(); ++rank) {
      edges.push_back(mixed.count * rank / comm.size());
    }
    edges.push_back(mixed.count);
    for (int step = 0; step < 2; ++step) {
      std::vector<float> want = values(comm.rank(), step, mixed.count);
      std::vector<float> got = want;
      whole.run(want);
      sliced.run(got, {.phases = Phases::scatter, .edges = edges});
      for (const LowRankMatrix& matrix : mixed.matrices) {
        EXPECT_TRUE(same_bits(std::span<const float>(got).subspan(matrix.first, matrix.count()),
                              std::span<const float>(want).subspan(matrix.first, matrix.count())));
      }
      for (int64_t i = edges[comm.rank()]; i < edges[comm.rank() + 1]; ++i) {
        ASSERT_EQ(got[i], want[i]) << i;
      }
    }
  });
}

TEST(LowRankSum, AReleasedMatrixReturnsItsKeptErrors) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kCount = 600;
    Reducer reducer(comm, kCount, {{.rows = 30, .cols = 20, .rank = 2, .key = 2}});
    std::vector<float> x = gradient(comm.rank(), 1, kCount);
    reducer.run(x);
    const std::vector<double> kept = reducer.errors();
    EXPECT_GT(*std::ranges::max_element(kept), 0.01);
    reducer.low_rank.set_matrices({});
    reducer.low_rank.set_released({{.first = 0, .count = kCount}});
    std::vector<float> zeros(kCount);
    reducer.run(zeros);
    for (size_t i = 0; i < zeros.size(); ++i) {
      ASSERT_NEAR(zeros[i], kept[i], 1e-5);
    }
    EXPECT_TRUE(std::ranges::all_of(reducer.error, [](float one) { return one == 0; }));
  });
}

TEST(LowRankSum, NamesTheRankThatDoesNotTakePart) {
  on_ranks([](Communicator& comm) {
    expect_silent_rank_named(comm, "summing gradients", [](Communicator& part) {
      Reducer reducer(part, 600, {{.rows = 30, .cols = 20, .rank = 2, .key = 2}});
      std::vector<float> x(600, 1.0F);
      reducer.run(x);
    });
  });
}

}  // namespace
}  // namespace espalier::parallel::powersgd_mpi_test
