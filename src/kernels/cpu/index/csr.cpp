// Kept elements by rows and by columns. Built once per mask, by plain loops on one thread.
#include <algorithm>
#include <bit>

#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Calls visit(position), ascending.
template <class Visit>
void for_each_kept(const Positions& p, const Visit& visit) {
  if (p.bitmap == nullptr) {
    for (int64_t k = 0; k < p.count; ++k) {
      visit(p.list == nullptr ? k : p.list[k] - p.first);
    }
    return;
  }
  for (int64_t first = 0; first < p.size; first += 64) {
    uint64_t word = p.bitmap[first / 64];
    if (p.size - first < 64) {  // beyond `size` the bitmap may belong to another array
      word &= (uint64_t{1} << (p.size - first)) - 1;
    }
    for (; word != 0; word &= word - 1) {
      visit(first + std::countr_zero(word));
    }
  }
}

int32_t* ints(const Tensor& t) { return static_cast<int32_t*>(t.data); }

/// Replaces each count by the sum of those before it; the last one becomes the total.
void sum_up(int32_t* counts, int64_t n) {
  int32_t before = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t count = counts[i];
    counts[i] = before;
    before += count;
  }
}

}  // namespace

void csr(Stream&, const CsrArgs& args) {
  int32_t* const row_begin = ints(args.row_begin);
  int32_t* const column_begin = ints(args.column_begin);
  int32_t* const column = ints(args.column);
  std::fill_n(row_begin, args.rows + 1, 0);
  std::fill_n(column_begin, args.cols + 1, 0);
  int64_t count = 0;
  for_each_kept(args.positions, [&](int64_t position) {
    column[count] = static_cast<int32_t>(position % args.cols);
    ++row_begin[position / args.cols];
    ++column_begin[column[count]];
    ++count;
  });
  sum_up(row_begin, args.rows + 1);
  sum_up(column_begin, args.cols + 1);
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int32_t k = row_begin[row]; k < row_begin[row + 1]; ++k) {
      const int32_t place = column_begin[column[k]]++;
      ints(args.row)[place] = static_cast<int32_t>(row);
      ints(args.order)[place] = k;
    }
  }
  // Each entry has advanced to the end of its column, where the next one begins.
  std::copy_backward(column_begin, column_begin + args.cols, column_begin + args.cols + 1);
  column_begin[0] = 0;
}

}  // namespace espalier::kernels::ESPALIER_ISA
