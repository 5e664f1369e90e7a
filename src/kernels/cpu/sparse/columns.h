#pragma once
// Kept columns from bits. Two implementations, chosen by CMake: a table of bytes
// (columns_plain.cpp) and the byte compress of AVX-512 VBMI2 (columns_avx512bf16.cpp).
#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

/// `rows` rows of `words` words of bits each; row i is the one at order[i] (order null: at i).
struct ColumnLists {
  const uint64_t* bits;
  int64_t words;
  const uint16_t* order;
  int64_t rows;
  int64_t stride = 0;  ///< of the rows' lists; 0: each directly behind the one before
};

/// Writes the positions of the set bits, ascending, row after row, as bytes. May write up to 64
/// bytes beyond a row's last one, none of them larger than the largest position or 0.
void list_columns(const ColumnLists& lists, uint8_t* columns);

}  // namespace espalier::kernels::ESPALIER_ISA
