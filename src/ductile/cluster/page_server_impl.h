#pragma once

#include <optional>
#include <string>

#include <httplib.h>

#include "ductile/cluster/page_access.h"

namespace ductile::cluster {

// The part of HttpServer that is for browsers: the page's files, logging in and out, and what is
// refused to pages of other origins. For requests over the port alone.
class PageServer {
 public:
  explicit PageServer(PageAccess& access) : access_(access) {}

  // Why the request is none of this page or of a program on this machine; empty: it may be one.
  static std::string fault(const httplib::Request& request);
  // Whether the request asks for a file of the page, which needs no login; then it is answered.
  bool gave_file(const httplib::Request& request, httplib::Response& response) const;
  // Whether the request logs in or out; `answer` then answers it, given the body.
  static bool is_login(const httplib::Request& request);
  void answer(const httplib::Request& request, const std::string& body,
              httplib::Response& response);
  std::optional<Principal> principal_of(const httplib::Request& request);

 private:
  std::string cookie_name() const;
  std::string cookie_of(const httplib::Request& request) const;

  PageAccess& access_;
};

}  // namespace ductile::cluster
