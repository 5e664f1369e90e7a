#include <cstring>

#include "src/kernels/cpu/sparse/columns.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// The positions of the set bits of a byte, as the bytes of a word; the rest is zero.
struct BytePositions {
  uint64_t of[256];
};
constexpr BytePositions byte_positions() {
  BytePositions table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned place = 0;
    for (uint64_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1U) != 0) {
        table.of[byte] |= bit << (8 * place++);
      }
    }
  }
  return table;
}
constexpr BytePositions kPositions = byte_positions();
constexpr uint64_t kEveryByte = 0x0101010101010101U;

}  // namespace

void list_columns(const ColumnLists& lists, uint8_t* columns) {
  for (int64_t i = 0; i < lists.rows; ++i) {
    const int64_t row = lists.order == nullptr ? i : lists.order[i];
    uint8_t* const begin = columns;
    for (int64_t w = 0; w < lists.words; ++w) {
      uint64_t word = lists.bits[row * lists.words + w];
      for (uint64_t base = 64 * static_cast<uint64_t>(w); word != 0; word >>= 8, base += 8) {
        const uint64_t positions = kPositions.of[word & 255U] + base * kEveryByte;
        std::memcpy(columns, &positions, sizeof(positions));
        columns += __builtin_popcountll(word & 255U);
      }
    }
    columns = lists.stride > 0 ? begin + lists.stride : columns;
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
