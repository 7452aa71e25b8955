// Settings from the environment, read once. README.md lists the variables.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda.h"

// EMULATED_FAIL=FUNCTION:N:CODE[,...]: the N-th call of FUNCTION returns CODE. README.md lists the functions.
struct PlannedFailure {
    std::string function;
    unsigned long call;
    CUresult code;
};

struct Settings {
    enum Delay { NOTHING, FIRST_STREAM, SECOND_STREAM, PRIORITY_STREAM, EVERY_STREAM, BY_CHANCE };

    size_t memory = size_t{4} << 30;
    size_t pool_step = size_t{32} << 20;
    size_t pool_packs = 1;
    int major = 9, minor = 0;
    int devices = 1;
    int driver = 13000;
    Delay delay = NOTHING;
    unsigned long delay_seed = 0;
    std::vector<PlannedFailure> failures;

    static const Settings& get() { return current(); }

    static Settings& current() {
        static Settings settings;
        return settings;
    }

    // Returns whether the value is valid.
    bool read_delay(const std::string& written);

private:
    Settings();
};
