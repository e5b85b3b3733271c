#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Messages of HTTP 1.1, read from bytes as they arrive, without a network.
namespace ductile::serving {

using Headers = std::vector<std::pair<std::string, std::string>>;  // names in lower case

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without the query
  Headers headers;
  std::string body;
  bool keep_alive = true;
  int connection = -1;  // the descriptor that it came by, while its handler is called; -1: none

  // The value of a header, by its name in lower case; null if there is none.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  Headers headers;  // beside Content-Type, Content-Length and Connection
  std::string body;
  bool keep_alive = true;
};

struct HttpLimits {
  size_t head = 16384;             // bytes of a head, and of what frames a chunk
  size_t body = size_t{16} << 20;  // bytes
};

// What is wrong with a message; the bytes after it have no meaning.
struct HttpFault {
  int status = 400;
  std::string text;
};

// Reads one message. Where its body ends has to be beyond doubt: a proxy that saw another end than
// this reader would take the bytes of one client for the request of another one.
class HttpReader {
 public:
  enum class Kind { request, response };

  explicit HttpReader(Kind kind, HttpLimits limits = {}) : kind_(kind), limits_(limits) {}

  // Takes bytes of this message and returns how many; the rest belongs to the next one.
  size_t take(std::string_view bytes);

  bool started() const { return has_start_ || state_ != State::head || !line_.empty(); }
  bool whole() const { return state_ == State::whole; }
  const std::optional<HttpFault>& fault() const { return fault_; }
  // Once, after the head of a request that waits for "100 Continue" before it sends its body.
  bool wants_continue() { return std::exchange(wants_continue_, false); }

  HttpRequest request();    // of a whole message, once
  HttpResponse response();  // likewise

 private:
  enum class State { head, body, chunk_size, chunk, chunk_end, trailer, whole };

  size_t take_line(std::string_view bytes);
  void end_line(std::string_view line);
  void read_start(std::string_view line);
  void read_target(std::string_view target);
  void read_header(std::string_view line);
  void end_head();
  void read_chunk_size(std::string_view line);
  bool refuse(int status, std::string text);
  const std::string* header(std::string_view name) const;
  size_t count(std::string_view name) const;

  Kind kind_;
  HttpLimits limits_;
  State state_ = State::head;
  std::optional<HttpFault> fault_;
  std::string line_;
  size_t head_bytes_ = 0;
  bool has_start_ = false, keep_alive_ = true, wants_continue_ = false, minor_0_ = false;
  std::string method_, path_, body_;
  int status_ = 0;
  Headers headers_;
  size_t left_ = 0;  // of the body, or of a chunk
};

// The bytes of a message.
std::string to_bytes(const HttpResponse& response);
std::string to_bytes(const HttpRequest& request, std::string_view host);

std::string_view status_text(int status);

// {"error": text}, as the Open Inference Protocol has it.
HttpResponse error_response(int status, std::string_view text);

}  // namespace ductile::serving
