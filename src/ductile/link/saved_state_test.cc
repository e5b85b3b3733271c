#include "ductile/link/saved_state.h"

#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/base/json_value.h"

namespace ductile::link {
namespace {

using nlohmann::json;

TEST(SavedState, EveryAlteredByteIsNoticedAndTheRemedyIsNamed) {
  const TempFolder folder;
  const fs::path file = folder.path() / "membership.json";
  EXPECT_FALSE(read_state(file));
  const json state = {{"format", 1}, {"wanted", 2}, {"reason", "a \xff of no UTF-8"}};
  const std::string text = sealed(state);
  write_file_atomic(file, text);
  EXPECT_EQ(read_state(file)->at("wanted"), 2);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    std::string altered = text;
    altered[i] = static_cast<char>(altered[i] ^ 1);
    write_file_atomic(file, altered);
    try {
      const auto found = read_state(file);
      // Only in a name of the two parts: then it is read as a state without a checksum, which is
      // refused for what it lacks.
      EXPECT_FALSE(found->contains("format")) << altered;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data_loss);
      EXPECT_NE(std::string(e.what()).find("remove " + file.string()), std::string::npos);
    }
  }
  for (const char* torn : {"", "{\"checksum\":\"0", "[]", "0"}) {
    write_file_atomic(file, std::string_view(torn));
    EXPECT_THROW(read_state(file), Error) << torn;
  }
}

TEST(SavedState, OneWithoutAChecksumIsRead) {
  const TempFolder folder;
  const fs::path file = folder.path() / "membership.json";
  write_file_atomic(file, std::string_view("{\"format\":1,\"wanted\":3}"));
  EXPECT_EQ(read_state(file)->at("wanted"), 3);
}

}  // namespace
}  // namespace ductile::link
