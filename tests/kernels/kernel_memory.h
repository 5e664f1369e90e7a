#pragma once
// Memory of kernel cases for tests: every operand ends at a guard page.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/kernels/kernel_case.h"

namespace espalier::kernels {

/// Tables that compute in host memory.
inline std::vector<const Kernels*> computing_tables() {
  std::vector<const Kernels*> tables = available();
  std::erase_if(tables, [](const Kernels* table) { return !table->name.starts_with("cpu"); });
  return tables;
}

/// Memory that ends at a guard page: a read or write past the end crashes.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    size_ = (bytes + page_ - 1) / page_ * page_ + page_;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    check(base_ != MAP_FAILED, "no memory for {} bytes", size_);
    check(mprotect(base_ + size_ - page_, page_, PROT_NONE) == 0, "no guard page");
    data_ = base_ + size_ - page_ - bytes;
  }
  Guarded(Guarded&& other) noexcept
      : page_(other.page_), size_(other.size_), base_(other.base_), data_(other.data_) {
    other.base_ = nullptr;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_ != nullptr) {
      munmap(base_, size_);
    }
  }
  std::byte* data() const { return data_; }

 private:
  size_t page_, size_ = 0;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

/// The operands of a case in memory.
class Memories {
 public:
  explicit Memories(const Case& of) {
    for (const Operand& operand : of.operands) {
      const auto bytes = static_cast<size_t>(operand.shape.count()) * size_of(operand.dtype);
      memory_.emplace_back(bytes);
      tensors_.emplace_back(memory_.back().data(), operand.dtype, operand.shape);
      write_all(operand, tensors_.back());
    }
  }
  const Tensors& tensors() const { return tensors_; }
  /// All bytes of all operands.
  std::string bytes() const {
    std::string all;
    for (const Tensor& t : tensors_) {
      all.append(static_cast<const char*>(t.data), t.bytes());
    }
    return all;
  }

 private:
  std::vector<Guarded> memory_;
  Tensors tensors_;
};

inline void run(const Case& one, const Kernels& kernels, int threads, const Memories& memories) {
  Arena arena;
  Stream stream(arena, threads);
  one.run(kernels, stream, memories.tensors());
}

}  // namespace espalier::kernels
