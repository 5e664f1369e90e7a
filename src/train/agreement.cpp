#include "src/train/agreement.h"

#include "parallel/collectives.h"

namespace espalier::train {

void agree(parallel::Communicator& comm, const std::string& error) {
  uint64_t length = error.size();
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(&length, 1)));
  if (length == 0) {
    return;
  }
  std::string text = error;
  text.resize(length);
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(text)));
  throw SharedFailure(text);
}

}  // namespace espalier::train
