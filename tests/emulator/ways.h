// Emulation modes for behaviour that CUDA leaves open, on which no result may depend: the thread order, and the
// rounding of matmuls.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

struct Way {
    enum Gelu : int { UNROUNDED, ROUNDED, REFUSED };

    // EMULATED_ORDER: 0 forward, 1 backward, any other number is the seed of a random order.
    int order = 0;
    // EMULATED_SUMS=truncated: sums of products are truncated like those of tensor cores (`add_truncated`).
    bool truncates = false;
    // EMULATED_GELU: epilogues apply GELU to the sum, or to the stored auxiliary value, or epilogues with an auxiliary
    // value are rejected.
    Gelu gelu = UNROUNDED;

    // The mode set by the environment, with the first value as default of each variable. Aborts on an invalid value,
    // because a misspelt one would make a test pass for the wrong reason.
    static const Way& of_environment() {
        static const Way way = [] {
            Way way;
            if (is_fixed("EMULATED_ORDER")) way.order = atoi(getenv("EMULATED_ORDER"));
            require("EMULATED_SUMS", way, &Way::read_sums);
            require("EMULATED_GELU", way, &Way::read_gelu);
            return way;
        }();
        return way;
    }

    // Sets the values of the variables, except for those set in the environment. Returns false for an invalid value.
    bool ask(int asked_order, const char* sums, const char* asked_gelu) {
        if (!is_fixed("EMULATED_ORDER")) order = asked_order;
        return (is_fixed("EMULATED_SUMS") || read_sums(sums)) && (is_fixed("EMULATED_GELU") || read_gelu(asked_gelu));
    }

private:
    static bool is_fixed(const char* variable) {
        const char* word = getenv(variable);
        return word != nullptr && *word != 0;
    }

    static void require(const char* variable, Way& way, bool (Way::*read)(const char*)) {
        if (!is_fixed(variable) || (way.*read)(getenv(variable))) return;
        fprintf(stderr, "emulated stack: %s=%s is not understood\n", variable, getenv(variable));
        abort();
    }

    bool read_sums(const char* word) {
        truncates = strcmp(word, "truncated") == 0;
        return truncates || strcmp(word, "nearest") == 0;
    }

    bool read_gelu(const char* word) {
        const char* words[] = {"unrounded", "rounded", "refused"};
        for (Gelu candidate : {UNROUNDED, ROUNDED, REFUSED}) {
            if (strcmp(word, words[candidate]) != 0) continue;
            gelu = candidate;
            return true;
        }
        return false;
    }
};
