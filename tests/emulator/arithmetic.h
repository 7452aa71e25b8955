// How the stand-ins round where CUDA leaves it open: what EMULATED_SUMS and EMULATED_GELU ask for, read once in each
// library. README.md lists the variables.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Arithmetic {
    // EMULATED_SUMS=truncated: sums of products on tensor cores lose bits as `add_truncated` does.
    bool truncates = false;
    // EMULATED_GELU=rounded: epilogues take GELU of the auxiliary value as it is stored.
    bool rounds_auxiliary = false;
    // EMULATED_GELU=refused: there is no algorithm with an auxiliary value.
    bool refuses_auxiliary = false;

    static const Arithmetic& get() {
        static const Arithmetic arithmetic;
        return arithmetic;
    }

private:
    Arithmetic() {
        truncates = chosen("EMULATED_SUMS", "nearest", "truncated", nullptr) == 1;
        const int gelu = chosen("EMULATED_GELU", "unrounded", "rounded", "refused");
        rounds_auxiliary = gelu == 1;
        refuses_auxiliary = gelu == 2;
    }

    // Which of the words a variable holds; the first if it is not set. A misspelt one would make a test pass for the
    // wrong reason.
    static int chosen(const char* name, const char* first, const char* second, const char* third) {
        const char* written = getenv(name);
        if (written == nullptr || *written == 0 || strcmp(written, first) == 0) return 0;
        if (strcmp(written, second) == 0) return 1;
        if (third != nullptr && strcmp(written, third) == 0) return 2;
        fprintf(stderr, "emulated stack: %s=%s is not understood\n", name, written);
        abort();
    }
};

// How many products tensor cores add to a sum at once: 8 on compute capability 8, more on later ones.
constexpr int PRODUCTS_AT_ONCE = 8;

// sum + products[0] + ..., as tensor cores add: every addend is cut off one bit below the last place of the largest,
// and the exact sum of what is left cut off to f32.
inline float add_truncated(float sum, const float* products, int count) {
    float largest = std::fabs(sum);
    for (int i = 0; i < count; i++) largest = std::max(largest, std::fabs(products[i]));
    if (largest == 0 || !std::isfinite(largest)) {
        for (int i = 0; i < count; i++) sum += products[i];
        return sum;
    }
    const double unit = std::ldexp(1.0, std::ilogb(largest) - 24);
    double exact = std::trunc(sum / unit);
    for (int i = 0; i < count; i++) exact += std::trunc(products[i] / unit);
    exact *= unit;
    const float nearest = static_cast<float>(exact);
    return std::fabs(nearest) > std::fabs(exact) ? std::nextafter(nearest, 0.0f) : nearest;
}
