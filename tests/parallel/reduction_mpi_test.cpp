// Codecs x reductions x ranks x sizes: the exact sum within a bound, the same bits on all ranks,
// the bytes of the formula, and the state of error feedback.
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "parallel/reduction/registry.h"
#include "parallel/wire/codec.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/support/codec_samples.h"
#include "tests/support/matchers.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::reduction_mpi_test {
namespace {

using espalier::testing::codec_samples;
using espalier::testing::lossy_codecs;

/// Reductions that encode elements, on any transport.
const std::vector<std::string> kReductions = [] {
  std::vector<std::string> found;
  for (const ReductionEntry* entry : reductions()) {
    if (entry->takes_codecs) {
      found.emplace_back(entry->name);
    }
  }
  return found;
}();

TEST(Reductions, EachValueCodecHasASample) {
  std::set<std::string> sampled;
  for (const auto& sample : codec_samples()) {
    sampled.insert(parse_codec(sample.text).name);
  }
  EXPECT_THAT(sampled, ::testing::UnorderedElementsAreArray(names(kernels::wire_codecs())));
}

std::vector<double> exact_sum(int ranks, int step, int64_t count) {
  std::vector<double> sum(static_cast<size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> x = gradient(r, step, count);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += static_cast<double>(x[i]);
    }
  }
  return sum;
}

/// Some segments with their own codec, one uncompressed, and gaps between them.
std::vector<WireSegment> segments_of(const std::string& codec, int64_t count) {
  const kernels::WireFormat format = format_of(parallel::parse_codec(codec));
  if (count < 100) {
    return {{.first = 0, .count = count, .format = format}};
  }
  const int64_t third = count / 3;
  return {{.first = 0, .count = third - 5, .format = format},
          {.first = third, .count = 11, .format = plain_format(DType::fp32)},
          {.first = third + 16, .count = count - third - 16, .format = format}};
}

bool within(const std::vector<WireSegment>& segments, int64_t i) {
  return std::ranges::any_of(segments,
                             [&](const auto& s) { return i >= s.first && i < s.first + s.count; });
}

/// Error bound: the largest number of encodings of one value, applied to sums of up to p values.
double loss_bound(const std::string& reduction, int ranks, double loss) {
  const double p = ranks;
  const double once = loss * p;            // each contribution
  const double again = loss * (p + once);  // the sum of them
  return reduction == "ring" ? p * again + once : once + again;
}

