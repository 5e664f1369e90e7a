#include "src/kernels/cpu/block/plan.h"

#include <algorithm>

#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {
namespace {

/// Elements of block `index` along an axis of `size` elements.
int64_t extent(int64_t size, int64_t block, int64_t index) {
  return std::min(block, size - index * block);
}

int64_t strips_of(int64_t extent) { return (extent + kWideStrip - 1) / kWideStrip; }
int32_t lanes_of(int64_t count) { return count > kThinStrip ? kWideStrip : kThinStrip; }

/// Outputs of one line of blocks, and the inputs that it keeps.
struct Line {
  int64_t outputs = 0;
  int64_t inputs = 0;
};

Line row_line(const BlockMatrix& weight, int64_t row) {
  const int64_t height = extent(weight.rows, weight.height, row);
  return {height, (weight.value_begin[row + 1] - weight.value_begin[row]) / height};
}

/// Sums the inputs over the blocks of a column.
Line column_line(const BlockMatrix& weight, const BlockPlan& plan, int64_t column) {
  Line line{extent(weight.cols, weight.width, column), 0};
  for (int32_t e = plan.entry_begin[column]; e < plan.entry_begin[column + 1]; ++e) {
    line.inputs += extent(weight.rows, weight.height, plan.entries[e].row);
  }
  return line;
}

/// Upper bounds on the parts of a plan.
struct Sizes {
  int64_t strips = 0, words = 0, lanes = 0, entries = 0, lines = 0;
};

/// Upper bound on the blocks of a weight, from its number of kept elements: all blocks but those at
/// the edges are whole.
int64_t most_blocks(const BlockMatrix& weight) {
  return weight.values.count() / (weight.height * weight.width) + block_rows(weight) +
         block_columns(weight);
}

/// Exact for a weight; an upper bound for a plan on a dry arena, whose lists cannot be read.
Sizes sizes_of(const BlockMatrix& weight, const BlockPlanOptions& options, bool dry) {
  const int64_t rows = block_rows(weight);
  Sizes sizes;
  sizes.entries = dry ? most_blocks(weight) : weight.block_begin[rows];
  const int64_t outputs = options.transposed ? weight.cols : weight.rows;
  const int64_t block = options.transposed ? weight.width : weight.height;
  const int64_t step = options.pairs ? 2 : 1;
  sizes.lines = options.transposed ? block_columns(weight) : rows;
  sizes.strips = sizes.lines * strips_of(std::min(block, outputs));
  if (dry) {
    sizes.words = sizes.entries * (options.transposed ? weight.height : weight.width) / step;
  }
  for (int64_t row = 0; row < rows && !dry; ++row) {
    const Line line = row_line(weight, row);
    const int64_t blocks = weight.block_begin[row + 1] - weight.block_begin[row];
    sizes.words += options.transposed ? blocks * line.outputs / step : line.inputs / step;
  }
  // A line of `block` outputs takes at most this many lanes.
  const int64_t rest = block % kWideStrip;
  sizes.lanes = sizes.words * (block / kWideStrip * kWideStrip + (rest == 0 ? 0 : lanes_of(rest)));
  return sizes;
}

BlockPlan carve(Carver& carver, const Sizes& sizes, const BlockPlanOptions& options) {
  BlockPlan plan;
  plan.strips = carver.take<BlockStrip>(sizes.strips);
  plan.offsets = carver.take<int32_t>(sizes.words);
  plan.panels = carver.take<uint32_t>(sizes.lanes);
  if (options.transposed) {
    plan.entry_begin = carver.take<int32_t>(sizes.lines + 1);
    plan.entries = carver.take<BlockEntry>(sizes.entries);
  }
  plan.extra = carver.take<std::byte>(static_cast<int64_t>(options.extra_bytes));
  return plan;
}

/// Sorts the blocks by column (counting sort); rows ascend within a column.
void fill_entries(const BlockMatrix& weight, const BlockPlan& plan) {
  const int64_t columns = block_columns(weight);
  const int64_t rows = block_rows(weight);
  std::fill(plan.entry_begin, plan.entry_begin + columns + 1, 0);
  for (int32_t b = 0; b < weight.block_begin[rows]; ++b) {
    ++plan.entry_begin[weight.block_column[b] + 1];
  }
  for (int64_t column = 0; column < columns; ++column) {
    plan.entry_begin[column + 1] += plan.entry_begin[column];
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t place = 0;
    for (int32_t b = weight.block_begin[row]; b < weight.block_begin[row + 1]; ++b) {
      const int32_t column = weight.block_column[b];
      plan.entries[plan.entry_begin[column]++] = {static_cast<int32_t>(row),
                                                  static_cast<int32_t>(place)};
      place += extent(weight.cols, weight.width, column);
    }
  }
  // Each begin has advanced to the next column's.
  std::copy_backward(plan.entry_begin, plan.entry_begin + columns, plan.entry_begin + columns + 1);
  plan.entry_begin[0] = 0;
}

/// Lists the words of inputs [first, first + count).
int32_t* list(int64_t first, int64_t count, const BlockPlanOptions& options, int32_t* out) {
  const int64_t step = options.pairs ? 2 : 1;
  for (int64_t i = first; i < first + count; i += step) {
    *out++ = static_cast<int32_t>(i * options.element_bytes);
  }
  return out;
}

int32_t* list_row(const BlockMatrix& weight, int64_t row, const BlockPlanOptions& options,
                  int32_t* out) {
  for (int32_t b = weight.block_begin[row]; b < weight.block_begin[row + 1]; ++b) {
    const int32_t column = weight.block_column[b];
    out = list(column * weight.width, extent(weight.cols, weight.width, column), options, out);
  }
  return out;
}

int32_t* list_column(const BlockMatrix& weight, const BlockPlan& plan, int64_t column,
                     const BlockPlanOptions& options, int32_t* out) {
  for (int32_t e = plan.entry_begin[column]; e < plan.entry_begin[column + 1]; ++e) {
    const int32_t row = plan.entries[e].row;
    out = list(row * weight.height, extent(weight.rows, weight.height, row), options, out);
  }
  return out;
}

}  // namespace

