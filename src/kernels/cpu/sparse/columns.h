#pragma once
// Lists kept columns from bits. CMake chooses one of two implementations: a table of bytes
// (columns_plain.cpp) or the byte compress of AVX-512 VBMI2 (columns_avx512bf16.cpp).
#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

/// `rows` rows of `words` words of bits each; row i is at order[i] (order null: at i).
struct ColumnLists {
  const uint64_t* bits;
  int64_t words;
  const uint16_t* order;
  int64_t rows;
  int64_t stride = 0;  ///< between the rows' lists; 0: lists are contiguous
};

/// Writes the positions of the set bits as bytes, ascending, row after row. May write up to 64
/// bytes beyond a row's last one; each is at most the largest position.
void list_columns(const ColumnLists& lists, uint8_t* columns);

}  // namespace espalier::kernels::ESPALIER_ISA
