// Prunes whole b x b blocks of the matrix view by their mean norm, sqrt(sum w² / area), or at
// random, equally many in each row and each column of blocks. The area of a block at the right or
// lower edge counts elements within the matrix. Blocks are kept in descending order of the norm
// until the number of kept elements is nearest to the target, at least one block; so the count is
// exact to half a block. Source: Gray, Radford and Kingma, "GPU kernels for block-sparse weights",
// 2017.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "pruning/block_grid.h"
#include "pruning/drop_grow.h"
#include "pruning/registry.h"
#include "pruning/selection.h"

namespace espalier::pruning {
namespace {

struct Block {
  uint32_t key = 0;
  uint32_t candidate = 0;
  uint32_t number = 0;  ///< row-major among the blocks of the matrix
  uint32_t kept = 0;    ///< elements kept now, > 0
};

/// A random order of `count` lines.
std::vector<int64_t> shuffled(int64_t count, uint64_t seed, std::string_view name,
                              uint64_t counter) {
  RandomKeys key(seed, name, counter);
  std::vector<std::pair<uint32_t, int64_t>> order;
  for (int64_t i = 0; i < count; ++i) {
    order.emplace_back(key(i), i);
  }
  std::ranges::sort(order);
  std::vector<int64_t> lines;
  for (const auto& [drawn, line] : order) {
    lines.push_back(line);
  }
  return lines;
}

/// Keys by block, drawn so that any number of the largest is balanced: rows of blocks differ by at
/// most one, and so do columns. Keys fall evenly along the diagonals of the grid, whose rows and
/// columns are shuffled. At 90 % and 8 x 8 blocks, independent keys would leave two rows of five
/// empty.
std::vector<uint32_t> balanced_keys(const BlockGrid& grid, const Candidate& candidate,
                                    uint64_t seed) {
  const std::vector<int64_t> rows = shuffled(grid.down(), seed, candidate.name, 0);
  const std::vector<int64_t> cols = shuffled(grid.across(), seed, candidate.name, 1);
  const int64_t diagonal = grid.count() > 0 ? std::lcm(grid.down(), grid.across()) : 1;
  std::vector<uint32_t> keys(static_cast<size_t>(grid.count()));
  for (int64_t i = 0; i < grid.count(); ++i) {
    const int64_t row = rows[static_cast<size_t>(i % grid.down())];
    const int64_t col = cols[static_cast<size_t>((i + i / diagonal) % grid.across())];
    const double left = static_cast<double>(grid.count() - i) / static_cast<double>(grid.count());
    keys[static_cast<size_t>(row * grid.across() + col)] = static_cast<uint32_t>(left * 0xffffffff);
  }
  return keys;
}

/// Adds the blocks of a matrix that keep elements now. Keys are mean norms, or `random`.
void add_blocks(const Candidate& candidate, uint32_t number, const sparse::Mask& mask,
                const Settings& settings, bool random, std::vector<Block>& blocks) {
  const BlockGrid grid(candidate.shape, settings.block);
  std::vector<double> sums(static_cast<size_t>(grid.count()));
  std::vector<uint32_t> kept(sums.size());
  const float* value = candidate.values.data();
  grid.for_each(mask, [&](int64_t, size_t block) {
    const double x = random ? 0 : *value++;
    sums[block] += x * x;
    ++kept[block];
  });
  const std::vector<uint32_t> random_keys =
      random ? balanced_keys(grid, candidate, settings.seed) : std::vector<uint32_t>();
  for (size_t i = 0; i < sums.size(); ++i) {
    if (kept[i] > 0) {
      const auto block = static_cast<int64_t>(i);
      const double mean = sums[i] / static_cast<double>(grid.area(block));
      blocks.push_back(
          {.key = random ? random_keys[i] : magnitude_key(static_cast<float>(std::sqrt(mean))),
           .candidate = number,
           .number = static_cast<uint32_t>(i),
           .kept = kept[i]});
    }
  }
}

/// The blocks of all ranks in order of parameter and position; candidates are numbered over all
/// ranks.
std::vector<Block> gather_blocks(std::vector<Block> mine, const GlobalSelection* selection) {
  if (selection == nullptr) {
    return mine;
  }
  for (Block& block : mine) {
    block.candidate = static_cast<uint32_t>(selection->mine[block.candidate]);
  }
  std::vector<Block> all;
  for (const auto& bytes : selection->gather(std::as_bytes(std::span(mine)))) {
    if (bytes.empty()) {
      continue;  // a rank without candidates
    }
    const size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(Block));
    std::memcpy(static_cast<void*>(all.data() + before), bytes.data(), bytes.size());
  }
  std::ranges::stable_sort(all, {}, &Block::candidate);
  return all;
}

/// Number of leading blocks whose kept elements are nearest to `target`.
size_t nearest_count(std::span<const Block> blocks, int64_t target) {
  int64_t kept = 0;
  size_t count = 0;
  while (count < blocks.size() && kept < target) {
    kept += blocks[count++].kept;
  }
  const bool last_goes_too_far =
      count > 1 && kept - target > target - (kept - int64_t{blocks[count - 1].kept});
  return last_goes_too_far ? count - 1 : count;
}

sparse::IndexShape shape(const io::PruningConfig& config) {
  return {.height = config.block, .width = config.block};
}

Result choose_blocks(std::span<const Candidate> candidates, const Settings& settings, bool random) {
  Result result{.masks = current_masks(candidates), .warnings = {}};
  for (const Group& group : groups(candidates, settings, result.warnings)) {
    std::vector<Block> blocks;
    for (size_t i = group.first; i < group.first + group.count; ++i) {
      add_blocks(candidates[i], static_cast<uint32_t>(i), result.masks[i], settings, random,
                 blocks);
    }
    const GlobalSelection* selection = global_selection_of(settings);
    blocks = gather_blocks(std::move(blocks), selection);
    // Blocks are in order of parameter and position; the stable sort keeps this order for ties.
    std::ranges::stable_sort(blocks, [](const Block& a, const Block& b) { return a.key > b.key; });
    blocks.resize(nearest_count(blocks, group.keep));
    std::ranges::sort(blocks, {}, &Block::candidate);
    for (size_t i = group.first; i < group.first + group.count; ++i) {
      const BlockGrid grid(candidates[i].shape, settings.block);
      sparse::Mask kept(grid.count(), false);
      const auto number = static_cast<uint32_t>(selection != nullptr ? selection->mine[i] : i);
      for (const Block& block : std::ranges::equal_range(blocks, number, {}, &Block::candidate)) {
        kept.set(block.number, true);
      }
      sparse::Mask& mask = result.masks[i];
      grid.for_each(mask, [&](int64_t position, size_t block) {
        if (!kept[static_cast<int64_t>(block)]) {
          mask.set(position, false);
        }
      });
    }
  }
  return result;
}

Result largest_blocks(std::span<const Candidate> candidates, const Settings& settings) {
  return choose_blocks(candidates, settings, false);
}

Result random_blocks(std::span<const Candidate> candidates, const Settings& settings) {
  return choose_blocks(candidates, settings, true);
}

}  // namespace

extern const Method kBlocks{
    .name = "block",
    .help = "whole square blocks with the largest mean norm",
    .run = largest_blocks,
    .shape = shape,
};

extern const Method kRandomBlocks{
    .name = "random-block",
    .help = "whole square blocks, drawn at random, balanced over rows and columns",
    .run = random_blocks,
    .needs_values = false,
    .random = true,
    .shape = shape,
};

extern const Method kRiglBlocks{
    .name = "rigl-block",
    .help = "rigl with whole blocks: norms of their values and gradients",
    .run = largest_blocks,
    .shape = shape,
    .every = 100,
    .kind = Moving{.grow = grow_by_gradient, .by_gradient = true, .start = "random-block"},
};

extern const Method kSetBlocks{
    .name = "set-block",
    .help = "set with whole blocks",
    .run = largest_blocks,
    .shape = shape,
    .every = 100,
    .kind = Moving{.grow = grow_at_random, .start = "random-block"},
};

}  // namespace espalier::pruning
