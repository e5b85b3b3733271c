#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ductile::comm {

// Sleeps while `word` holds `expected`, at most `wait`; wakes spuriously. Between processes.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected,
                       std::chrono::nanoseconds wait) {
  static_assert(sizeof(std::atomic<uint32_t>) == 4);
  const auto nanoseconds = wait.count() < 0 ? 0 : wait.count();
  const timespec timeout{static_cast<time_t>(nanoseconds / 1'000'000'000),
                         static_cast<long>(nanoseconds % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A number that others wait for. Waking costs a system call only where somebody sleeps.
struct alignas(64) Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  void set(uint32_t to) {
    value.store(to, std::memory_order_seq_cst);
    wake();
  }
  uint32_t add(uint32_t by) {
    const uint32_t before = value.fetch_add(by, std::memory_order_seq_cst);
    wake();
    return before + by;
  }
  void wake() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(value);
  }
  // Sleeps until the value is no longer `seen`, or `ready`, at most `wait`; may return early.
  template <class Ready>
  void sleep(uint32_t seen, std::chrono::nanoseconds wait, const Ready& ready) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!ready()) futex_wait(value, seen, wait);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
};

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ductile::comm
