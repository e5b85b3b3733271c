#pragma once

#include <cstddef>
#include <cstdint>

// What a data set may ask for. No header makes a reader take more memory than the bytes at hand
// can fill; where few bytes can rightly mean much (flat images, packed files), these bounds hold.
namespace ductile::data {

inline constexpr int64_t kMaxPixels = int64_t{1} << 26;        // of an image: 192 MiB as RGB
inline constexpr size_t kMaxImageBytes = size_t{1} << 28;      // of an image's file
inline constexpr int kMaxJpegScans = 100;                      // usual progressive files have ten
inline constexpr int64_t kMaxClasses = int64_t{1} << 20;       // names of classes
inline constexpr size_t kMaxNamesBytes = size_t{1} << 26;      // of a file of such names
inline constexpr uint64_t kMaxVocabulary = uint64_t{1} << 20;  // token numbers are below it
inline constexpr size_t kMaxIdxBytes = size_t{1} << 34;        // of an idx file, unpacked

}  // namespace ductile::data
