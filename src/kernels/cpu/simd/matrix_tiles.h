#pragma once
// The tiles of a CPU's matrix unit (Intel AMX): eight registers of 16 rows of 64 bytes. A thread
// sets their shape before it uses them, and gives them up after, which makes switches of threads
// cheap.
// Only for sources named NAME_amx.cpp.
#include <immintrin.h>

#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

/// The layout that the processor defines: here of eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void configure_tiles() {
  // A static constant: GCC 12 takes the instruction to read 8 bytes, and would drop the stores of
  // the others to the stack.
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}
inline void release_tiles() { _tile_release(); }

/// The tiles' shape is set while it lives.
class TileScope {
 public:
  TileScope() { configure_tiles(); }
  ~TileScope() { release_tiles(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace espalier::kernels::ESPALIER_ISA
