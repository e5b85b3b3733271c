// The same readers under Clang's libFuzzer, which looks for inputs that reach new code.
//
//   ductile_read_libfuzzer [FOLDER ...] [-max_total_time=600] [-max_len=8192] ...
//
// The first byte of an input names the reader; begun without a folder, from the seeds. Built where
// the compiler is Clang and DUCTILE_SANITIZE has fuzzer-no-link in it: preset "fuzz".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ductile/base/error.h"
#include "ductile/plan/testing/read_fuzz.h"

namespace {

using namespace ductile;
using namespace ductile::plan;

const std::vector<Seed>& seeds() {
  static const std::vector<Seed> all = fuzz_seeds();
  return all;
}

size_t write(Reader reader, const std::string& text, uint8_t* data, size_t most) {
  const size_t size = std::min(text.size(), most - 1);
  data[0] = static_cast<uint8_t>(reader);
  std::memcpy(data + 1, text.data(), size);
  return size + 1;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most,
                                          unsigned int seed) {
  Rng rng(seed);
  if (size < 2 || rng.below(64) == 0) {  // from the beginning
    const Seed& from = seeds()[rng.below(static_cast<uint32_t>(seeds().size()))];
    return write(from.reader, from.text, data, most);
  }
  if (rng.below(2) == 0) return 1 + LLVMFuzzerMutate(data + 1, size - 1, most - 1);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  return write(static_cast<Reader>(data[0] % kNumReaders), fuzz_mutate(text, seeds(), rng), data,
               most);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    fuzz_read(static_cast<Reader>(data[0] % kNumReaders),
              std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::invalid_argument) return 0;
    std::fprintf(stderr, "%s\n", e.what());
    std::abort();
  }
  return 0;
}
