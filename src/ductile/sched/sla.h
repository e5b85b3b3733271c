#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// What service levels promise, and the account of how it is kept: shares of device time over
// windows (Singularity, arXiv:2202.07848, section 2.3).
namespace ductile::sched {

enum class Tier : uint8_t { premium, standard, basic };
std::string_view to_string(Tier tier);

// The share of the devices it asked for that a job is promised in every window: 0.95, 0.70, 0.
double guarantee(Tier tier);
constexpr double kSlaWindow = 3600;  // s

// One window of one job, in device-seconds.
struct SlaWindow {
  double from = 0, to = 0;  // s
  double granted = 0;       // held and made use of; a job that is being restarted does not
  double asked = 0;         // devices asked for x seconds
  double fraction() const { return asked > 0 ? granted / asked : 1; }
};

// The account of one job: windows follow each other from its arrival. A plain value.
class SlaAccount {
 public:
  explicit SlaAccount(double start = 0, double window = kSlaWindow);

  // From the last call (or the start) until `now` the job asked for `demand` devices and made use
  // of `granted` device-seconds, evenly. Windows that end meanwhile are appended to `closed`.
  void pass(double now, double demand, double granted, std::vector<SlaWindow>& closed);
  // The job has ended: what is open counts as a window if it lasted half of one.
  void end(std::vector<SlaWindow>& closed);

  const SlaWindow& open() const { return open_; }

 private:
  SlaWindow open_;
  double window_;
};

// What a job's window needs of the devices it asked for.
struct Owed {
  double devices = 0;
  // Before what others are owed without haste: less than a twentieth of a window can still be lost.
  bool urgent = false;
  bool operator==(const Owed&) const = default;
};

// Devices that a job of this tier is to hold now so that its window ends well: its demand, or none
// once the window has all that it was promised: so what Standard may be kept waiting for comes
// last, when nothing can go wrong any more, and once a window. Where too little is there for all,
// those that have waited longest become urgent and take turns with those that have not. Premium:
// twice its demand once the rest of the window at the demand alone would not make up for what is
// missing. `promised`: the share of device time; `margin`: worked for above it.
Owed owed_devices(Tier tier, double promised, double margin, double demand, const SlaWindow& open,
                  double window = kSlaWindow);

}  // namespace ductile::sched
