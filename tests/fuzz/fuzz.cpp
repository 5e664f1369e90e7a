#include "tests/fuzz/fuzz.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "src/core/error.h"

/// HDF5's library leaks some memory; read by the address sanitizer only.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's own name
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace espalier::fuzz {

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

void run(const Target& target, Input input) {
  try {
    target.run(input);
  } catch (const Failure&) {  // the input is refused by name
  }
}

uint64_t Draws::take(size_t bytes) {
  uint64_t number = 0;
  for (const uint8_t byte : part(bytes)) {
    number = number << 8 | byte;
  }
  return number;
}

Input Draws::part(size_t bytes) {
  const Input front = rest_.first(std::min(bytes, rest_.size()));
  rest_ = rest_.subspan(front.size());
  return front;
}

std::vector<Input> split(Input input, uint8_t mark, size_t count) {
  std::vector<Input> parts;
  while (parts.size() + 1 < count) {
    const auto end = std::ranges::find(input, mark);
    const auto length = static_cast<size_t>(end - input.begin());
    parts.push_back(input.first(length));
    input = input.subspan(std::min(length + 1, input.size()));
  }
  parts.push_back(input);
  return parts;
}

std::string text_of(Input input) { return {input.begin(), input.end()}; }

MemoryFile::MemoryFile() : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  require(file_ >= 0, "the system makes files in memory");
}

MemoryFile::~MemoryFile() { ::close(file_); }

void MemoryFile::fill(Input content) {
  const bool emptied = ::ftruncate(file_, 0) == 0;
  const bool written =
      ::pwrite(file_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size());
  require(emptied && written, "a file in memory takes any content", content.size());
}

std::filesystem::path MemoryFile::path() const { return fmt::format("/proc/self/fd/{}", file_); }

}  // namespace espalier::fuzz
