#include "ductile/net/secret.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/error.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/net/bytes_impl.h"

namespace ductile::net {
namespace {

using ductile::testing::code_of;

TEST(Secret, EqualBytesMakeEqualMacsAndEveryBitMatters) {
  const Secret a(std::string_view("0123456789abcdef"));
  const Secret b(std::string_view("0123456789abcdef"));
  const Secret c(std::string_view("0123456789abcdeg"));
  EXPECT_EQ(a.mac({bytes_of("x"), bytes_of("y")}), b.mac({bytes_of("xy")}));
  EXPECT_NE(a.mac({bytes_of("x")}), c.mac({bytes_of("x")}));
  EXPECT_NE(a.mac({bytes_of("x")}), a.mac({bytes_of("z")}));
}

TEST(Secret, ShortOnesAreRefusedWithTheRemedy) {
  std::string text;
  EXPECT_EQ(code_of([] { Secret(std::string_view("short")); }, &text), ErrorCode::invalid_argument);
  EXPECT_NE(text.find("openssl rand"), std::string::npos) << text;
}

TEST(Secret, FilesAreCreatedPrivateAndReadBack) {
  const TempFolder folder;
  const auto path = folder.path() / "secret";
  Secret::create_file(path);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(Secret::from_file(path).mac({bytes_of("x")}),
            Secret::from_file(path).mac({bytes_of("x")}));
  EXPECT_EQ(code_of([&] { Secret::create_file(path); }), ErrorCode::conflict);
}

TEST(Secret, AProcessKilledWhileItWritesTheFileLeavesNone) {
  const TempFolder folder;
  const auto path = folder.path() / "secret";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_FSIZE, &none);  // the first write kills
    signal(SIGXFSZ, SIG_DFL);
    Secret::create_file(path);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(path));
  Secret::create_file(path);
  Secret::from_file(path);
}

TEST(Secret, AFileThatOthersCanReadIsRefused) {
  const TempFolder folder;
  const auto path = folder.path() / "secret";
  Secret::create_file(path);
  chmod(path.c_str(), 0640);
  std::string text;
  EXPECT_EQ(code_of([&] { Secret::from_file(path); }, &text), ErrorCode::invalid_argument);
  EXPECT_NE(text.find("chmod 600"), std::string::npos) << text;
}

TEST(Secret, LoadPrefersTheFileAndNamesBothVariablesWhenNeitherIsSet) {
  const TempFolder folder;
  const auto path = folder.path() / "secret";
  std::ofstream(path) << "a secret of the file\n";
  chmod(path.c_str(), 0600);
  unsetenv("DUCTILE_SECRET_FILE");
  unsetenv("DUCTILE_SECRET");
  std::string text;
  EXPECT_EQ(code_of([] { Secret::load(); }, &text), ErrorCode::not_found);
  EXPECT_NE(text.find("DUCTILE_SECRET_FILE"), std::string::npos) << text;
  setenv("DUCTILE_SECRET", "a secret of the environment", 1);
  const Mac environment = Secret::load().mac({});
  setenv("DUCTILE_SECRET_FILE", path.c_str(), 1);
  EXPECT_NE(Secret::load().mac({}), environment);
  // The line's end is no part of it.
  EXPECT_EQ(Secret::load().mac({}), Secret(std::string_view("a secret of the file")).mac({}));
  unsetenv("DUCTILE_SECRET_FILE");
  unsetenv("DUCTILE_SECRET");
}

TEST(Secret, IsZeroedOnDestruction) {
  alignas(Secret) std::byte place[sizeof(Secret)];
  auto* secret = new (place) Secret(std::string_view("0123456789abcdef"));
  bool any = false;
  for (const std::byte b : place) any |= b != std::byte{0};
  EXPECT_TRUE(any);
  secret->~Secret();
  const volatile std::byte* left = place;
  for (size_t i = 0; i < sizeof place; ++i) EXPECT_TRUE(left[i] == std::byte{0});
}

TEST(Secret, ComparisonSeesEveryByteAndTheLength) {
  const Nonce a = random_nonce();
  EXPECT_TRUE(equal_in_constant_time(a, a));
  for (size_t i = 0; i < a.size(); ++i) {
    Nonce b = a;
    b[i] ^= std::byte{1};
    EXPECT_FALSE(equal_in_constant_time(a, b));
  }
  EXPECT_FALSE(equal_in_constant_time(a, std::span(a).first(31)));
}

}  // namespace
}  // namespace ductile::net
