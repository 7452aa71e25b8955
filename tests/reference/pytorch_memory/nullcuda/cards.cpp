#include "cards.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Multiprocessors and caches are those of NVIDIA's data sheets, limits per multiprocessor those of the CUDA programming
// guide's table of compute capabilities, memory sizes what drivers report.
static const Card CARDS[] = {
    {"a100", 8, 0, 108, 85097971712, 167936, 2048, 32, 40 << 20},
    {"h100", 9, 0, 132, 85024112640, 233472, 2048, 32, 50 << 20},
    {"b200", 10, 0, 148, 191510872064, 233472, 2048, 32, 126 << 20},
    {"rtx4090", 8, 9, 128, 25386352640, 102400, 1536, 24, 72 << 20},
    {"rtx3090", 8, 6, 82, 25435766784, 102400, 1536, 16, 6 << 20},
    {"t4", 7, 5, 40, 15828320256, 65536, 1024, 16, 4 << 20},
    {"v100", 7, 0, 80, 16945512448, 98304, 2048, 32, 6 << 20},
    {"p100", 6, 0, 56, 17071734784, 65536, 2048, 32, 4 << 20},
};

static Card chosen() {
    const char *key = getenv("NULLCUDA_DEVICE");
    for (Card card : CARDS) {
        if (!key || strcmp(card.key, key)) continue;
        if (const char *memory = getenv("NULLCUDA_MEMORY")) card.memory = strtoull(memory, nullptr, 10);
        return card;
    }
    fprintf(stderr, "nullcuda: NULLCUDA_DEVICE is %s; use one of", key ? key : "not set");
    for (const Card &card : CARDS) fprintf(stderr, " %s", card.key);
    fprintf(stderr, "\n");
    exit(1);
}

const Card &card() {
    static const Card card = chosen();
    return card;
}
