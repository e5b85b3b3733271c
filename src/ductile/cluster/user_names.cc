#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pwd.h>

#include "ductile/base/error.h"
#include "ductile/cluster/http_server.h"
#include "ductile/cluster/user_names_impl.h"

namespace ductile::cluster {

std::string user_name(uid_t user) {
  constexpr size_t kMostText = 1 << 20;
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> text(4096);
  int error = 0;
  while ((error = ::getpwuid_r(user, &entry, text.data(), text.size(), &found)) == ERANGE &&
         text.size() < kMostText)
    text.resize(2 * text.size());
  if (found != nullptr) return found->pw_name;
  // Any of these is said where there is no such user.
  if (error != 0 && error != ENOENT && error != ESRCH && error != EBADF && error != EPERM)
    fail(ErrorCode::unavailable, "the name of user {} cannot be found out now: {}", user,
         std::generic_category().message(error));
  return std::to_string(user);
}

struct UserNames::State {
  static constexpr size_t kMostNames = 10000;
  static constexpr size_t kMostQuestions = 64;  // at once, each of which has a thread
  struct Question {
    bool answered = false;
    std::string name, fault;
  };

  const NameOf name_of;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<uid_t, std::string> names;
  std::map<uid_t, std::shared_ptr<Question>> asked;
  bool ended = false;

  explicit State(NameOf ask) : name_of(std::move(ask)) {}

  void put(uid_t user, Question& question) {
    Question answer;
    answer.answered = true;
    try {
      answer.name = name_of(user);
    } catch (const std::exception& error) {
      answer.fault = error.what();
    }
    const std::lock_guard lock(mutex);
    if (answer.fault.empty()) {
      if (names.size() >= kMostNames) names.clear();
      names[user] = answer.name;
    }
    question = std::move(answer);
    asked.erase(user);
    changed.notify_all();
  }
};

UserNames::UserNames(NameOf name_of) : state_(std::make_shared<State>(std::move(name_of))) {}

UserNames::~UserNames() { end(); }

void UserNames::end() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

std::optional<std::string> UserNames::known(uid_t user) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->names.find(user);
  if (found == state_->names.end()) return std::nullopt;
  return found->second;
}

std::string UserNames::find(uid_t user, std::chrono::steady_clock::time_point until) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (const auto found = state.names.find(user); found != state.names.end()) return found->second;
  const auto cannot = [&](std::string_view why) {
    fail(ErrorCode::unavailable, "the name of user {} cannot be found out now: {}", user, why);
  };
  std::shared_ptr<State::Question> question;
  if (const auto under_way = state.asked.find(user); under_way != state.asked.end()) {
    question = under_way->second;
  } else {
    if (state.asked.size() >= State::kMostQuestions) cannot("too many others are asked for");
    question = std::make_shared<State::Question>();
    try {
      std::thread([own = state_, user, question] { own->put(user, *question); }).detach();
    } catch (const std::system_error& error) {
      cannot(error.what());
    }
    state.asked[user] = question;
  }
  state.changed.wait_until(lock, until, [&] { return question->answered || state.ended; });
  if (!question->answered) cannot("nobody answers");
  if (!question->fault.empty()) fail(ErrorCode::unavailable, "{}", question->fault);
  return question->name;
}

}  // namespace ductile::cluster
