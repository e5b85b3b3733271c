#include "ductile/ckpt/import.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"

namespace ductile::ckpt {
namespace {

constexpr const char* kDigestKey = "ductile.digest";  // as in files of train

float of_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float of_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31)  // infinity, or no number
    return std::bit_cast<float>(static_cast<uint32_t>(bits & 0x8000) << 16 | 0x7f800000U |
                                static_cast<uint32_t>(fraction) << 13);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

template <class From, class Convert>
std::vector<std::byte> converted(std::span<const std::byte> bytes, Convert convert) {
  const size_t count = bytes.size() / sizeof(From);
  std::vector<std::byte> out(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    const float number = convert(value);
    std::memcpy(out.data() + i * sizeof(float), &number, sizeof(float));
  }
  return out;
}

// The values as fp32; nothing where they are so, or no floating-point numbers.
std::vector<std::byte> as_float(const TensorInfo& tensor, std::span<const std::byte> bytes,
                                const fs::path& file) {
  if (tensor.dtype == DType::bf16) return converted<uint16_t>(bytes, of_bf16);
  if (tensor.dtype == DType::f16) return converted<uint16_t>(bytes, of_f16);
  if (tensor.dtype != DType::f64) return {};
  return converted<double>(bytes, [&](double value) {
    const auto number = static_cast<float>(value);
    if (std::isinf(number) && !std::isinf(value))
      fail(ErrorCode::invalid_argument, "{}: tensor '{}' holds {}, which fp32 does not have",
           file.string(), tensor.name, value);
    return number;
  });
}

}  // namespace

Imported import_weights(std::span<const fs::path> files, const std::string& prefix,
                        const fs::path& out) {
  std::vector<SafetensorsFile> read;
  read.reserve(files.size());
  std::vector<TensorView> views;
  std::vector<std::vector<std::byte>> kept;
  std::map<std::string, const fs::path*> taken;
  Imported result;
  for (const fs::path& file : files) {
    const SafetensorsFile& source = read.emplace_back(file);
    for (const TensorInfo& tensor : source.tensors()) {
      if (!tensor.name.starts_with(prefix) || tensor.name.size() == prefix.size()) {
        ++result.left_out;
        continue;
      }
      const std::string name = tensor.name.substr(prefix.size());
      if (const auto [first, is_new] = taken.emplace(name, &file); !is_new)
        fail(ErrorCode::invalid_argument, "{}: holds tensor '{}', which {} holds, too",
             file.string(), name, first->second->string());
      TensorView view{name, tensor.dtype, tensor.shape, source.bytes(tensor)};
      if (tensor.dtype == DType::bf16 || tensor.dtype == DType::f16 || tensor.dtype == DType::f64) {
        kept.push_back(as_float(tensor, view.bytes, file));
        view.dtype = DType::f32;
        view.bytes = kept.back();
        ++result.converted;
      }
      result.values += num_elements(tensor.shape);
      views.push_back(std::move(view));
    }
  }
  if (views.empty())
    fail(ErrorCode::invalid_argument, "{}: {}", files.empty() ? "no file" : files[0].string(),
         prefix.empty() ? "holds no tensor"
                        : fmt::format("holds no tensor whose name begins with '{}'", prefix));
  result.tensors = static_cast<int64_t>(views.size());
  write_safetensors(out, views, {{kDigestKey, tensors_digest(views)}});
  return result;
}

}  // namespace ductile::ckpt
