// The module ductile._core: the C++ worker of a Python job, and what its Python half needs of
// Ductile.
#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "ductile/base/error.h"
#include "ductile/base/json.h"
#include "ductile/base/json_value.h"
#include "ductile/base/rng.h"
#include "ductile/ckpt/digest.h"
#include "ductile/ckpt/safetensors.h"
#include "ductile/data/sampler.h"
#include "ductile/process/forked_worker.h"
#include "ductile/python/dtypes_impl.h"
#include "ductile/python/errors_impl.h"
#include "ductile/python/python_task.h"
#include "ductile/python/turns.h"
#include "ductile/run/folder.h"
#include "ductile/spec/job.h"
#include "ductile/train/data_form.h"
#include "ductile/train/environment.h"
#include "ductile/train/profile.h"
#include "ductile/train/worker_program.h"

namespace {

namespace py = pybind11;
using namespace ductile;

spec::JobOptions job_of(const std::string& run) {
  spec::JobOptions job;
  OptionSet(job).read_toml(run::RunFolder::open(run).job_file(), Moved::follow);
  spec::check(job);
  return job;
}

std::string job(const std::string& run) {
  spec::JobOptions options = job_of(run);
  return dump_json(OptionSet(options).to_json());
}

void prepare(const std::string& run) {
  spec::JobOptions job = job_of(run);
  train::resolve_threads(job);
  train::prepare_torch(job);
}

int work(std::vector<std::string> arguments, py::object task) {
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const std::shared_ptr<train::Task> own = python::make_python_task(std::move(task));
  const py::gil_scoped_release unlocked;
  return train::worker_program(static_cast<int>(arguments.size()), argv.data(),
                               [&](const spec::JobOptions& job) -> train::Recipe {
                                 return [own, job] {
                                   train::Ingredients given;
                                   given.task = own;
                                   return train::complete(std::move(given), job);
                                 };
                               });
}

std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t size, int64_t first,
                                 int64_t count) {
  const data::Permutation order(seed, epoch, size);
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = order[first + i];
  return out;
}

// This process is killed when the one that forked it ends.
void die_with(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
}

// The interpreter has to know of a fork, too.
int fork_as_sibling() {
  PyOS_BeforeFork();
  const pid_t pid = process::fork_as_sibling();
  const int error = errno;
  if (pid == 0) {
    PyOS_AfterFork_Child();
    return 0;
  }
  PyOS_AfterFork_Parent();
  if (pid < 0) fail_errno("clone(CLONE_PARENT)", error);
  return pid;
}

// Of each tensor where its values lie, how often they have been changed and whether it is trained:
// what a loss must leave as it was. Asked for in Python, these cost a microsecond each time.
py::bytes marks(const py::list& tensors) {
  std::vector<int64_t> out;
  out.reserve(3 * tensors.size());
  for (const py::handle& item : tensors) {
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    out.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(tensor.data_ptr())));
    out.push_back(static_cast<int64_t>(tensor._version()));
    out.push_back(tensor.requires_grad() ? 1 : 0);
  }
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(int64_t)};
}

at::ScalarType type_of(const ckpt::TensorInfo& info) {
  if (const auto type = python::scalar_type(info.dtype)) return *type;
  fail(ErrorCode::invalid_argument, "torch has no type {}", to_string(info.dtype));
}

std::pair<double, double> fit_affine(const std::vector<double>& samples,
                                     const std::vector<double>& values) {
  std::vector<train::MeasuredShare> measured;
  for (size_t i = 0; i < std::min(samples.size(), values.size()); ++i)
    measured.push_back({samples[i], values[i]});
  const train::AffineFit fit = train::fit_affine(measured);
  return {fit.fixed, fit.per_sample};
}

// The tensors of a file of weights; one that a run wrote is compared with its digest.
std::map<std::string, at::Tensor> tensors(const std::string& path) {
  const ckpt::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> out;
  std::vector<ckpt::TensorView> views;
  for (const ckpt::TensorInfo& info : file.tensors()) {
    const std::span<const std::byte> bytes = file.bytes(info);
    views.push_back({info.name, info.dtype, info.shape, bytes});
    out[info.name] =
        at::from_blob(const_cast<std::byte*>(bytes.data()), info.shape, type_of(info)).clone();
  }
  const auto written = file.metadata().find(train::kWeightsDigestKey);
  if (written == file.metadata().end()) return out;
  if (const std::string digest = ckpt::tensors_digest(views); digest != written->second)
    fail(ErrorCode::data_loss,
         "{}: the weights are not those that were written (their digest is {}, and it was {})",
         path, digest, written->second);
  return out;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ worker of a Python job, and what its Python half needs of Ductile.";
  py::register_local_exception_translator(python::translate);
  m.def("job", job, py::arg("run"), "The options of a run directory's job.toml, as JSON.");
  m.def("prepare", prepare, py::arg("run"),
        "Threads, denormal numbers and determinism of libtorch in this thread, as the job wants "
        "them.");
  m.def("work", work, py::arg("arguments"), py::arg("task"),
        "Runs the worker with the command line of ductile-worker; returns its exit code.");
  m.def("permutation", permutation, py::arg("seed"), py::arg("epoch"), py::arg("size"),
        py::arg("first"), py::arg("count"),
        "The samples at the places [first, first + count) of an epoch over `size` samples.");
  m.def("mix", mix, py::arg("a"), py::arg("b"), "A 64-bit number made of two, for seeds.");
  m.def(
      "set_title", [](const std::string& title) { process::set_title(title); }, py::arg("title"),
      "What `ps` shows as the command line; its words may be divided by zero bytes.");
  m.def("fork_as_sibling", fork_as_sibling,
        "os.fork() of a process with one thread, as a child of its parent.");
  m.def("die_with", die_with, py::arg("parent"), "Ends this process when its parent ends.");
  m.def("marks", marks, py::arg("tensors"),
        "Address, version and requires_grad of each tensor, as bytes of int64.");
  m.def("fit_affine", fit_affine, py::arg("samples"), py::arg("values"),
        "(fixed, per sample): the line through what was measured at these numbers of samples.");
  python::bind_turns(m);
  m.def("tensors", tensors, py::arg("path"), "The tensors of a safetensors file, by name.");
}
