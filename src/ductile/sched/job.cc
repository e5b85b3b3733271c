#include "ductile/sched/job.h"

namespace ductile::sched {

std::string_view to_string(Scaling scaling) {
  switch (scaling) {
    case Scaling::rigid:
      return "rigid";
    case Scaling::strong:
      return "strong";
    case Scaling::adaptive:
      return "adaptive";
  }
  return "?";
}

}  // namespace ductile::sched