/// State of one rank for a reduction.
struct Reducer {
  Reducer(Communicator& among, const std::string& name, const std::vector<WireSegment>& segments)
      : stream(arena, 1),
        wire(kernels::by_name("cpu"), stream, segments),
        reduction(make_reduction(name, among, arena,
                                 {.piece_bytes = 16'384, .staging_bytes = 256 << 10})),
        comm(among) {}
  void run(std::vector<float>& x, int number = 0) {
    reduction->start({.data = flat_of(x), .number = number, .wire = &wire});
    reduction->wait(comm);
  }

  Arena arena;
  Stream stream;
  Wire wire;
  std::unique_ptr<Reduction> reduction;
  Communicator& comm;
};

void table_of_all(Communicator& comm) {
  int step = 0;
  for (const std::string& name : kReductions) {
    for (const auto& [codec, loss] : codec_samples()) {
      for (const int64_t count : {0, 1, 7, 131, 30'011}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, codec, count));
        const auto segments = segments_of(codec, count);
        Reducer reducer(comm, name, segments);
        std::vector<float> x = gradient(comm.rank(), ++step, count);
        reducer.run(x, step % kReductionNumbers);
        EXPECT_TRUE(equal_everywhere(comm, x));
        if (comm.size() == 1) {
          continue;
        }
        const std::vector<double> want = exact_sum(comm.size(), step, count);
        const double bound = loss_bound(name, comm.size(), loss) + 1e-5;
        double worst = 0;
        for (int64_t i = 0; i < count; ++i) {
          worst = std::max(worst, within(segments, i) ? std::abs(want[i] - double{x[i]}) : 0.0);
        }
        EXPECT_LE(worst, bound);
      }
    }
  }
}

TEST(Reductions, OfEveryCodecStayWithinTheirBoundAndAgreeOnAllRanks) {
  on_ranks(table_of_all, {.timeout = 60, .ranks_a_node = 2});
}

TEST(Reductions, UncompressedSumsAreExactInRankOrder) {
  on_ranks([](Communicator& comm) {
    for (const std::string name : {"sra", "all-to-all"}) {
      constexpr int64_t kCount = 50'003;
      Reducer reducer(comm, name,
                      {{.first = 0, .count = kCount, .format = plain_format(DType::fp32)}});
      std::vector<float> x = values(comm.rank(), 5, kCount);
      reducer.run(x);
      EXPECT_TRUE(same_bits(x, expected_sum(comm.size(), 5, kCount))) << name;
    }
  });
}

/// Plain elements beside encoded ones have the bits of a sum without a wire.
template <class T>
void plain_beside_encoded(Communicator& comm) {
  constexpr int64_t kCount = 40'009;
  std::vector<T> x = values_of<T>(comm.rank(), 9, kCount);
  Arena arena;
  Stream stream(arena, 1);
  Wire wire(kernels::by_name("cpu"), stream,
            {{.first = 0, .count = kCount - 1, .format = plain_format(dtype_of<T>())},
             {.first = kCount - 1, .count = 1, .format = format_of({.name = "sign"})}});
  const auto reduction = make_reduction("sra", comm, arena, {});
  reduction->start({.data = flat_of(x), .wire = &wire});
  reduction->wait(comm);
  std::vector<T> want = expected_of<T>(comm.size(), 9, kCount);
  x.pop_back();
  want.pop_back();
  EXPECT_TRUE(same_bits(x, want));
}

TEST(Reductions, APlainWireChangesNoBit) {
  on_ranks(plain_beside_encoded<float>);
  on_ranks(plain_beside_encoded<bf16>);
}

/// Sent values plus error feedback equal the input over several steps, for any distribution of
/// encoding among ranks: nothing is lost.
TEST(Reductions, ErrorFeedbackKeepsTheErrorOfTheSums) {
  on_ranks(
      [](Communicator& comm) {
        constexpr int64_t kCount = 10'007;
        constexpr int kSteps = 4;
        for (const std::string& name : kReductions) {
          for (const std::string& codec : lossy_codecs()) {
            SCOPED_TRACE(name + " " + codec);
            Reducer reducer(
                comm, name,
                {{.first = 0, .count = kCount, .format = format_of(parallel::parse_codec(codec))}});
            std::vector<float> error(kCount);
            reducer.wire.set_feedback(flat_of(error));
            std::vector<double> sent(kCount);
            std::vector<double> wanted(kCount);
            for (int step = 0; step < kSteps; ++step) {
              std::vector<float> x = gradient(comm.rank(), step, kCount);
              reducer.run(x, step);
              const auto sum = exact_sum(comm.size(), step, kCount);
              for (int64_t i = 0; i < kCount; ++i) {
                sent[i] += double{x[i]};
                wanted[i] += sum[i];
              }
            }
            std::vector<double> kept(error.begin(), error.end());
            all_reduce_small(comm, kept, Combine::sum);
            double worst = 0;
            double lost = 0;
            for (int64_t i = 0; i < kCount; ++i) {
              worst = std::max(worst, std::abs(sent[i] + kept[i] - wanted[i]));
              lost = std::max(lost, std::abs(kept[i]));
            }
            EXPECT_LT(worst, 2e-5 * comm.size());
            const bool apart = name != "hierarchical" || comm.members().node.back() > 0;
            EXPECT_EQ(lost > 0, comm.size() > 1 && apart);
          }
        }
      },
      {.timeout = 60, .ranks_a_node = 2});
}

/// Kept errors of a codec are sent with the next gradient, even if that is sent uncompressed.
TEST(Reductions, UncompressedSumsSendKeptErrors) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kCount = 3'001;
    for (const std::string& name : kReductions) {
      Reducer reducer(comm, name,
                      {{.first = 0, .count = kCount, .format = plain_format(DType::fp32)}});
      std::vector<float> error(kCount, 0.25F);
      reducer.wire.set_feedback(flat_of(error));
      std::vector<float> x(kCount, 1.0F);
      reducer.run(x);
      std::vector<double> kept(error.begin(), error.end());
      all_reduce_small(comm, kept, Combine::sum);
      for (int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(double{x[i]} + kept[i], 1.25 * comm.size()) << name << " " << i;
      }
    }
  });
}

/// Bytes of each message of elements [first, first + count), computed by hand.
int64_t bytes_by_hand(const std::string& codec, int64_t count) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (codec == "maxmin:4:512") {
    return 8 * up(count, 512) + up(4 * count, 8);
  }
  if (codec == "sign:1024") {
    return 4 * up(count, 1024) + up(count, 8);
  }
  return codec == "dynamic8:1024" ? 4 * up(count, 1024) + count : 2 * count;
}

