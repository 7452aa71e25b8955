// Artificial run times of algorithms: choices by run time must not depend on the load of the machine.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cublaslt.h"

namespace {

enum Fastest { FIRST, SECOND, APART };

Fastest read_fastest() {
    const char* word = getenv("EMULATED_PRODUCTS");
    if (word == nullptr || *word == 0 || strcmp(word, "first") == 0) return FIRST;
    if (strcmp(word, "second") == 0) return SECOND;
    if (strcmp(word, "apart") == 0) return APART;
    fprintf(stderr, "emulated cuBLASLt: EMULATED_PRODUCTS=%s is not understood\n", word);
    abort();
}

}  // namespace

int pretended_milliseconds(const Problem& problem, uint64_t algorithm) {
    static const Fastest fastest = read_fastest();
    const bool fused = problem.description.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    const int time = !fused ? 100 : fastest == APART ? 200 : 50;
    const uint64_t favoured = fastest == SECOND ? 1 : 0;
    return time + (algorithm == favoured ? 0 : 100);
}
