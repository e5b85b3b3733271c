#include "ductile/python/turns.h"

#include <cerrno>

#include <semaphore.h>

namespace ductile::python {
namespace {

namespace py = pybind11;

class Turns {
 public:
  Turns() {
    ::sem_init(&asked_, 0, 0);
    ::sem_init(&answered_, 0, 0);
  }
  ~Turns() {
    ::sem_destroy(&asked_);
    ::sem_destroy(&answered_);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void ask() { ::sem_post(&asked_); }
  void answer() { ::sem_post(&answered_); }
  void ask_and_wait() { pass(&asked_, &answered_); }
  void answer_and_wait() { pass(&answered_, &asked_); }
  void wait_for_question() { pass(nullptr, &asked_); }

 private:
  // A signal wakes the main thread, which runs its handler; what that raises ends the wait.
  static void pass(sem_t* to, sem_t* from) {
    while (true) {
      int failed = 0;
      {
        const py::gil_scoped_release unlocked;
        if (to != nullptr) ::sem_post(to);
        if (::sem_wait(from) != 0) failed = errno;
      }
      if (failed != EINTR) return;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      to = nullptr;
    }
  }

  sem_t asked_, answered_;
};

}  // namespace

void bind_turns(py::module_& m) {
  py::class_<Turns>(m, "Turns", "Two threads that ask and answer each other in turn.")
      .def(py::init<>())
      .def("ask", &Turns::ask, "Asks, and goes on.")
      .def("answer", &Turns::answer, "Answers, and goes on.")
      .def("ask_and_wait", &Turns::ask_and_wait, "Asks, and waits for the answer.")
      .def("answer_and_wait", &Turns::answer_and_wait, "Answers, and waits for the next question.")
      .def("wait_for_question", &Turns::wait_for_question, "Waits for a question.");
}

}  // namespace ductile::python
