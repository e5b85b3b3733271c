#pragma once

#include <string>

// Numbers as people read them. None throws; NaN and infinite values have a text too.
namespace ductile::run {

std::string with_thousands(double value);  // 4310 -> "4,310"; 2.5 -> "2.5"
std::string as_clock(double seconds);      // 42 -> "0:42"; 3723 -> "1:02:03"; unknown -> "--:--"
std::string as_number(double value);       // 2.5 -> "2.50"; 0.000123 -> "1.23e-04"
std::string as_duration(double seconds);   // 0.0084 -> "8.4 ms"; 192 -> "3 min 12 s"
std::string as_bytes(double bytes);        // 1536 -> "1.5 KiB"
std::string as_energy(double joules);      // 900 -> "900 J"; 12345 -> "12.3 kJ"
std::string as_percent(double share);      // 0.9153 -> "91.53 %"

}  // namespace ductile::run
