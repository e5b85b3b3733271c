#include "ductile/link/boot_clock.h"

#include <ctime>

namespace ductile::link {

control::Time boot_time() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return std::chrono::seconds(t.tv_sec) +
         std::chrono::duration_cast<control::Time>(std::chrono::nanoseconds(t.tv_nsec));
}

}  // namespace ductile::link
