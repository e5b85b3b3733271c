#pragma once

#include <string>
#include <string_view>

// Numbers as people read them. None throws; NaN and infinite values have a text too. `text.js` is
// the same for pages, and numbers_cases.json holds both to the same answers.
namespace ductile::page {

std::string with_thousands(double value);  // 4310 -> "4,310"; 2.5 -> "2.5"
std::string as_number(double value);       // 2.5 -> "2.50"; 0.000123 -> "1.23e-04"
std::string as_setting(double value);      // of an option: 32 -> "32"; 0.99991 -> "0.99991"
// A value of a metric by its name: "91.30 %" of accuracy, a plain number of others.
std::string as_metric(std::string_view metric, double value);
std::string as_percent(double share);         // 0.9153 -> "91.53 %"
std::string as_duration(double seconds);      // 0.0084 -> "8.4 ms"; 192 -> "3 min 12 s"
std::string as_short_duration(double value);  // seconds in three digits: "480 us", "28.7 min"
std::string as_clock(double seconds);         // 42 -> "0:42"; 3723 -> "1:02:03"; unknown -> "--:--"
std::string as_bytes(double bytes);           // 1536 -> "1.5 KiB"; 2048 -> "2 KiB"
std::string as_energy(double joules);         // 900 -> "900 J"; 12345 -> "12.3 kJ"
std::string local_time(double seconds);       // since 1970: "2026-03-01 14:05:09"

// "1 sample", "12,800 samples".
std::string plural(double count, std::string_view noun);

}  // namespace ductile::page
