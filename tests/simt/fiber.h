#pragma once
// Fibers: several stacks in one thread of the system. One fiber runs until it switches to another
// by name. CMake chooses one of two implementations: fiber_x86.cpp (a dozen instructions) or
// fiber_ucontext.cpp (any system with <ucontext.h>). Exceptions must not leave a fiber.
#include <cstddef>
#include <memory>

namespace espalier::simt {

/// The saved state at which a fiber continues.
class Context {
 public:
  /// The context of the thread itself, filled when it first switches away.
  Context();
  /// A new fiber that begins in `entry(argument)`, which must not return.
  Context(void (*entry)(void*), void* argument, size_t stack_bytes);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Suspends `from`, which must be running, and continues `to`.
  static void switch_to(Context& from, Context& to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier::simt
