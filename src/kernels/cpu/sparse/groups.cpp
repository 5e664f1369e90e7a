#include "src/kernels/cpu/sparse/groups.h"

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/sparse/columns.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Counts the elements of each row; rows_with[c] = number of rows with c elements.
void count_rows(const TileBits& in, int64_t rows, uint16_t (&rows_with)[kMostPanel + 1]) {
  for (int64_t r = 0; r < rows; ++r) {
    int count = 0;
    for (int w = 0; w < in.panel_words; ++w) {
      count += __builtin_popcountll(in.words[r * in.panel_words + w]);
    }
    in.counts[r] = static_cast<uint8_t>(count);
    ++rows_with[count];
  }
}

using Bytes [[gnu::vector_size(16), gnu::aligned(1), gnu::may_alias]] = uint8_t;

[[gnu::always_inline]] inline Bytes low_bytes(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
[[gnu::always_inline]] inline Bytes high_bytes(Bytes a, Bytes b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

/// to[e Rows + r] = from[r stride + e], e < count. Whole vectors: reads and writes beyond.
template <int Rows>
void interleave(const uint8_t* from, int64_t stride, int64_t count, uint8_t* to) {
  for (int64_t e = 0; e < count; e += 16, from += 16, to += 16 * Rows) {
    const auto row = [&](int r) -> Bytes {
      return *reinterpret_cast<const Bytes*>(from + r * stride);
    };
    Bytes* out = reinterpret_cast<Bytes*>(to);  // auto would lose the alignment
    if constexpr (Rows == 2) {
      out[0] = low_bytes(row(0), row(1));
      out[1] = high_bytes(row(0), row(1));
    } else {
      const Bytes low02 = low_bytes(row(0), row(2));
      const Bytes low13 = low_bytes(row(1), row(3));
      const Bytes high02 = high_bytes(row(0), row(2));
      const Bytes high13 = high_bytes(row(1), row(3));
      out[0] = low_bytes(low02, low13);
      out[1] = high_bytes(low02, low13);
      out[2] = low_bytes(high02, high13);
      out[3] = high_bytes(high02, high13);
    }
  }
}

}  // namespace

void sort_rows(const TileBits& in, TileValues values, uint16_t* order, Run* runs) {
  uint16_t rows_with[kMostPanel + 1] = {};
  count_rows(in, in.rows, rows_with);
  const int elements = elements_together(values);
  uint16_t place[kMostPanel + 1];
  uint16_t before = 0;
  for (int count = 1; count <= 64 * in.panel_words; count += elements) {
    const uint16_t begin = before;
    for (int c = count; c < count + elements; ++c) {
      place[c] = before;
      before = static_cast<uint16_t>(before + rows_with[c]);
    }
    if (before > begin) {
      *runs++ = {static_cast<uint16_t>(count + elements - 1),
                 static_cast<uint16_t>(before - begin)};
    }
  }
  *runs = {0, 0};
  // Rows without elements go behind the others.
  place[0] = before;
  for (int64_t r = 0; r < in.rows; ++r) {
    order[place[in.counts[r]]++] = static_cast<uint16_t>(r);
  }
}

void sort_sampled_rows(const TileBits& in, uint16_t* order, Run* runs) {
  const int64_t rows = divide_up(in.rows, kSampledRows) * kSampledRows;
  for (int64_t i = in.rows * in.panel_words; i < rows * in.panel_words; ++i) {
    in.words[i] = 0;
  }
  uint16_t rows_with[kMostPanel + 1] = {};
  count_rows(in, rows, rows_with);
  // Rows without elements come first; groups of only such rows are skipped.
  int64_t place[kMostPanel + 1];
  int64_t before = -(rows_with[0] / kSampledRows * kSampledRows);
  int64_t grouped = 0;
  for (int count = 0; count <= 64 * in.panel_words; ++count) {
    place[count] = before;
    before += rows_with[count];
    const int64_t end = before / kSampledRows * kSampledRows;  // end of the complete groups
    if (end > grouped) {
      *runs++ = {static_cast<uint16_t>(count), static_cast<uint16_t>(end - grouped)};
      grouped = end;
    }
  }
  *runs = {0, 0};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = place[in.counts[r]]++;
    if (at >= 0) {
      order[at] = static_cast<uint16_t>(least(r, in.rows));
    }
  }
}

int64_t list_groups(const TileBits& in, const uint16_t* order, const Run* runs, uint8_t* columns) {
  uint8_t listed[2 * kMostPanel + 64];
  const uint8_t* const begin = columns;
  for (; runs->rows > 0; ++runs) {
    const int64_t count = runs->count;
    for (int64_t left = runs->rows; left > 0;) {
      const int64_t group = left >= 2 ? 2 : 1;
      uint8_t* const lists = group == 1 ? columns : listed;
      list_columns({in.words, in.panel_words, order, group, count}, lists);
      for (int64_t r = 0; r < group; ++r) {
        lists[(r + 1) * count - 1] = lists[r * count + in.counts[order[r]] - 1];
      }
      if (group == 2) {
        interleave<2>(listed, count, count, columns);
      }
      order += group;
      columns += group * count;
      left -= group;
    }
  }
  return columns - begin;
}

int64_t list_sampled_groups(const TileBits& in, const uint16_t* order, const Run* runs,
                            uint8_t* columns) {
  constexpr int64_t kStride = kMostPanel + 64;
  // Entries beyond a row's last column are also valid columns: 0, or one of an earlier group.
  uint8_t listed[kSampledRows * kStride] = {};
  const uint8_t* const begin = columns;
  for (; runs->rows > 0; ++runs) {
    const int64_t count = runs->count;
    for (int64_t left = runs->rows; left > 0; left -= kSampledRows) {
      list_columns({in.words, in.panel_words, order, kSampledRows, kStride}, listed);
      interleave<kSampledRows>(listed, kStride, count, columns);
      order += kSampledRows;
      columns += kSampledRows * count;
    }
  }
  return columns - begin;
}

}  // namespace espalier::kernels::ESPALIER_ISA
