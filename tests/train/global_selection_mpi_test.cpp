// Parameters on different ranks that compete in one global threshold: each rank gets the masks of
// one rank with all of them, to the element, including ties.
#include "src/train/masks/pruner.h"

#include <gtest/gtest.h>

#include "src/core/rng.h"
#include "tests/support/ranks.h"

namespace espalier::train::global_selection_mpi_test {
namespace {

using pruning::Candidate;
using pruning::Result;
using pruning::Settings;
using sparse::Index;
using sparse::Mask;

constexpr size_t kCount = 6;

/// Parameters of several sizes with few different values, hence many ties.
struct Parameters {
  Parameters() {
    for (size_t i = 0; i < kCount; ++i) {
      shapes.push_back(Shape{static_cast<int64_t>(7 + 5 * i), static_cast<int64_t>(30 - 3 * i)});
      names.push_back(fmt::format("blocks.{}.weight", i));
      indices.push_back(Index::full(shapes.back().count()));
      auto& some = values.emplace_back();
      for (int64_t at = 0; at < shapes.back().count(); ++at) {
        const uint64_t bits = mix(i, static_cast<uint64_t>(at));
        some.push_back(static_cast<float>(bits % 9) - 4.0F);
      }
    }
  }
  Candidate candidate(size_t i) const {
    return {.name = names[i], .shape = shapes[i], .index = &indices[i], .values = values[i]};
  }
  std::vector<Shape> shapes;
  std::vector<std::string> names;
  std::vector<Index> indices;
  std::vector<std::vector<float>> values;
};

/// Owner of each parameter: round-robin, in contiguous runs, or all on the last rank.
size_t owner(const std::string& way, size_t i, size_t ranks) {
  return way == "turns" ? i % ranks : way == "runs" ? i * ranks / kCount : ranks - 1;
}

TEST(GlobalSelection, EveryRankGetsItsPartOfTheWhole) {
  const Parameters all;
  std::vector<Candidate> whole;
  for (size_t i = 0; i < kCount; ++i) {
    whole.push_back(all.candidate(i));
  }
  on_ranks([&](parallel::Communicator& comm) {
    const auto ranks = static_cast<size_t>(comm.size());
    for (const std::string way : {"turns", "runs", "last"}) {
      std::vector<size_t> mine;
      std::vector<Candidate> candidates;
      for (size_t i = 0; i < kCount; ++i) {
        if (owner(way, i, ranks) == static_cast<size_t>(comm.rank())) {
          mine.push_back(i);
          candidates.push_back(all.candidate(i));
        }
      }
      const pruning::GlobalSelection global_selection = make_global_selection(comm, kCount, mine);
      for (const std::string method :
           {"magnitude", "random", "block", "random-block", "nm", "random-nm"}) {
        for (const auto scope : {pruning::Scope::global, pruning::Scope::layer}) {
          for (const double sparsity : {0.0, 0.3, 0.5, 0.9, 0.99}) {
            SCOPED_TRACE(
                fmt::format("{} {} {} {}", way, method, static_cast<int>(scope), sparsity));
            Settings settings{
                .method = method, .sparsity = sparsity, .scope = scope, .seed = 3, .block = 4};
            const Result expected = pruning::prune(whole, settings);
            settings.global_selection = &global_selection;
            const Result got = pruning::prune(candidates, settings);
            ASSERT_EQ(got.masks.size(), mine.size());
            for (size_t i = 0; i < mine.size(); ++i) {
              EXPECT_EQ(got.masks[i], expected.masks[mine[i]]) << all.names[mine[i]];
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace espalier::train::global_selection_mpi_test
