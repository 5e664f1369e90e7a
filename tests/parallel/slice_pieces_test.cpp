// The longest message of a reduction, which is found without looking at every piece, and the bytes
// that reductions plan.
#include <gtest/gtest.h>

#include <random>

#include "parallel/reduction/sra.h"
#include "parallel/wire/codec.h"

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

/// The plan of an array is what its reduction reserves, if pieces fill its slices.
TEST(SlicePieces, PlannedBytesAreThoseOfStaging) {
  Arena arena;
  Stream stream(arena, 1);
  constexpr int64_t kElements = int64_t{1} << 20;
  std::vector<float> numbers(kElements);
  Wire wire(kernels::by_name("cpu"), stream,
            {{.first = 0, .count = kElements, .format = format_of(parse_codec("maxmin:8"))}});
  const Tensor data(numbers.data(), DType::fp32, Shape{kElements});
  // Two ranks: four pieces of 256 KiB from the other rank; encoded three times that and the sums.
  EXPECT_EQ(sra_workspace(reduced_array({.data = data}, 2)).bytes(), size_t{4} << 18U);
  const size_t message = whole_lines(wire.bytes(0, 1 << 16));
  const Workspace encoded = sra_workspace(reduced_array({.data = data, .wire = &wire}, 2));
  EXPECT_EQ(encoded.staging, 16 * message);
  EXPECT_EQ(encoded.sums, size_t{1} << 18U);
  EXPECT_EQ(sra_workspace(reduced_array({.data = data, .wire = &wire}, 1)).bytes(), 0U);
}

}  // namespace
}  // namespace espalier::parallel::slice_pieces_test