TEST(Reductions, SendTheBytesOfTheFormula) {
  on_ranks([](Communicator& comm) {
    const int p = comm.size();
    // Slices of whole pieces of 4,096 elements, so that a message is one piece on every rank.
    const int64_t count = int64_t{4096} * p * 3;
    for (const std::string codec : {"maxmin:4:512", "sign:1024", "dynamic8:1024", "fp16"}) {
      const int64_t piece = bytes_by_hand(codec, 4096);
      const std::map<std::string, int64_t> pieces{
          {"sra", 2 * 3 * (p - 1)}, {"ring", 2 * 3 * (p - 1)}, {"all-to-all", 3 * p * (p - 1)}};
      for (const auto& [name, messages] : pieces) {
        Reducer reducer(
            comm, name,
            {{.first = 0, .count = count, .format = format_of(parallel::parse_codec(codec))}});
        std::vector<float> x = gradient(comm.rank(), 1, count);
        // Pieces of 16 KiB need staging for the window of all peers.
        reducer.reduction = make_reduction(name, comm, reducer.arena,
                                           {.piece_bytes = 16'384, .staging_bytes = 64 << 20});
        const Sent before = comm.sent(Traffic::allreduce);
        reducer.run(x);
        EXPECT_EQ(comm.sent(Traffic::allreduce).bytes - before.bytes, messages * piece)
            << codec << " " << name;
      }
    }
  });
}

/// Combined savings of sparsity and codecs, compared with a dense gradient in 16 bits around a
/// ring.
TEST(Reductions, SparseGradientsInFewBitsSendASmallShareOfTheDenseBytes) {
  on_ranks([](Communicator& comm) {
    const auto sent = [&](const std::string& name, const std::string& codec, int64_t count) {
      Reducer reducer(
          comm, name,
          {{.first = 0, .count = count, .format = format_of(parallel::parse_codec(codec))}});
      reducer.reduction = make_reduction(name, comm, reducer.arena);
      std::vector<float> x = gradient(comm.rank(), 1, count);
      const int64_t before = comm.sent(Traffic::allreduce).bytes;
      reducer.run(x);
      double bytes = static_cast<double>(comm.sent(Traffic::allreduce).bytes - before);
      all_reduce_small(comm, {&bytes, 1}, Combine::sum);
      return bytes;
    };
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kDense = 1'500'000;
    const double dense = sent("ring", "fp16", kDense);
    EXPECT_LE(sent("sra", "fp16", kDense / 10), dense / 9);
    EXPECT_LE(sent("sra", "maxmin:4:512", kDense / 10), dense / 35);
    EXPECT_LE(sent("sra", "sign:1024", kDense / 10), dense / 130);
  });
}

TEST(Reductions, HierarchicalSendsEncodedBytesBetweenMachinesOnly) {
  parallel::run_ranks(
      5,
      [](Communicator& comm) {  // machines of 2, 2 and 1 ranks: one owner
        constexpr int64_t kCount = 8192;
        Reducer reducer(comm, "hierarchical",
                        {{.first = 0, .count = kCount, .format = format_of({.name = "linear8"})}});
        std::vector<float> x = gradient(comm.rank(), 2, kCount);
        const int64_t before = comm.sent(Traffic::allreduce).bytes;
        reducer.run(x);
        const int64_t sent = comm.sent(Traffic::allreduce).bytes - before;
        const bool owner = comm.rank() % 2 == 0;
        const int64_t within = comm.rank() == 4 ? 0 : kCount * 4;
        const int64_t third = kCount / 3;
        if (owner) {
          EXPECT_NEAR(static_cast<double>(sent - within), 4.0 * static_cast<double>(third), 100);
        } else {
          EXPECT_EQ(sent, within);
        }
        EXPECT_TRUE(equal_everywhere(comm, x));
      },
      {.timeout = 60, .ranks_a_node = 2});
}

TEST(Reductions, NonFiniteValuesReachAllRanksButNotTheFeedback) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    constexpr int64_t kCount = 5'000;
    for (const std::string& name : kReductions) {
      for (const auto& [codec, loss] : codec_samples()) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          Reducer reducer(
              comm, name,
              {{.first = 0, .count = kCount, .format = format_of(parallel::parse_codec(codec))}});
          std::vector<float> error(kCount);
          reducer.wire.set_feedback(flat_of(error));
          std::vector<float> x = gradient(comm.rank(), 3, kCount);
          if (comm.rank() == comm.size() - 1) {
            x[1234] = bad;
          }
          reducer.run(x);
          EXPECT_FALSE(std::isfinite(x[1234])) << name << " " << codec;
          EXPECT_TRUE(std::ranges::all_of(error, [](float e) { return std::isfinite(e); }));
        }
      }
    }
  });
}

