// Every element is kept: no data.
#include <numeric>

#include "sparse/index/encoding.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

size_t exact_bytes(const Mask&, const Counts&) { return 0; }
void encode(const Mask&, const Counts&, std::span<uint8_t>) {}

void check_data(const Coded& coded) {
  check(coded.kept == coded.size, "full index: {} of {} elements are kept", coded.kept, coded.size);
  check(coded.data.empty(), "full index: {} bytes where there should be none", coded.data.size());
}

void decode(const Coded&, int64_t first, std::span<int32_t> out) {
  std::iota(out.begin(), out.end(), static_cast<int32_t>(first));
}

int64_t kept_before(const Coded&, int64_t dense) { return dense; }

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .encode = encode,
                         .check = check_data,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::full{.name = "full",
                                        .help = "every element is kept",
                                        .coding = &kCoding,
                                        .kernel_form = KernelForm::none};

}  // namespace espalier::sparse
