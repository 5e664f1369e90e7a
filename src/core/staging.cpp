#include "src/core/staging.h"

#include <algorithm>

namespace espalier {

Tensor Staging::host_memory(const Tensor& to) {
  if (!to.on_device) {
    return to;
  }
  auto found = std::ranges::find_if(pieces_, [&](const Piece& piece) {
    return !piece.taken && piece.memory.bytes() >= to.bytes() && stream_.passed(piece.free_after);
  });
  if (found == pieces_.end()) {
    found = pieces_.insert(found, Piece{});
    found->memory = stream_.arena().host().allocate(Memory::communication, "copies under way",
                                                    to.dtype, to.shape);
  }
  found->taken = true;
  return found->memory.tensor().as(to.dtype, to.shape);
}

void Staging::send(const Tensor& host, const Tensor& to) {
  stream_.copy(host, to);
  give_back(host, stream_.mark());
}

Staging::Arrival Staging::fetch(const Tensor& from) {
  const Tensor host = host_memory(from);
  stream_.copy(from, host);
  return {.host = host, .mark = stream_.mark()};
}

void Staging::done(const Tensor& host) { give_back(host, Mark{}); }

void Staging::give_back(const Tensor& host, Mark free_after) {
  const auto found = std::ranges::find_if(
      pieces_, [&](const Piece& piece) { return piece.memory.tensor().data == host.data; });
  if (found != pieces_.end()) {
    found->taken = false;
    found->free_after = free_after;
  }
}

}  // namespace espalier
