// The longest message of a reduction, which is found without looking at every piece, and the bytes
// that reductions plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "parallel/reduction/registry.h"
#include "parallel/transport/planned_communicator.h"
#include "parallel/transport/thread_communicator.h"
#include "parallel/wire/codec.h"
#include "src/kernels/backend.h"

namespace espalier::parallel::slice_pieces_test {
namespace {

/// Segments of random sizes and formats, some with gaps between them.
std::vector<WireSegment> random_segments(std::mt19937& random, int64_t& total) {
  const std::vector<std::string> codecs{"maxmin:4", "maxmin:8:64", "topk:0.1", "fp32"};
  std::vector<WireSegment> segments;
  total = 0;
  for (int i = 0; i < 12; ++i) {
    total += static_cast<int64_t>(random() % 3 == 0 ? random() % 50 : 0);
    const auto count = static_cast<int64_t>(random() % (i % 3 == 0 ? 5000 : 200));
    segments.push_back({.first = total,
                        .count = count,
                        .format = format_of(parse_codec(codecs[random() % codecs.size()]))});
    total += count;
  }
  total += static_cast<int64_t>(random() % 20);
  return segments;
}

TEST(SlicePieces, LongestMessageIsThatOfAllPieces) {
  std::mt19937 random(5);
  Arena arena;
  Stream stream(arena, 1);
  for (int round = 0; round < 300; ++round) {
    int64_t total = 0;
    Wire wire(kernels::by_name("cpu"), stream, random_segments(random, total));
    std::vector<float> numbers(static_cast<size_t>(total));
    const SliceJob job{.data = Tensor(numbers.data(), DType::fp32, Shape{total}), .wire = &wire};
    const int ranks = 1 + static_cast<int>(random() % 5);
    const int64_t piece = 16 * (1 + static_cast<int64_t>(random() % 60));
    const std::vector<int64_t> edges = edges_of(job, ranks);
    const SlicePieces pieces(job, edges, piece);
    size_t longest = 0;
    for (int slice = 0; slice < ranks; ++slice) {
      for (int64_t index = 0; index < pieces.count(slice); ++index) {
        longest = std::max(longest, pieces.at(slice, index).bytes);
      }
    }
    ASSERT_EQ(pieces.longest_message(), longest) << round;
  }
}

/// A plan reserves on a dry arena, without messages, the bytes that a reduction of a run allocates.
TEST(SlicePieces, AreReservedAsARunAllocatesThem) {
  constexpr int64_t kElements = 60'000;
  const kernels::Kernels& dry = *kernels::planning("cpu").kernels;
  for (const ReductionEntry* entry : reductions()) {
    for (const char* codec : {"fp32", "maxmin:4", "topk:0.1"}) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        for (const int ranks_a_node : {0, 1, 2, 3}) {
          if (!entry->takes_codecs) {
            continue;  // sums of MPI and NCCL, which have memory of their own
          }
          SCOPED_TRACE(
              fmt::format("{} {} {} {}", entry->name, codec, name_of(dtype), ranks_a_node));
          const WireSegment segment{
              .first = 0, .count = kElements, .format = format_of(parse_codec(codec))};
          const auto bytes_of = [&](Communicator& comm, Arena& arena, const Tensor& data,
                                    const kernels::Kernels& kernels, bool runs) {
            Stream stream(arena, 1);
            Wire wire(kernels, stream, {segment});
            const auto reduction = make_reduction(entry->name, comm, arena);
            const SliceJob job{.data = data, .wire = &wire};
            if (runs) {
              reduction->start(job);
              reduction->wait(comm);
            } else {
              reduction->reserve(job);
            }
            return arena.use(Memory::communication).now;
          };
          run_ranks(4,
                    [&](Communicator& comm) {
                      std::vector<float> numbers(kElements);
                      Arena arena;
                      const Tensor data(numbers.data(), dtype, Shape{kElements});
                      const size_t used =
                          bytes_of(comm, arena, data, kernels::by_name("cpu"), true);
                      PlannedCommunicator planned(comm.members());
                      Arena counts(true);
                      const size_t reserved = bytes_of(planned, counts, data, dry, false);
                      EXPECT_TRUE(reserved == used || (comm.local_rank() > 0 && reserved > used))
                          << reserved << " " << used << " of rank " << comm.rank();
                    },
                    {.ranks_a_node = ranks_a_node});
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::parallel::slice_pieces_test
