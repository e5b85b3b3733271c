// ductile-worker: one process that hosts virtual ranks of one job. Started by the command line, or
// forked by one that was started as a zygote.
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "ductile/process/forked_worker.h"
#include "ductile/process/zygote.h"
#include "ductile/train/worker_program.h"

namespace {

// Without the destructors of what libtorch registered when it was loaded: they touch all of its
// memory, which a forked worker would get copied for that, and whose devices somebody waits for.
[[noreturn]] void end(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ductile;
  if (argc < 2 || std::string_view(argv[1]) != process::kZygote)
    end(train::worker_program(argc, argv));
  std::vector<std::string> words = process::become_worker(argv[0]);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  end(train::worker_program(static_cast<int>(words.size()), pointers.data()));
}