int64_t block_rows(const BlockMatrix& weight) {
  return (weight.rows + weight.height - 1) / weight.height;
}

int64_t block_columns(const BlockMatrix& weight) {
  return (weight.cols + weight.width - 1) / weight.width;
}

BlockPlan plan_blocks(Stream& stream, const BlockMatrix& weight, const BlockPlanOptions& options) {
  const bool dry = stream.arena().dry();
  const Sizes sizes = sizes_of(weight, options, dry);
  Carver counter;
  carve(counter, sizes, options);
  Carver carver{stream.workspace(counter.used)};
  BlockPlan plan = carve(carver, sizes, options);
  if (dry) {
    return plan;
  }
  if (options.transposed) {
    fill_entries(weight, plan);
  }
  const int64_t block = options.transposed ? weight.width : weight.height;
  const int64_t step = options.pairs ? 2 : 1;
  int32_t* offsets = plan.offsets;
  int64_t panel = 0;
  for (int64_t at = 0; at < sizes.lines; ++at) {
    const Line line = options.transposed ? column_line(weight, plan, at) : row_line(weight, at);
    const int64_t begin = offsets - plan.offsets;
    offsets = options.transposed ? list_column(weight, plan, at, options, offsets)
                                 : list_row(weight, at, options, offsets);
    for (int64_t inside = 0; inside < line.outputs; inside += kWideStrip) {
      const int64_t count = std::min<int64_t>(kWideStrip, line.outputs - inside);
      const BlockStrip strip{.first = at * block + inside,
                             .count = static_cast<int32_t>(count),
                             .lanes = lanes_of(count),
                             .line = static_cast<int32_t>(at),
                             .inside = static_cast<int32_t>(inside),
                             .words = line.inputs / step,
                             .offsets = begin,
                             .panel = panel};
      plan.strips[plan.strip_count++] = strip;
      panel += strip.words * strip.lanes;
    }
  }
  return plan;
}

}  // namespace espalier::kernels::cpu
