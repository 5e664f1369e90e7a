#include "src/core/tensor.h"

namespace espalier {

void throw_type_mismatch(DType asked, DType present) {
  throw Bug(fmt::format("a tensor of {} was read as {}", name_of(present), name_of(asked)));
}

}  // namespace espalier
