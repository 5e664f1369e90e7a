#include "src/core/stream.h"

#include <cstring>

namespace espalier {

Stream::Stream(Arena& arena, int threads, Queue* queue, Queue* side)
    : arena_(arena), threads_(threads), queue_(queue) {
  if (side != nullptr) {
    side_ = std::make_unique<Stream>(arena, threads, side);
  }
  if (arena.on_device()) {
    host_ = std::make_unique<Stream>(arena.host(), threads);
  }
}

Stream::~Stream() {
  try {
    synchronize();
  } catch (const Error&) {  // code that needs results synchronizes, and received the error there
  }
}

void Stream::copy(const Tensor& from, const Tensor& to) {
  require(from.contiguous() && to.contiguous() && from.bytes() == to.bytes(),
          "a copy has the bytes of what it copies", from.bytes(), to.bytes());
  if (from.data == to.data || from.bytes() == 0 || arena_.dry()) {
    return;
  }
  if (queue_ != nullptr) {
    queue_->copy(to.data, from.data, from.bytes());
  } else {
    std::memcpy(to.data, from.data, from.bytes());
  }
}

std::byte* Stream::workspace(size_t bytes) {
  if (bytes > workspace_.tensor().bytes() || !workspace_.tensor()) {
    synchronize();
    workspace_.release();
    workspace_ = arena_.allocate(Memory::scratch, "workspace", DType::uint8,
                                 Shape{static_cast<int64_t>(bytes)});
  }
  return static_cast<std::byte*>(workspace_.tensor().data);
}

}  // namespace espalier
