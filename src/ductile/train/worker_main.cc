// ductile-worker: one process that hosts virtual ranks of one job. Started by the command line.
#include "ductile/train/worker_program.h"

int main(int argc, char** argv) { return ductile::train::worker_program(argc, argv); }
