#include "ductile/serving/http_message.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"

namespace ductile::serving {
namespace {

constexpr size_t kMostHeaders = 100;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  const auto good = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, good);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Digits of this base and nothing else.
std::optional<size_t> number(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// Whether a list such as that of Connection has the word.
bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (lower(trimmed(list.substr(0, comma))) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

const std::string* find(const Headers& headers, std::string_view name) {
  const auto found =
      std::ranges::find(headers, name, [](const auto& one) { return std::string_view(one.first); });
  return found == headers.end() ? nullptr : &found->second;
}

}  // namespace

const std::string* HttpRequest::header(std::string_view name) const { return find(headers, name); }
const std::string* HttpReader::header(std::string_view name) const { return find(headers_, name); }

size_t HttpReader::count(std::string_view name) const {
  return static_cast<size_t>(
      std::ranges::count_if(headers_, [&](const auto& one) { return one.first == name; }));
}

bool HttpReader::refuse(int status, std::string text) {
  if (!fault_) fault_ = HttpFault{status, std::move(text)};
  return false;
}

size_t HttpReader::take(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size() && !fault_ && !whole()) {
    const std::string_view rest = bytes.substr(used);
    if (state_ != State::body && state_ != State::chunk) {
      used += take_line(rest);
      continue;
    }
    const size_t n = std::min(left_, rest.size());
    body_.append(rest.substr(0, n));
    left_ -= n;
    used += n;
    if (left_ == 0) state_ = state_ == State::body ? State::whole : State::chunk_end;
  }
  return used;
}

size_t HttpReader::take_line(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  const size_t n = end == std::string_view::npos ? bytes.size() : end + 1;
  head_bytes_ += n;
  if (head_bytes_ > limits_.head) {
    refuse(431, fmt::format("the head is larger than {} bytes", limits_.head));
    return n;
  }
  line_.append(bytes.substr(0, n));
  if (end == std::string_view::npos) return n;
  if (line_.size() < 2 || line_[line_.size() - 2] != '\r') {
    refuse(400, "a line of the head must end with CR LF");
    return n;
  }
  const std::string line = std::exchange(line_, {});
  const std::string_view text = std::string_view(line).substr(0, line.size() - 2);
  const auto control = [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; };
  if (std::ranges::any_of(text, control)) {
    refuse(400, "the head has control characters");
  } else {
    end_line(text);
  }
  return n;
}

void HttpReader::end_line(std::string_view line) {
  if (state_ == State::chunk_size) return read_chunk_size(line);
  if (state_ == State::chunk_end) {
    state_ = State::chunk_size;
    head_bytes_ = 0;
    if (!line.empty()) refuse(400, "a chunk is longer than its length says");
    return;
  }
  if (state_ == State::trailer) {
    if (line.empty()) state_ = State::whole;
    return;  // trailers mean nothing here
  }
  if (!has_start_) return read_start(line);
  if (line.empty()) return end_head();
  read_header(line);
}

void HttpReader::read_start(std::string_view line) {
  has_start_ = true;
  const size_t one = line.find(' '), two = line.find(' ', one + 1);
  if (one == std::string_view::npos || two == std::string_view::npos) {
    refuse(400, "the first line is not one of HTTP 1.1");
    return;
  }
  const std::string_view first = line.substr(0, one), second = line.substr(one + 1, two - one - 1),
                         third = line.substr(two + 1);
  const std::string_view version = kind_ == Kind::request ? third : first;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    refuse(505, "the version of HTTP must be 1.1");
    return;
  }
  minor_0_ = version == "HTTP/1.0";
  if (kind_ == Kind::response) {
    status_ = static_cast<int>(number(second, 10).value_or(0));
    if (second.size() != 3 || status_ < 100) refuse(400, "the status is no number");
    return;
  }
  method_ = first;
  if (!is_token(method_)) {
    refuse(400, "the method is no word");
    return;
  }
  read_target(second);
}

void HttpReader::read_target(std::string_view target) {
  target = target.substr(0, target.find('?'));
  if (!target.starts_with('/')) {
    refuse(400, "the path must begin with a slash");
    return;
  }
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path_ += target[i];
      continue;
    }
    const auto code = number(target.substr(i + 1, 2), 16);
    if (i + 2 >= target.size() || !code || *code < 0x20 || *code == 0x7f || *code == '/') {
      refuse(400, "the path has a percent sign that encodes no character");
      return;
    }
    path_ += static_cast<char>(*code);
    i += 2;
  }
}

