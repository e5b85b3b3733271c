// Seals against another implementation's command-line programs, openssl s_client and s_server,
// which know nothing but the key.
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ductile/base/descriptor.h"
#include "ductile/base/files.h"
#include "ductile/base/testing.h"
#include "ductile/net/channel.h"
#include "ductile/net/testing/sealed_pair.h"

namespace ductile::net {
namespace {

using ductile::testing::code_of;
using std::chrono::milliseconds;
using testing::key_number;

Deadline soon() { return Clock::now() + milliseconds(20000); }

bool have_openssl() { return std::system("openssl version >/dev/null 2>&1") == 0; }

// `openssl ARGUMENTS`, with pipes to its input and from all that it prints.
class OpenSsl {
 public:
  explicit OpenSsl(std::vector<std::string> arguments) {
    std::array<int, 2> input{}, output{};
    if (::pipe2(input.data(), O_CLOEXEC) != 0 || ::pipe2(output.data(), O_CLOEXEC) != 0)
      fail_errno("pipe", errno);
    arguments.insert(arguments.begin(), "openssl");
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], 0);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    posix_spawn_file_actions_adddup2(&actions, output[1], 2);
    const int error = ::posix_spawnp(&pid_, "openssl", &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(input[0]);
    ::close(output[1]);
    input_ = Descriptor(input[1]);
    output_ = Descriptor(output[0]);
    if (error != 0) fail_errno("openssl", error);
  }
  ~OpenSsl() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void say(std::string_view text) {
    EXPECT_EQ(::write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void end_input() { input_.close(); }
  // Reads until `text` was printed, or the end.
  bool prints(const std::string& text) {
    while (printed.find(text) == std::string::npos) {
      char block[4096];
      const ssize_t n = ::read(output_.get(), block, sizeof block);
      if (n <= 0) return false;
      printed.append(block, static_cast<size_t>(n));
    }
    return true;
  }
  // The rest of the line that begins with `text`; empty: it is not printed.
  std::string line_from(const std::string& text) {
    if (!prints(text)) return "";
    const size_t begin = printed.find(text) + text.size();
    while (printed.find('\n', begin) == std::string::npos) {
      char block[4096];
      const ssize_t n = ::read(output_.get(), block, sizeof block);
      if (n <= 0) return "";
      printed.append(block, static_cast<size_t>(n));
    }
    return printed.substr(begin, printed.find('\n', begin) - begin);
  }

  std::string printed;

 private:
  pid_t pid_ = -1;
  Descriptor input_, output_;
};

std::string framed(const std::string& text) {
  std::string out(4, '\0');
  out[0] = static_cast<char>(text.size());
  return out + text;
}

// The handshake of one end over a socket; throws what it does.
Channel sealed_over(Socket socket, Seal seal) {
  std::array<std::byte, 512> bytes;
  while (true) {
    socket.write_all(seal.take_output(), soon());
    if (seal.done()) return Channel(std::move(socket), std::move(seal));
    const size_t want = std::min(bytes.size(), seal.wanted());
    const size_t got = socket.read_some(std::span(bytes).first(want), soon());
    if (got == 0) fail(ErrorCode::peer_lost, "closed");
    try {
      seal.feed(std::span(bytes).first(got));
    } catch (const Error&) {
      socket.write_all(seal.take_output(), soon());
      throw;
    }
  }
}

// Our server, and s_client with these options.
struct ForeignClient {
  Listener listener{{"127.0.0.1", 0}};
  OpenSsl client;
  explicit ForeignClient(std::vector<std::string> options)
      : client(with(listener.address(), std::move(options))) {}
  Channel channel() {
    return sealed_over(listener.accept(soon()), Seal(Seal::Side::server, key_number(1)));
  }
  static std::vector<std::string> with(const Address& at, std::vector<std::string> options) {
    std::vector<std::string> words = {"s_client", "-connect", at.to_string()};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
};

std::vector<std::string> with_key(int number, std::vector<std::string> more = {}) {
  std::vector<std::string> out = {"-psk", to_hex(key_number(number)), "-psk_identity", "ductile"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST(SealPeer, AForeignClientWithTheKeyIsUnderstood) {
  if (!have_openssl()) GTEST_SKIP() << "no openssl program";
  ForeignClient foreign(with_key(1, {"-allow_no_dhe_kex"}));
  Channel channel = foreign.channel();
  foreign.client.say(framed("from there"));
  EXPECT_EQ(text_of(channel.receive(soon())), "from there");
  channel.send(bytes_of("from here"), soon());
  EXPECT_TRUE(foreign.client.prints("from here")) << foreign.client.printed;
  const std::string& said = foreign.client.printed;
  // Also where the client would do without, the keys are fresh.
  EXPECT_NE(said.find("Server Temp Key: X25519"), std::string::npos) << said;
  EXPECT_NE(said.find("Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"), std::string::npos)
      << said;
  EXPECT_NE(said.find("Early data was not sent"), std::string::npos) << said;
  EXPECT_EQ(said.find("Session-ID-ctx"), std::string::npos) << "a ticket came: " << said;
  foreign.client.end_input();  // it says that it ends
  std::string text;
  EXPECT_EQ(code_of([&] { channel.receive(soon()); }, &text), ErrorCode::peer_lost);
  EXPECT_NE(text.find("closed by the other end"), std::string::npos) << text;
}

TEST(SealPeer, AForeignClientThatStopsWithinAMessageIsTold) {
  if (!have_openssl()) GTEST_SKIP() << "no openssl program";
  ForeignClient foreign(with_key(1));
  Channel channel = foreign.channel();
  foreign.client.say(std::string("\x10\0\0\0half", 8));
  foreign.client.end_input();
  std::string text;
  EXPECT_EQ(code_of([&] { channel.receive(soon()); }, &text), ErrorCode::data_loss);
  EXPECT_NE(text.find("within a message"), std::string::npos) << text;
}

TEST(SealPeer, ForeignClientsWithoutTheKeyAreRefused) {
  if (!have_openssl()) GTEST_SKIP() << "no openssl program";
  const std::vector<std::vector<std::string>> others = {
      with_key(2),
      {"-psk", to_hex(key_number(1)), "-psk_identity", "somebody"},
      with_key(1, {"-tls1_2"}),
      {"-tls1_3"},
      {},
  };
  for (const auto& options : others) {
    ForeignClient foreign(options);
    EXPECT_EQ(code_of([&] { foreign.channel(); }), ErrorCode::unavailable);
    foreign.listener = {};  // where another program came first, the client waits for nobody
    foreign.client.prints("never");
    EXPECT_EQ(foreign.client.printed.find("Reused, TLSv1.3"), std::string::npos)
        << foreign.client.printed;
  }
}

// s_server, whose port is in what it prints.
struct ForeignServer {
  OpenSsl server;
  Socket socket;
  explicit ForeignServer(std::vector<std::string> options) : server(with(std::move(options))) {
    const std::string port = server.line_from("ACCEPT 127.0.0.1:");
    if (!port.empty())
      socket = connect({"127.0.0.1", static_cast<uint16_t>(std::stoi(port))}, {}, soon());
  }
  static std::vector<std::string> with(std::vector<std::string> options) {
    std::vector<std::string> words = {"s_server", "-4", "-accept", "127.0.0.1:0", "-naccept", "1"};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
};

TEST(SealPeer, AForeignServerWithTheKeyIsUnderstood) {
  if (!have_openssl()) GTEST_SKIP() << "no openssl program";
  ForeignServer foreign(with_key(1, {"-nocert", "-tls1_3"}));
  ASSERT_TRUE(foreign.socket);
  Channel channel = sealed_over(std::move(foreign.socket), Seal(Seal::Side::client, key_number(1)));
  channel.send(bytes_of("from here"), soon());
  EXPECT_TRUE(foreign.server.prints("from here")) << foreign.server.printed;
  foreign.server.say(framed("from there"));
  EXPECT_EQ(text_of(channel.receive(soon())), "from there");
}

// Above all one that has a certificate instead: a name is not what makes somebody a member.
TEST(SealPeer, ForeignServersWithoutTheKeyAreRefused) {
  if (!have_openssl()) GTEST_SKIP() << "no openssl program";
  const TempFolder folder;
  const std::string key = (folder.path() / "key.pem").string();
  const std::string certificate = (folder.path() / "certificate.pem").string();
  ASSERT_EQ(std::system(("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
                         "-subj /CN=localhost -days 2 -keyout " +
                         key + " -out " + certificate + " >/dev/null 2>&1")
                            .c_str()),
            0);
  const std::vector<std::vector<std::string>> others = {
      with_key(2, {"-nocert", "-tls1_3"}),
      {"-cert", certificate, "-key", key, "-tls1_3"},
      {"-cert", certificate, "-key", key},
      with_key(2, {"-cert", certificate, "-key", key}),
      {"-cert", certificate, "-key", key, "-tls1_2"},
  };
  for (const auto& options : others) {
    ForeignServer foreign(options);
    ASSERT_TRUE(foreign.socket) << foreign.server.printed;
    EXPECT_EQ(code_of([&] {
                sealed_over(std::move(foreign.socket), Seal(Seal::Side::client, key_number(1)));
              }),
              ErrorCode::unavailable)
        << foreign.server.printed;
  }
}

}  // namespace
}  // namespace ductile::net