TEST(Reductions, AreRefusedByNameAndWhereTheyCannotWork) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    try {
      make_reduction("tree", comm, arena);
      ADD_FAILURE() << "no such reduction";
    } catch (const Failure& error) {
      EXPECT_THAT(error.what(), HasSubstr("use one of sra, ring, all-to-all, hierarchical, mpi"));
    }
    if (comm.size() > 1) {
      Reducer reducer(comm, "mpi",
                      {{.first = 0, .count = 100, .format = format_of({.name = "sign"})}});
      std::vector<float> x(100, 1.0F);
      EXPECT_THROW(reducer.run(x), Failure);
    }
  });
}

TEST(Reductions, MpiSumsUncompressedElements) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    const auto reduction = make_reduction("mpi", comm, arena);
    std::vector<float> x = gradient(comm.rank(), 8, 20'000);
    std::vector<bf16> y;
    std::ranges::transform(x, std::back_inserter(y), to_bf16);
    if (comm.size() > 1 && comm.name() != "mpi") {
      EXPECT_THROW(reduction->start({.data = flat_of(x)}), Failure);
      return;
    }
    reduction->start({.data = flat_of(x)});
    reduction->wait(comm);
    reduction->start({.data = flat_of(y)});
    reduction->wait(comm);
    const auto want = exact_sum(comm.size(), 8, 20'000);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(x[i], want[i], 1e-5);
      ASSERT_NEAR(to_float(y[i]), want[i], 0.02 * comm.size());
    }
    EXPECT_TRUE(equal_everywhere(comm, x));
  });
}

TEST(Reductions, NameMissingRanksWhereOneDoesNotTakePart) {
  on_ranks([](Communicator& comm) {
    for (const std::string& name : kReductions) {
      const auto part = comm.split(0, comm.rank());
      Reducer reducer(*part, name,
                      {{.first = 0, .count = 50'000, .format = format_of({.name = "linear8"})}});
      if (comm.size() > 1 && comm.rank() != comm.size() - 1) {
        part->set_timeout(0.3);
        std::vector<float> x(50'000, 1.0F);
        try {
          reducer.run(x);
          ADD_FAILURE() << "it cannot be done";
        } catch (const PeerLost& error) {
          EXPECT_THAT(error.what(), HasSubstr("while summing gradients"));
          EXPECT_FALSE(error.ranks().empty());
        }
      }
      barrier(comm);
    }
  });
}

}  // namespace
}  // namespace espalier::parallel::reduction_mpi_test