void HttpReader::read_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    refuse(400, "a header must have the form \"Name: value\"");
  } else if (headers_.size() == kMostHeaders) {
    refuse(431, fmt::format("there are more than {} headers", kMostHeaders));
  } else {
    headers_.emplace_back(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
}

void HttpReader::end_head() {
  constexpr std::array kOnce = {"content-encoding",
                                "content-length",
                                "content-type",
                                "host",
                                "inference-header-content-length",
                                "transfer-encoding"};
  for (const char* name : kOnce) {
    if (count(name) > 1) {
      refuse(400, fmt::format("the header {} stands there more than once", name));
      return;
    }
  }
  const std::string* const length = header("content-length");
  const std::string* const encoding = header("transfer-encoding");
  const std::string* const compressed = header("content-encoding");
  const std::string* const connection = header("connection");
  keep_alive_ = connection != nullptr && has_word(*connection, "keep-alive") ? true : !minor_0_;
  if (connection != nullptr && has_word(*connection, "close")) keep_alive_ = false;
  const auto size = length == nullptr ? std::optional<size_t>(0) : number(*length, 10);
  const bool request = kind_ == Kind::request;
  if (request && !minor_0_ && header("host") == nullptr) {
    refuse(400, "the header Host is missing");
  } else if (compressed != nullptr && lower(*compressed) != "identity") {
    refuse(415, "Content-Encoding: send the body uncompressed");
  } else if (encoding != nullptr &&
             (length != nullptr || lower(*encoding) != "chunked" || minor_0_)) {
    refuse(400, "Transfer-Encoding can only be \"chunked\", and without Content-Length");
  } else if (!size) {
    refuse(400, "Content-Length must be a number");
  } else if (*size > limits_.body) {
    refuse(413, fmt::format("the body is larger than {} bytes", limits_.body));
  } else if (request && method_ != "POST" && (encoding != nullptr || *size > 0)) {
    refuse(400, fmt::format("{} takes no body", method_));
  } else if (!request && encoding == nullptr && length == nullptr && status_ != 204) {
    refuse(400, "the answer has no Content-Length");
  } else {
    head_bytes_ = 0;
    left_ = *size;
    state_ = encoding != nullptr ? State::chunk_size : left_ > 0 ? State::body : State::whole;
    const std::string* const expect = header("expect");
    if (expect != nullptr && lower(*expect) != "100-continue")
      refuse(417, "Expect can only be \"100-continue\"");
    wants_continue_ = expect != nullptr && !whole();
  }
}

void HttpReader::read_chunk_size(std::string_view line) {
  const std::string_view digits = trimmed(line.substr(0, line.find(';')));
  const auto size = digits.size() <= 15 ? number(digits, 16) : std::nullopt;
  head_bytes_ = 0;
  if (!size) {
    refuse(400, "the length of a chunk must be a hexadecimal number");
  } else if (*size > limits_.body - std::min(limits_.body, body_.size())) {
    refuse(413, fmt::format("the body is larger than {} bytes", limits_.body));
  } else {
    left_ = *size;
    state_ = left_ == 0 ? State::trailer : State::chunk;
  }
}

HttpRequest HttpReader::request() {
  DUCTILE_CHECK(whole() && kind_ == Kind::request);
  return {std::move(method_), std::move(path_), std::move(headers_), std::move(body_), keep_alive_};
}

HttpResponse HttpReader::response() {
  DUCTILE_CHECK(whole() && kind_ == Kind::response);
  HttpResponse out{status_, "", std::move(headers_), std::move(body_), keep_alive_};
  if (const std::string* const type = find(out.headers, "content-type")) out.type = *type;
  std::erase_if(out.headers, [](const auto& one) {
    return one.first == "content-type" || one.first == "content-length" ||
           one.first == "connection" || one.first == "transfer-encoding";
  });
  return out;
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Other";
  }
}

std::string to_bytes(const HttpResponse& response) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", response.status,
                  status_text(response.status), response.type, response.body.size());
  for (const auto& [name, value] : response.headers) out += name + ": " + value + "\r\n";
  if (!response.keep_alive) out += "Connection: close\r\n";
  return out + "\r\n" + response.body;
}

std::string to_bytes(const HttpRequest& request, std::string_view host) {
  std::string path;
  for (const char c : request.path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/-._~:").find(c) != std::string_view::npos;
    path += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, path, host);
  for (const auto& [name, value] : request.headers) {
    if (name != "host" && name != "content-length" && name != "transfer-encoding" &&
        name != "connection" && name != "expect")
      out += name + ": " + value + "\r\n";
  }
  if (request.method == "POST") out += fmt::format("Content-Length: {}\r\n", request.body.size());
  return out + "\r\n" + request.body;
}

HttpResponse error_response(int status, std::string_view text) {
  HttpResponse out;
  out.status = status;
  out.body = dump_json(nlohmann::json{{"error", text}}) + "\n";
  return out;
}

}  // namespace ductile::serving
