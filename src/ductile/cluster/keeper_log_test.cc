#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/files.h"
#include "ductile/cluster/keeper_log_impl.h"

namespace ductile::cluster {
namespace {

// In a process of its own, whose output goes into the log, too.
void in_keeper(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

void say(const CommandLog& log, const std::string& text) {
  if (::write(log.input(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    ::_exit(2);
}

// Empty where there is no such file.
std::string text_there(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(CommandLog, HasWhatTheCommandAndItsKeeperSay) {
  const TempFolder folder;
  const fs::path file = folder.path() / "log";
  write_file_atomic(file, "before\n");
  in_keeper([&] {
    CommandLog log(file);
    say(log, "command\n");
    log.close_input();
  });
  in_keeper([&] {
    const CommandLog log(file);
    if (::write(STDERR_FILENO, "keeper\n", 7) != 7) ::_exit(2);
  });
  EXPECT_EQ(read_file(file), "before\ncommand\nkeeper\n");
}

TEST(CommandLog, IsBegunAnewAtItsLimit) {
  const TempFolder folder;
  const fs::path file = folder.path() / "log", before = folder.path() / "log.1";
  constexpr int64_t kMost = 1000;
  const auto size = [](const fs::path& path) { return static_cast<int64_t>(fs::file_size(path)); };
  in_keeper([&] {
    CommandLog log(file, kMost);
    for (int i = 0; i < 100; ++i) {
      say(log, std::to_string(1000 + i) + std::string(95, 'x') + "\n");
      while (text_there(file).find(std::to_string(1000 + i)) == std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_LE(size(file), kMost);
  EXPECT_LE(size(before), kMost);
  EXPECT_GE(size(before), kMost / 2);
  const std::string text = read_file(file);
  EXPECT_TRUE(text.starts_with("ductile: this log had ")) << text;
  EXPECT_NE(text.find("are in log.1 now"), std::string::npos) << text;
  EXPECT_NE(text.find("1099x"), std::string::npos) << text;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    EXPECT_TRUE(entry.path() == file || entry.path() == before) << entry.path();
}

// The command goes on meanwhile.
TEST(CommandLog, SaysHowMuchItCouldNotTake) {
  const TempFolder folder;
  const fs::path file = folder.path() / "gone" / "log";
  in_keeper([&] {
    CommandLog log(file);
    const std::string block(10000, 'x');
    for (int i = 0; i < 100; ++i) say(log, block);  // more than a pipe holds
    fs::create_directory(folder.path() / "gone");
    while (!fs::exists(file)) {
      say(log, "y");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    say(log, "last\n");
  });
  const std::string text = read_file(file);
  const size_t lost = text.find(" bytes of what was said here are lost");
  ASSERT_NE(lost, std::string::npos) << text;
  const size_t begin = text.rfind(' ', lost - 1) + 1;
  const int64_t count = std::stoll(text.substr(begin, lost - begin));
  EXPECT_GE(count, 900'000);
  EXPECT_LE(count, 1'010'000);
  EXPECT_TRUE(text.ends_with("last\n")) << text;
}

}  // namespace
}  // namespace ductile::cluster
