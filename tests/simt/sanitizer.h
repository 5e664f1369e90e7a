#pragma once
// Reports stack switches to AddressSanitizer. Without it the functions do nothing.
#include <cstddef>

extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, size_t size)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old,
                                     size_t* size_old) __attribute__((weak));
}

namespace espalier::simt {

/// One stack, as the sanitizer sees it.
struct StackRecord {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake = nullptr;

  void leave_for(const StackRecord& other) {
    if (__sanitizer_start_switch_fiber != nullptr) {
      __sanitizer_start_switch_fiber(&fake, other.bottom, other.bytes);
    }
  }
  /// `from`: the stack that ran before; its address range is stored if it was unknown.
  void arrive(StackRecord* from) {
    if (__sanitizer_finish_switch_fiber != nullptr) {
      const void* lowest = nullptr;
      size_t size = 0;
      __sanitizer_finish_switch_fiber(fake, &lowest, &size);
      if (from != nullptr && from->bottom == nullptr) {
        from->bottom = lowest;
        from->bytes = size;
      }
    }
  }
};

}  // namespace espalier::simt
