#pragma once

#include <optional>
#include <string>

#include "ductile/base/files.h"

// What the agent of a machine that is about to be taken back leaves for the next agent of its host,
// and for the next controller: a machine is told once. A file for each host, in the folder that
// all of them share: FOLDER/server/leaving/HOST.
namespace ductile::server {

inline constexpr double kForget = 2;           // times a notice, after which it is forgotten
inline constexpr double kLongestNotice = 1e6;  // seconds, as in a cluster file
inline constexpr double kSecondsOfAStop = 5;   // around the beginning of a controller's stop

struct Notice {
  std::string host;     // empty: an earlier version wrote none
  std::string machine;  // link::PeerAddress::place, which is another one after a boot
  double seconds = 0;   // that the machine was to be there, when it came
  double came = 0;      // link::boot_time() of the machine
  double ends = 0;      // wall_seconds() when it is forgotten, by the machine's clock; 0: not known

  // Seconds until it is forgotten; 0: it is over, or of another machine than this one.
  double left() const;
};

// Of this machine, which was told right now.
Notice notice_now(const std::string& host, double seconds);

// Two hosts have two files, however alike their names are.
fs::path notice_file(const fs::path& folder, const std::string& host);
void write_notice(const fs::path& folder, const Notice& notice);
// Nothing where there is none. Throws for anything but a notice, whatever lies there, without
// reading much of it.
std::optional<Notice> read_notice(const fs::path& file);
// That of this host alone, should another one's lie there.
void remove_notice(const fs::path& folder, const std::string& host);

// For what is no notice: it goes to FILE%damaged. Returns where it is now, in words.
std::string set_aside(const fs::path& file);

// Removes those of machines that never came back: an hour after they were to be forgotten, since
// clocks of machines differ.
void sweep_notices(const fs::path& folder);
// A signal that ended the controller on this machine, whose stop began at `began` (boot_time()),
// or up to `late` seconds after the signal, reached its agents there as well, as where systemd ends
// a control group: that was no notice.
void forget_notice_of_stop(const fs::path& folder, const std::string& host, double began,
                           double late = 0);

}  // namespace ductile::server
